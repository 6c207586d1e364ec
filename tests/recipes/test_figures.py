"""The paper's figures: what is measured for them has known answers, and what is drawn is well-formed and escaped."""

import base64
import math
import re
from collections import OrderedDict

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from patchreorder import PatchReorder, recipes
from patchreorder.__main__ import main
from patchreorder.data.generated import write_photos
from patchreorder.engine import checkpoint, memory
from patchreorder.laboratory import recipe as spec
from patchreorder.laboratory import rows, subjects
from patchreorder.laboratory.recipe import Means
from patchreorder.laboratory.rows import read as read_rows
from patchreorder.laboratory.subjects import Plan, stages
from patchreorder.laboratory.trained import load_trained
from patchreorder.metrics.propagation import propagated_fraction
from patchreorder.metrics.redundancy import neuron_similarity, position_similarity
from patchreorder.models import create_model
from patchreorder.recipes import fig_featuremaps, fig_propagation
from patchreorder.report import figures
from patchreorder.report.folder import load
from tests.recipes.test_table3 import trained


def job_of(name: str, tmp_path, *, row: str, column: str, plan, means: Means | None = None, data=None) -> spec.Job:
    recipe = recipes.load(name)
    cell = rows.Cell(name, row, column, "made up", "test", 0, "0" * 8)
    own = next(one for one in recipe.rows if one.name == row)
    of = next(one for one in recipe.columns if one.name == column)
    return spec.Job(cell, own, of, plan, tmp_path, data, spec.World(), spec.Screen(), False, means or Means())


# ---- propagation -----------------------------------------------------------------------------------


def followed(monkeypatch, tmp_path, model: nn.Module, images: torch.Tensor) -> dict[str, fig_propagation.Found]:
    """What is found for a hand-made network of one convolution."""

    class Data:
        def __len__(self):
            return len(images)

        def batch(self, indices, *, epoch=0):
            return images[indices], torch.zeros(len(indices), dtype=torch.int64)

    monkeypatch.setattr(subjects, "images", lambda job: Data())
    job = job_of("fig_propagation", tmp_path, row="cnn", column="conv1", plan=Plan(of="mnist"))
    return fig_propagation.follow(job, model.eval())


def network(*, stride: int, behind: nn.Module | None = None) -> nn.Module:
    convolution = nn.Conv2d(1, 3, 1, stride=stride, bias=False)
    convolution.weight.data = torch.tensor([1.0, -2.0, 0.5]).view(3, 1, 1, 1)
    last = behind or nn.Identity()
    side = 50 // stride
    layers = OrderedDict(conv1=convolution, last=last, flatten=nn.Flatten(), classifier=nn.Linear(3 * side * side, 2))
    return nn.Sequential(layers)


@pytest.mark.parametrize("stride", [1, 2])
def test_all_of_a_shift_arrives_divided_by_the_stride(monkeypatch, tmp_path, stride):
    images = torch.zeros(2, 1, 50, 50)
    images[:, :, 15:35, 15:35] = torch.rand(2, 1, 10, 10).repeat_interleave(2, 2).repeat_interleave(2, 3)
    found = followed(monkeypatch, tmp_path, network(stride=stride), images)
    for layer in ("conv1", "maps"):
        assert found[layer].stride == stride
        assert found[layer].shifts == [-10, -8, -6, -4, -2, 0, 2, 4, 6, 8, 10]
        assert found[layer].moved == pytest.approx(found[layer].shifts)  # in pixels of the image
        assert propagated_fraction(found[layer].shifts, found[layer].moved) == pytest.approx(1)
        assert found[layer].correlation == pytest.approx(1, abs=1e-4)


def test_nothing_of_a_shift_arrives_behind_sorted_pixels(monkeypatch, tmp_path):
    images = torch.zeros(2, 1, 50, 50)
    images[:, :, 15:35, 15:35] = torch.rand(2, 1, 20, 20)
    found = followed(monkeypatch, tmp_path, network(stride=1, behind=PatchReorder(grid="pixels")), images)
    assert propagated_fraction(found["conv1"].shifts, found["conv1"].moved) == pytest.approx(1)
    assert found["maps"].moved == [0] * 11


# ---- networks, images, layers ----------------------------------------------------------------------


