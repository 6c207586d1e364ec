"""Networks for Tiny-ImageNet: parameters, places, and what reordering makes them blind to."""

import pytest
import torch
from torch import nn

from patchreorder.layers.patch_reorder import PatchReorder
from patchreorder.models import count_parameters, create_model
from patchreorder.models.rotation_conv import ANGLES_WITH_IDENTITY, RotationConv2d

QUANTILES = "ranked:quantiles=4"
BROAD = (256, 256, 192)
THREE = {"layer": QUANTILES, "place": "conv3+conv4+conv5"}


@pytest.mark.parametrize(
    ("name", "options", "most"),
    [
        ("tiny_pr", {}, 0),
        ("tiny_pr_fine", {}, 0),
        ("tiny_si", {}, 0),
        ("tiny_gap", {}, 2000),
        ("tiny_gap", {"filters": BROAD}, 2000),
        ("tiny_pr", {"layer": QUANTILES, "filters": BROAD}, 2000),
        ("tiny_pr", THREE, 2000),
    ],
)
def test_networks_have_the_parameters_of_the_cnn(name, options, most):
    """None more or less where the shapes are the same; otherwise the width of the connected layers comes nearest."""
    with torch.device("meta"):
        wanted = count_parameters(create_model("tiny_cnn"))
        assert wanted == 2_013_560
        assert abs(count_parameters(create_model(name, **options)) - wanted) <= most


def test_the_transformer_is_what_st_adds():
    with torch.device("meta"):
        transformed = create_model("tiny_st")
        own = count_parameters(transformed.get_submodule("transformer"))
        assert count_parameters(transformed) == count_parameters(create_model("tiny_cnn")) + own
        assert own == 51_686


def test_the_same_seed_gives_the_same_convolutions_to_every_row():
    wanted = seeded("tiny_cnn").get_submodule("conv4").weight
    for name in ("tiny_pr", "tiny_pr_fine", "tiny_st", "tiny_si"):
        assert torch.equal(seeded(name).get_submodule("conv4").weight, wanted), name


def seeded(name, **options):
    torch.manual_seed(0)
    return create_model(name, **options).eval()


def test_reordering_stands_where_the_paper_has_it():
    names = [name for name, _ in create_model("tiny_pr").named_children()]
    assert names[names.index("conv5") :][:6] == ["conv5", "norm5", "relu5", "reorder", "pool5", "flatten"]
    reorder = create_model("tiny_pr").get_submodule("reorder")
    assert isinstance(reorder, PatchReorder)
    assert (reorder.options.grid, reorder.options.levels) == (2, 2)
    names = [name for name, _ in create_model("tiny_pr_fine").named_children()]
    assert names[names.index("conv5") :][:6] == ["conv5", "norm5", "pool5", "relu5", "reorder", "flatten"]


def test_sorted_layers_do_not_see_where_things_are():
    """Maps of several layers whose pixels change places give the same answers; those of the CNN do not."""
    torch.manual_seed(0)
    maps = {f"relu{number}": torch.rand(1, filters, 8, 8) for number, filters in ((3, 160), (4, 160), (5, 128))}
    turned = {layer: values.rot90(1, (2, 3)) for layer, values in maps.items()}
    for name, options, same in (("tiny_pr", THREE, True), ("tiny_cnn", {}, False)):
        model = seeded(name, **options)
        assert torch.allclose(answer(model, maps), answer(model, turned), atol=1e-5) == same, name


def answer(model, maps):
    """The logits where these are the outputs of some layers; behind a pool, pooled."""
    hooks = []
    for layer, values in maps.items():

        def replace(module, given, output, values=values):
            return values if values.shape == output.shape else nn.functional.max_pool2d(values, 2)

        inside = "features." if hasattr(model, "features") else ""
        hooks.append(model.get_submodule(f"{inside}{layer}").register_forward_hook(replace))
    logits = model(torch.zeros(1, 3, 64, 64))
    for hook in hooks:
        hook.remove()
    return logits


def test_every_network_learns_in_bfloat16():
    images, labels = torch.rand(4, 3, 64, 64), torch.tensor([0, 1, 2, 199])
    for name, options in (("tiny_pr", {}), ("tiny_pr", THREE), ("tiny_st", {}), ("tiny_si", {})):
        model = seeded(name, **options).train()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = model(images)
        nn.functional.cross_entropy(logits.float(), labels).backward()
        for parameter, value in model.named_parameters():
            assert value.grad is not None, (name, parameter)
            assert value.grad.isfinite().all()


def test_rotated_filters_have_the_identity_among_them():
    model = create_model("tiny_si")
    rotated = [name for name, module in model.named_children() if isinstance(module, RotationConv2d)]
    assert rotated == ["conv1", "conv2", "conv5"]
    assert 0.0 in ANGLES_WITH_IDENTITY
    assert len(ANGLES_WITH_IDENTITY) == 6
    assert max(min(abs(angle - own) for own in ANGLES_WITH_IDENTITY) for angle in range(-90, 91)) == 18
    digits = create_model("si_cnn", dataset="mnist-r", identity=True)
    assert digits.get_submodule("conv1").angles == ANGLES_WITH_IDENTITY
    assert 0.0 not in create_model("si_cnn", dataset="mnist-r").get_submodule("conv1").angles


def test_arguments_that_do_not_fit_are_named():
    for options, message in (
        ({"place": "conv1"}, "place .'conv1'. must be one of conv3"),
        ({"place": "conv3+conv3", "layer": QUANTILES}, "must join different ones"),
        ({"place": "conv3+conv4"}, "give the layer by name"),
        ({"place": "conv3+conv4", "layer": "align"}, "gives maps"),
        ({"filters": (9, 9)}, "filters .* must be 1 or more, of conv3"),
        ({"filters": (512, 512, 512)}, "more parameters than the whole CNN"),
        ({"colour": 1}, "do not fit tiny_pr|colour"),
    ):
        with pytest.raises(ValueError, match=message):
            create_model("tiny_pr", **options)
    with pytest.raises(ValueError, match=r"dataset .'cifar10'. must be one of tiny"):
        create_model("tiny_cnn", dataset="cifar10")
