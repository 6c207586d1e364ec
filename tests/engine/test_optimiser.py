"""Learning rates per parameter."""

import pytest
import torch
from torch import nn

from patchreorder.engine.optimiser import create_optimiser, parameter_groups, set_rate
from patchreorder.engine.options import Training
from tests.engine.toy import Frozen


def rates(model, lr=1.0, **scales):
    """The learning rate of every trainable parameter."""
    optimiser = create_optimiser(model, Training(steps=1, scales=scales))
    set_rate(optimiser, lr)
    found = {id(parameter): group["lr"] for group in optimiser.param_groups for parameter in group["params"]}
    return {name: found[id(p)] for name, p in model.named_parameters() if p.requires_grad}


def model():
    return nn.ModuleDict({"transformer": nn.Linear(2, 3), "fc": nn.Linear(3, 4)})


def test_names_match_by_prefix_or_last_part():
    assert rates(model(), 0.5) == {
        "transformer.weight": 0.5,
        "transformer.bias": 0.5,
        "fc.weight": 0.5,
        "fc.bias": 0.5,
    }
    assert rates(model(), 0.5, **{"fc": 3.0, "transformer.bias": 5.0}) == {
        "transformer.weight": 0.5,
        "transformer.bias": 2.5,
        "fc.weight": 1.5,
        "fc.bias": 1.5,
    }


def test_scales_of_all_matching_names_multiply():
    """As in Caffe: the biases of a layer with lr_mult 0.01 have lr_mult 0.02."""
    assert rates(model(), bias=2.0, transformer=0.01) == {
        "transformer.weight": 0.01,
        "transformer.bias": 0.02,
        "fc.weight": 1.0,
        "fc.bias": 2.0,
    }


def test_frozen_parameters_have_no_group():
    groups = parameter_groups(Frozen(), Training(steps=1))
    assert len(groups) == 1
    assert all(parameter.requires_grad for parameter in groups[0]["params"])


def test_scales_that_match_no_parameter():
    with pytest.raises(ValueError, match=r"scales \(nowhere\) match no parameter"):
        rates(model(), nowhere=2.0)


def test_nesterov_needs_momentum():
    assert create_optimiser(model(), Training(steps=1)).defaults["nesterov"]
    assert not create_optimiser(model(), Training(steps=1, momentum=0.0)).defaults["nesterov"]
    assert isinstance(create_optimiser(model(), Training(steps=1)), torch.optim.SGD)


def test_adamw_has_the_same_groups():
    optimiser = create_optimiser(model(), Training(steps=1, optimiser="adamw", weight_decay=0.3, scales={"fc": 3.0}))
    assert isinstance(optimiser, torch.optim.AdamW)
    assert {group["scale"]: len(group["params"]) for group in optimiser.param_groups} == {1.0: 2, 3.0: 2}
    assert all((group["betas"], group["weight_decay"]) == ((0.9, 0.999), 0.3) for group in optimiser.param_groups)