def test_the_ends_of_layers_are_those_of_the_paper():
    alexnet = {"conv1": 4, "pool1": 8, "conv2": 8, "pool2": 16, "conv3": 16, "conv4": 16, "conv5": 16, "maps": 32}
    connected = {"fc6": 0, "fc7": 0, "fc8": 0}
    for options in ({}, {"variant": "torchvision"}, {"place": "pool5", "grid": "pixels", "levels": 1}):
        model = create_model("alexnet_pr", width=4, classes=3, **options)
        assert {name: stage.stride for name, stage in stages(model).items()} == alexnet | connected
    seen = {}
    stage = stages(model)["maps"]
    model.get_submodule(stage.module).register_forward_hook(lambda module, given, said: seen.update(said=said))
    model.flatten.register_forward_hook(lambda module, given, said: seen.update(given=given[0]))
    model(torch.rand(1, 3, 224, 224))
    assert torch.equal(seen["said"], seen["given"])
    assert list(stages(create_model("st_cnn", dataset="mnist-t"))) == ["conv1", "pool1", "conv2", "maps", "classifier"]
    cifar = {name: stage.stride for name, stage in stages(create_model("cifar_st")).items()}
    assert cifar == {name: stride // 4 for name, stride in alexnet.items()} | connected


def test_networks_of_all_tables_are_found_again(tmp_path):
    for recipe, network, column, model in (
        ("table2_cifar10", "pr_cnn_fine", "all", create_model("cifar_pr_fine")),
        ("table1", "pr_cnn_fine", "T", create_model("pr_cnn_fine", dataset="mnist-t")),
    ):
        cell = [recipe, network, column, "short", "test", 0, "abcdef01"]
        file = tmp_path / recipe / "cells" / ".".join(map(str, cell[1:])) / "weights.safetensors"
        checkpoint.write(file, model.state_dict(), {"cell": cell})
        found = load_trained(tmp_path / recipe, network, recipe=recipe, column=column)
        assert str(found) == str(model)
        assert all(torch.equal(value, model.state_dict()[name]) for name, value in found.state_dict().items())
    with pytest.raises(
        ValueError, match=r"run table1 --setting short --rows cnn --columns R --seeds 3 --out .*trains it"
    ):
        load_trained(tmp_path, "cnn", recipe="table1", column="R", seed=3)
    with pytest.raises(ValueError, match=r"run table2 --setting paper --rows cnn --seeds 0"):
        load_trained(tmp_path, "cnn", setting="paper")
    checkpoint.write(file, {}, {"cell": ["ablations", *cell[1:]]})
    with pytest.raises(ValueError, match=r"is of ablations, of which no networks are read"):
        load_trained(tmp_path / "table1", "pr_cnn_fine", column="T")


def test_what_a_setting_needs_is_asked_for(tmp_path):
    for setting, table in (("trained", "table1"), ("cifar10", "table2_cifar10"), ("paper", "table2")):
        with pytest.raises(ValueError, match=rf"CNN needs --trained DIR, .* `patchreorder run {table} --setting "):
            spec.run(recipes.load("fig-invariance"), out=tmp_path, setting=setting)
    torch.save(trained(tmp_path / "run", "cnn").state_dict(), tmp_path / "conv.pt")
    means = Means(trained=tmp_path / "run", weights=tmp_path / "conv.pt")
    with pytest.raises(ValueError, match=r"fig_invariance needs --data DIR here, a folder with train/CLASS"):
        spec.run(recipes.load("fig-invariance"), out=tmp_path, setting="grocery", means=means)
    for change in ({"lr": 1}, {"images": 0}, {"images": 1.5}):
        with pytest.raises(ValueError, match=r"change \(.*\) must be images=N: nothing is trained here"):
            list(spec.cells(recipes.load("fig_propagation"), change=change))
    with pytest.raises(ValueError, match=r"split \(validation\) must be test"):
        spec.run(recipes.load("fig-invariance"), out=tmp_path, setting="smoke", split="validation")


def test_photographs_are_spread_over_all_classes(tmp_path):
    for part in ("train", "val"):
        write_photos(tmp_path / part, classes=4, images=3)
    job = job_of(
        "fig_invariance", tmp_path, row="cnn", column="rotation", plan=Plan(of="grocery", images=4), data=tmp_path
    )
    data = subjects.images(job)
    images, labels = data.batch(torch.arange(4))
    assert labels.tolist() == [0, 1, 2, 3]
    assert images.shape == (4, 3, 224, 224)
    assert subjects.identify(tmp_path, job.plan, "test") != subjects.identify(None, job.plan, "test") == ""


def test_a_setting_has_only_its_columns():
    recipe = recipes.load("fig_propagation")
    cells = {cell.column for cell, *_ in spec.cells(recipe, setting="short")}
    assert cells == {"conv1", "conv2", "maps"}
    with pytest.raises(ValueError, match=r"columns \('conv5'\) must be among conv1, conv2, maps"):
        list(spec.cells(recipe, setting="short", columns=["conv5"]))


# ---- cells -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("setting", ["mnist_r", "mnist_t"])
def test_redundancy_of_the_shipped_networks(tmp_path, setting):
    spec.run(recipes.load("fig_redundancy"), out=tmp_path, setting=setting, rows=["cnn", "st_cnn"])
    rows = {(row.row, row.column): row for row in read_rows(tmp_path / "fig_redundancy.jsonl").results}
    assert len(rows) == 4
    for network in ("cnn", "st_cnn"):
        model = create_model(network, dataset=setting.replace("_", "-"), pretrained=True)
        weight = model.state_dict()["classifier.weight" if network == "cnn" else "cnn.classifier.weight"]
        places = weight.shape[1] // 64
        assert rows[network, "fc6_places"].value == position_similarity(weight, maps=64).mean_magnitude
        assert rows[network, "fc6_places"].n == 10 * math.comb(places, 2)
        assert rows[network, "fc6"].value == neuron_similarity(weight).mean_magnitude
        assert rows[network, "fc6"].details["chance"] == pytest.approx((2 / (math.pi * len(weight[0]))) ** 0.5)
        assert re.fullmatch("[0-9a-f]{8}", rows[network, "fc6"].details["weights"])
    fingerprints = {row.details["weights"] for row in rows.values()}
    assert len(fingerprints) == 2


def test_invariance_of_the_smoke_form_has_a_score_for_every_layer(tmp_path):
    spec.run(recipes.load("fig_invariance"), out=tmp_path, setting="smoke", rows=["pr_cnn"])
    for row in read_rows(tmp_path / "fig_invariance.jsonl").results:
        curve = dict(row.curves["invariance score"])
        assert row.details["layers"][-4:] == ["maps", "fc6", "fc7", "fc8"]
        assert len(curve) == len(row.details["layers"]) == 11
        assert row.value == curve[row.details["layers"].index("maps")]
        assert row.details["poses"] == {"rotation": 11, "translation": 21}[row.column]
        assert all(0 < score <= row.details["ceiling"] == 10 for score in curve.values())


def test_the_picture_of_maps_shows_the_strongest_of_both(tmp_path):
    spec.run(recipes.load("fig_featuremaps"), out=tmp_path, setting="smoke", rows=["pr_after"], columns=["shifted"])
    (row,) = read_rows(tmp_path / "fig_featuremaps.jsonl").results
    with Image.open(tmp_path / "pictures" / f"{row.cell.folder}.png") as images:
        assert images.size == (64, 32)
    with Image.open(tmp_path / "pictures" / f"{row.cell.folder}.maps.png") as maps:
        assert maps.size == (12 * 8, 8)
    assert 0 < row.value <= 1
    shown = torch.zeros(2, 9, 3, 3)
    shown[0, 4], shown[1, 4] = 1.0, 0.5
    strip = np.asarray(Image.open(_bytes(fig_featuremaps._tiles(shown))))
    assert strip.shape == (3, 36, 3)
    assert tuple(strip[0, 0]) == fig_featuremaps.COLOURS[-1]
    assert tuple(strip[0, 3]) == fig_featuremaps.COLOURS[0]  # all other maps are empty
    assert tuple(strip[0, 18]) not in (fig_featuremaps.COLOURS[0], fig_featuremaps.COLOURS[-1])


def _bytes(content: bytes):
    import io

    return io.BytesIO(content)


# ---- drawing ---------------------------------------------------------------------------------------


def test_tiles_of_maps_that_cannot_be_read_are_left_out(tmp_path):
    spec.run(recipes.load("fig_featuremaps"), out=tmp_path, setting="smoke", rows=["pr_before", "pr_after"])
    (recipe,) = load(tmp_path)
    (table,) = recipe.tables
    svg = figures.draw_figure(table).svg
    assert len(re.findall(r'<image xlink:href="data:image/png;base64,', svg)) == 2 * (2 + 2 * 2)
    assert svg.count("mean of 10 images") == 4
    for file in (tmp_path / "pictures").glob("pr_after*.maps.png"):
        file.write_bytes(b"\x89PNG\r\n\x1a\n")
    assert figures.draw_figure(table).svg.count("mean of 10 images") == 2
    for file in (tmp_path / "pictures").glob("*"):
        file.unlink()
    assert figures.draw_figure(table) is None


def test_the_command_with_a_hyphen_writes_the_figure_and_the_page_shows_it(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(memory, "keep_freed_memory", lambda: None)
    monkeypatch.setenv("COLUMNS", "300")
    out = tmp_path / "out"
    main(["run", "fig-redundancy", "--setting", "mnist_r", "--threads", "1", "--out", str(out)])
    assert f"Figure: {out / 'fig_redundancy.mnist_r.svg'}" in capsys.readouterr().out.replace("\n", "")
    drawn = (out / "fig_redundancy.mnist_r.svg").read_text(encoding="utf-8")
    assert ">fc6, places (60 pairs)</text>" in drawn
    assert ">Made by: patchreorder run fig_redundancy --setting mnist_r. " in drawn
    main(["report", str(out), "--out", str(tmp_path / "page.html"), "--quiet"])
    assert (tmp_path / "fig_redundancy.mnist_r.svg").read_text(encoding="utf-8") == drawn
    html = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert base64.b64encode(drawn.encode()).decode() in html
