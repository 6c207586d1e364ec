"""What all layers have in common: options, signatures, copies and symbolic traces."""

import copy
import inspect
import pickle

import pytest
import torch
from torch import nn

import patchreorder
from patchreorder import create_layer
from patchreorder.layers.registry import LAYER_TYPES

# A text for every layer, and its repr: the options that differ from their defaults.
LAYERS = {
    "reorder:grid=2,energy=l1,descending=false": "PatchReorder(energy='l1', descending=False)",
    "ranked:quantiles=7,smooth=2,weights=-0.5": "RankedPool(quantiles=7, smooth=2, weights=-0.5)",
    "align:energy=l1,size=5": "ShiftAlign(energy='l1', size=5)",
    "pose:energy=l2,ends=nearest": "PoseAlign(energy='l2', ends='nearest')",
    "orient:per_channel=true,turn=false": "OrientationReorder(per_channel=True, turn=False)",
    "unroll:radii=5,angles=12,reach=3.5,about=centroid": "Unroll(radii=5, angles=12, reach=3.5, about='centroid')",
}
each_layer = pytest.mark.parametrize("text", LAYERS)


def test_every_layer_is_tested_here():
    assert [type(create_layer(text)) for text in LAYERS] == list(LAYER_TYPES.values())


@each_layer
def test_copies_pickles_and_prints(text):
    layer, x = create_layer(text), torch.rand(2, 4, 8, 8)
    for other in (layer, copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert repr(other) == LAYERS[text]
        assert torch.equal(other(x), layer(x))
    assert repr(type(layer)()) == f"{type(layer).__name__}()"
    assert layer.state_dict() == {}


@each_layer
def test_options_are_arguments_and_attributes(text):
    layer = create_layer(text)
    names = list(layer.options.arguments())
    assert list(inspect.signature(type(layer)).parameters) == names
    assert {name: getattr(layer, name) for name in names} == layer.options.arguments()
    assert type(layer)(*layer.options.arguments().values()).options == layer.options  # by position
    for name in names:
        assert f"    {name}: " in type(layer).__doc__
        assert f"    {name}: " in type(layer).function.__doc__
        with pytest.raises(AttributeError):
            setattr(layer, name, 3)


@each_layer
def test_the_function_is_public_and_does_the_same(text):
    layer, x = create_layer(text), torch.rand(2, 4, 8, 8)
    function = getattr(patchreorder, type(layer).function.__name__)
    assert function is type(layer).function
    assert getattr(patchreorder, type(layer).__name__) is type(layer)
    assert torch.equal(function(x, **layer.options.arguments()), layer(x))
    assert function(x.to("meta"), **layer.options.arguments()).shape == layer(x).shape


@each_layer
def test_a_symbolic_trace_has_one_node(text):
    model, x = nn.Sequential(nn.ReLU(), create_layer(text)), torch.randn(2, 4, 8, 8)
    traced = torch.fx.symbolic_trace(model)
    (node,) = (node for node in traced.graph.nodes if node.op == "call_function")
    assert node.target is type(model[1]).function
    for each in (traced, pickle.loads(pickle.dumps(traced)), copy.deepcopy(traced)):
        assert torch.equal(each(x), model(x))


def test_unknown_options_are_named():
    for kind in LAYER_TYPES.values():
        with pytest.raises(TypeError, match="unexpected keyword argument 'colour'"):
            kind(colour=1)
