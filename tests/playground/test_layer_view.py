"""The view of the layer: what `patch_reorder` does to the maps of PR-CNN."""

import numpy as np
import pytest
import torch

from patchreorder import create_model, patch_reorder
from patchreorder.operator.functional import PatchReorderOptions
from patchreorder.playground.digits import samples
from patchreorder.playground.layer_view import CHANNELS
from patchreorder.playground.networks import pose_digit
from patchreorder.playground.requests import DigitPose

from .images import from_base64


def test_the_view_is_what_the_operator_does(models):
    digit, pose, options = samples()[2], DigitPose(60, 3, -4), PatchReorderOptions(grid=2, levels=2)
    view = models.answer(digit, pose, "mnist-t", options)["layer"]
    model = create_model("pr_cnn", dataset="mnist-t", pretrained=True).eval()
    with torch.inference_mode():
        maps = model[:5](pose_digit(digit, [DigitPose(), pose], "mnist-t"))  # up to the second ReLU
        after, order = patch_reorder(maps, grid=2, levels=2, return_order=True)
    chosen = view["channels"]
    assert len(chosen) == CHANNELS
    strength = maps.square().sum((2, 3)).prod(0)
    assert strength[chosen].min() >= np.sort(strength.numpy())[-CHANNELS]
    assert view["strongest"] == int(strength.argmax())
    assert torch.equal(order[1, chosen].flatten(1).long(), torch.tensor(view["order"]))
    for number, name in enumerate(("upright", "posed")):
        for kind, wanted in (("before", maps), ("after", after)):
            found = from_base64(view[name][kind]).reshape(CHANNELS, 11, 11).astype(float)
            scale = maps[:, chosen].amax((0, 2, 3)).view(-1, 1, 1)
            assert np.abs(found - (255 * wanted[number, chosen] / scale).numpy()).max() <= 1
    cosine = torch.nn.functional.cosine_similarity
    for kind, wanted in (("before", maps), ("after", after)):
        assert view["similarity"][kind] == pytest.approx(float(cosine(*wanted.flatten(1), dim=0)), abs=1e-3)
    energy = maps[1, chosen[0], :8, :8].reshape(4, 2, 4, 2).square().sum((1, 3)).flatten()
    assert view["energy"][0] == pytest.approx(energy.tolist(), rel=0.01, abs=1e-6)


def test_joint_ranking_has_one_order_for_all_maps(models):
    view = models.answer(samples()[2], DigitPose(20), "mnist-r", PatchReorderOptions(per_channel=False))["layer"]
    assert [len(view[name]) for name in ("order", "energy")] == [1, 1]
    energies = [view["energy"][0][source] for source in view["order"][0]]
    assert energies == sorted(energies, reverse=True)
