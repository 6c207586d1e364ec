"""The task of networks with their own classifiers: views, their answers together, and what changes nothing."""

import pytest
import torch

from patchreorder import recipes
from patchreorder.data.generated import write_photos
from patchreorder.data.photos import Photos, open_source
from patchreorder.data.poses import UPRIGHT, Pose
from patchreorder.laboratory.cells import jobs
from patchreorder.laboratory.pretrained import SMOKE, PosedAgain, PretrainedTask, combine
from patchreorder.laboratory.run import run
from patchreorder.layers.patch_reorder import PatchReorder
from patchreorder.models.backbones import imagenet_classifier
from patchreorder.surgery.insertion import insert_after

pytestmark = pytest.mark.usefixtures("one_thread")

RECIPE = recipes.load("imagenet_today")
SQUARE = (SMOKE + 32, SMOKE + 32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_photos(tmp_path_factory.mktemp("photos"), classes=3, images=2, size=SQUARE)


def photos(folder, view):
    source = open_source(folder)
    return Photos(source, torch.arange(len(source)), view, size=SMOKE, short=SMOKE + 32)


def measured(folder, out, task=None, **which):
    """The cells of smoke on these photographs, by row and column."""
    task = task or PretrainedTask()
    found = {}
    for job in jobs(RECIPE, task, out=out, setting="smoke", data=folder, **which):
        found[job.cell.row, job.cell.column] = task.measure(job)
    return found


@pytest.mark.parametrize("view", ["Ori", "R", "T", "any"])
def test_without_another_pose_photographs_are_those_of_the_view(folder, view):
    own, every = photos(folder, view), torch.arange(6)
    assert torch.equal(PosedAgain(own, UPRIGHT).batch(every), own.batch(every)[0])


def test_a_quarter_turn_of_a_square_photograph_turns_its_crop(folder):
    own, every = photos(folder, "Ori"), torch.arange(6)
    turned = PosedAgain(own, Pose(degrees=90.0)).batch(every)
    torch.testing.assert_close(turned, own.batch(every)[0].rot90(1, (2, 3)), atol=1, rtol=0)


def test_a_view_is_a_rotation_of_the_posed_photograph(folder):
    """Rotated as the view R says and then back, the middle is the photograph again, though blurred."""
    own, every = photos(folder, "any"), torch.arange(6)
    degrees = [own.numbers(0)[index, 0].item() * 360 for index in range(6)]
    upright = photos(folder, "Ori").batch(every)[0].float()
    for index, angle in enumerate(degrees):
        back = PosedAgain(own, Pose(degrees=-angle)).batch(torch.tensor([index]))[0].float()
        middle = slice(SMOKE // 4, -SMOKE // 4)
        away = (back - upright[index])[:, middle, middle].abs().mean().item()
        turned = (own.batch(torch.tensor([index]))[0][0].float() - upright[index])[:, middle, middle].abs().mean()
        assert away < 8
        assert away < 0.5 * turned.item() or turned < 1, index


def test_answers_of_views_are_averaged(folder, tmp_path):
    found = measured(folder, tmp_path, rows=["quarters", "surest"], columns=["any", "any5"])
    torch.manual_seed(0)
    network = imagenet_classifier("efficientnet_lite0", trained=False).eval()
    own, every = photos(folder, "any"), torch.arange(6)
    with torch.inference_mode():
        views = [
            network(PosedAgain(own, Pose(degrees=turn)).batch(every).float() / 255).softmax(1)
            for turn in (0.0, 90.0, 180.0, 270.0)
        ]
    scores = torch.stack(views).mean(0)
    best = scores.topk(5).indices
    right = best == own.labels[:, None]
    row = found["quarters", "any"]
    assert row.value == pytest.approx(100 * right[:, 0].float().mean().item())
    assert row.answers == [best[index, 0].item() for index in row.errors]
    assert found["quarters", "any5"].value == pytest.approx(100 * right.any(1).float().mean().item())
    assert row.details["low"] <= row.value <= row.details["high"]


def test_the_surest_view_decides_alone():
    views = torch.tensor([[[0.5, 0.3, 0.2], [0.2, 0.5, 0.3]], [[0.1, 0.8, 0.1], [0.4, 0.3, 0.3]]])
    assert combine(views, "confident").argmax(1).tolist() == [1, 1]
    assert combine(views, "mean")[0].tolist() == pytest.approx([0.3, 0.55, 0.15])
    with pytest.raises(ValueError, match=r"combine \('best'\) must be one of mean, confident"):
        combine(views, "best")


def test_a_view_is_computed_once_for_all_rows(folder, tmp_path, monkeypatch):
    calls = []
    batch = PosedAgain.batch
    monkeypatch.setattr(PosedAgain, "batch", lambda self, indices: calls.append(self.pose) or batch(self, indices))
    rows = ["lite0", "quarters", "surest", "lite0_align"]
    run(RECIPE, out=tmp_path, setting="smoke", data=folder, rows=rows, columns=["Ori", "Ori5"])
    assert [pose.degrees for pose in calls] == [0.0, 90.0, 180.0, 270.0, 45.0, 135.0, 225.0, 315.0, 0.0]


def test_layers_stand_behind_the_normalisation_and_strides_are_smoothed(folder, tmp_path):
    task = PretrainedTask()
    for job in jobs(RECIPE, task, out=tmp_path, setting="smoke", rows=["lite0_pose", "lite0_smooth"], columns=["Ori"]):
        names = [type(module).__name__ for module in task.opened_network(job).modules()]
        if job.cell.row == "lite0_pose":
            assert names.index("Normalise") < names.index("PoseAlign") < names.index("SameConv2d")
        else:
            assert names.count("SmoothConv2d") == 5


def test_reordering_before_the_average_changes_no_answer():
    """As the recipe says. Sums of the same values in another order differ in the last bits."""
    torch.manual_seed(0)
    network = imagenet_classifier("mobilenet_v2", trained=False).eval()
    torch.manual_seed(0)
    reordered = imagenet_classifier("mobilenet_v2", trained=False).eval()
    reordered = insert_after(reordered, "relu2", PatchReorder(grid="pixels"))
    images = torch.rand(2, 3, SMOKE, SMOKE)
    with torch.inference_mode():
        torch.testing.assert_close(network(images), reordered(images))


def test_folders_that_are_not_imagenet_are_refused(folder, tmp_path):
    which = {"out": tmp_path, "rows": ["lite0"], "columns": ["Ori"]}
    with pytest.raises(ValueError, match="3 class folders: EfficientNet-lite0 needs those of all 1000 classes"):
        run(RECIPE, setting="short", data=folder, **which)
    with pytest.raises(ValueError, match="imagenet_today needs --data DIR"):
        run(RECIPE, setting="short", **which)


def test_the_photographs_decide_about_a_cell(folder, tmp_path):
    other = write_photos(tmp_path / "other", classes=3, images=3, size=SQUARE)
    hashes = set()
    for data in (folder, other):
        (job,) = jobs(RECIPE, PretrainedTask(), out=tmp_path, rows=["lite0"], columns=["Ori"], data=data)
        hashes.add(job.cell.settings)
    assert len(hashes) == 2
