"""The operator against the oracle, and every form of it against the others."""

import random

import pytest
import torch

from patchreorder import patch_reorder, undo_reorder
from tests import oracle
from tests.defences.chance import cases
from tests.forms import RUNNABLE
from tests.operator.test_functional import DTYPES, VALUES, make, same_bits

MOST_VALUES = 20_000  # of a tensor: the oracle is slow


def case_of(chance: random.Random) -> dict:
    """A case for `make`: any shape and grid that fit, any type, layout and values."""
    grid = chance.choice([2, 2, 3, 4, 5, chance.randint(2, 20), "pixels", "pixels"])
    most = {2: 4, 3: 3, 4: 2, 5: 2}.get(grid, 1)
    levels = chance.randint(1, most)
    least = 1 if grid == "pixels" else grid**levels
    height, width = (least + round(chance.expovariate(1 / 8)) for _ in range(2))
    batch, channels = chance.randint(0, 3), chance.choice([0, 1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 64, 65])
    while batch * channels * height * width > MOST_VALUES and channels > 1:
        channels //= 2
    return {
        "shape": (batch, channels, height, width),
        "values": chance.choice(sorted(VALUES)),
        "dtype": chance.choice(DTYPES),
        "layout": chance.choice(["contiguous", "channels_last", "strided"]),
        "seed": chance.randrange(2**31),
        "options": {
            "grid": grid,
            "levels": levels,
            "energy": chance.choice(["l1", "l2"]),
            "per_channel": chance.random() < 0.5,
            "descending": chance.random() < 0.5,
        },
    }


def test_every_form_equals_the_oracle(use_form):
    threads = torch.get_num_threads()
    try:
        for chance in cases("operator"):
            case = case_of(chance)
            print(case)
            x = make(case)
            z, order = oracle.reorder(x, **case["options"])
            anything = torch.rand(order.shape).flatten(2).argsort(-1).reshape(order.shape)
            for name in ["torch", *RUNNABLE]:
                use_form(name)
                torch.set_num_threads(chance.choice([1, 1, 2, 3]))
                found, own = patch_reorder(x, **case["options"], return_order=True)
                assert torch.equal(own.long(), order), name
                assert same_bits(found, z), name
                assert same_bits(undo_reorder(found, own), x), name
            if order.numel():
                check_any_order(x, anything.to(own.dtype), use_form)
    finally:
        torch.set_num_threads(threads)


def check_any_order(x: torch.Tensor, order: torch.Tensor, use_form) -> None:
    """`undo_reorder` by an order that is none of `patch_reorder`'s, and by one with a mistake."""
    wrong = order.clone()
    first = wrong[0, 0].view(-1)
    first[0] = first[-1] if len(first) > 1 else 7
    for name in ["torch", *RUNNABLE]:
        use_form(name)
        back = undo_reorder(x, order)
        assert same_bits(oracle.move(back, order.long().numpy()), x.contiguous()), name
        with pytest.raises(ValueError, match="not a permutation"):
            undo_reorder(x, wrong)
