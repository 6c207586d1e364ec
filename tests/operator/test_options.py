"""Options: what a value may be, what errors say, and the functions, constructors and texts made from them."""

import inspect
import math
from dataclasses import FrozenInstanceError, dataclass
from typing import Annotated, Literal

import numpy as np
import pytest
import torch
from torch import Tensor

from patchreorder.operator.options import Count, Must, Options, constructor, takes, takes_and_returns_order


@dataclass(frozen=True)
class ScaleOptions(Options):
    """Options of `scale`.

    Args:
        times: how often.
        by: the factor.
    """

    times: Count | Literal["twice"] = 1
    by: Annotated[float, Must("finite", math.isfinite)] | None = None
    kind: Literal["plain", "fancy"] = "plain"
    unit: Literal["metre"] | None = None
    negative: bool = False


@takes(ScaleOptions)
def scale(x: Tensor, options: ScaleOptions) -> Tensor:
    """Scale x.

    Raises:
        ValueError: an argument is out of range.
    """
    return x * (options.by or 2)


@takes_and_returns_order(ScaleOptions)
def scale_and_order(x: Tensor, options: ScaleOptions) -> tuple[Tensor, Tensor]:
    """Scale x.

    Args:
        return_order: also the order.
    """
    return x * (options.by or 2), torch.arange(len(x))


class Scale:
    @constructor(ScaleOptions)
    def __init__(self, options: ScaleOptions) -> None:
        self.options = options


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"times": 0}, ValueError, "times (0) must be 1 or more"),
        ({"times": 2**31}, ValueError, "times (2147483648) must be below 2**31"),
        ({"times": 10**5000}, ValueError, "times (an integer of 16610 bits) must be below 2**31"),
        ({"negative": 10**5000}, TypeError, "negative (an integer of 16610 bits) must be True or False"),
        ({"times": 1.5}, TypeError, "times (1.5) must be a whole number or 'twice'"),
        ({"times": True}, TypeError, "times (True) must be a whole number or 'twice'"),
        ({"times": None}, TypeError, "times (None) must be a whole number or 'twice'"),
        ({"times": "thrice"}, ValueError, "times ('thrice') must be a whole number or 'twice'"),
        ({"by": "two"}, TypeError, "by ('two') must be a number or None"),
        ({"by": False}, TypeError, "by (False) must be a number or None"),
        ({"by": math.inf}, ValueError, "by (inf) must be finite"),
        ({"kind": "odd"}, ValueError, "kind ('odd') must be 'plain' or 'fancy'"),
        ({"kind": 3}, ValueError, "kind (3) must be 'plain' or 'fancy'"),
        ({"unit": 3}, TypeError, "unit (3) must be None or 'metre'"),
        ({"unit": "foot"}, ValueError, "unit ('foot') must be None or 'metre'"),
        ({"negative": 1}, TypeError, "negative (1) must be True or False"),
        ({"negative": None}, TypeError, "negative (None) must be True or False"),
    ],
)
def test_bad_values_are_named(arguments, error, says):
    for made in (ScaleOptions, Scale, lambda **given: scale(torch.ones(1), **given)):
        with pytest.raises(error) as caught:
            made(**arguments)
        assert str(caught.value) == says


def test_values_are_plain_and_stay():
    options = ScaleOptions(np.int64(3), by=2)
    assert type(options.times) is int
    assert type(options.by) is int
    assert ScaleOptions("twice").times == "twice"
    with pytest.raises(FrozenInstanceError):
        options.times = 4
    assert options == ScaleOptions(times=3, by=2)
    assert options.changed() == {"times": 3, "by": 2}
    assert options.arguments() == {"times": 3, "by": 2, "kind": "plain", "unit": None, "negative": False}


def test_signatures_and_docstrings_list_the_options():
    assert list(inspect.signature(scale).parameters) == ["x", "times", "by", "kind", "unit", "negative"]
    assert inspect.signature(scale).parameters["times"].annotation == int | Literal["twice"]
    assert inspect.signature(scale).parameters["times"].kind is inspect.Parameter.KEYWORD_ONLY
    assert list(inspect.signature(Scale).parameters) == ["times", "by", "kind", "unit", "negative"]
    assert inspect.signature(scale_and_order).parameters["return_order"].default is False
    assert scale.__doc__ == (
        "Scale x.\n\nArgs:\n    times: how often.\n    by: the factor.\n\n"
        "Raises:\n    ValueError: an argument is out of range."
    )
    assert "    by: the factor.\n    return_order: also the order." in scale_and_order.__doc__


def test_functions_take_keywords_and_constructors_positions_too():
    assert scale(torch.ones(1), by=3) == 3
    with pytest.raises(TypeError):
        scale(torch.ones(1), 3)
    with pytest.raises(TypeError, match="unexpected keyword argument 'often'"):
        scale(torch.ones(1), often=3)
    assert Scale(3, 0.5).options == ScaleOptions(times=3, by=0.5)
    assert scale_and_order(torch.ones(2), by=3).tolist() == [3, 3]
    z, order = scale_and_order(torch.ones(2), by=3, return_order=True)
    assert (z.tolist(), order.tolist()) == ([3, 3], [0, 1])


def test_a_symbolic_trace_has_the_function_as_one_node():

    class Two(torch.nn.Module):
        def forward(self, x):
            return scale(scale_and_order(x, by=3), times=5)

    graph = torch.fx.symbolic_trace(Two()).graph
    called = [(node.target, dict(node.kwargs)) for node in graph.nodes if node.op == "call_function"]
    assert called == [(scale_and_order, {"by": 3}), (scale, {"times": 5})]
    assert torch.fx.symbolic_trace(Two())(torch.ones(2)).tolist() == [6, 6]


def test_compiled_functions_check_their_options():
    compiled = torch.compile(lambda x: scale(x, times=3, by=4), fullgraph=True, backend="eager")
    assert compiled(torch.ones(2)).tolist() == [4, 4]


def test_texts():
    assert ScaleOptions.read("times=twice, by=-1,kind=fancy,negative=True,") == {
        "times": "twice",
        "by": -1,
        "kind": "fancy",
        "negative": True,
    }
    possible = "times=NUMBER|twice, by=DECIMAL, kind=plain|fancy, unit=metre, negative=true|false"
    for text in ("often=2", "times", "times=", "times=1.5", "by=x", "negative=1", "kind=1", "kind=true"):
        with pytest.raises(ValueError, match=r"^'.*' must be one of ") as caught:
            ScaleOptions.read(text)
        assert str(caught.value) == f"{text!r} must be one of {possible}"
    with pytest.raises(ValueError, match="times is given twice"):
        ScaleOptions.read("times=1,times=1")
