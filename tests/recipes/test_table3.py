"""Table 3: rows that can be compared, fully connected layers of trained networks."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from patchreorder import files, recipes
from patchreorder.__main__ import main
from patchreorder.data import viewpoints, weights
from patchreorder.data.generated import write_photos, write_ukbench
from patchreorder.data.ukbench import UKBench
from patchreorder.engine import checkpoint, memory
from patchreorder.engine.distributed import World
from patchreorder.laboratory import recipe as spec
from patchreorder.laboratory import retrieval
from patchreorder.laboratory.recipe import Means
from patchreorder.laboratory.rows import read as read_rows
from patchreorder.metrics.retrieval import ns_score
from patchreorder.models import alexnet, create_model
from patchreorder.search.describe import describe, fingerprint, for_inference
from patchreorder.search.descriptors import DESCRIPTORS, Descriptor, backbone_of, create_descriptor
from tests.oracle import normalise

pytestmark = pytest.mark.usefixtures("one_thread")

TABLE3 = recipes.load("table3")
RESULTS = Path(__file__).parents[2] / "results"


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    return write_ukbench(tmp_path_factory.mktemp("photos"), groups=3)


# ---- the recipe ------------------------------------------------------------------------------------


def test_every_descriptor_is_a_row_and_is_compared_with_the_global_average():
    rows = {row.name: row for row in TABLE3.rows}
    named = {row.model for row in TABLE3.rows if "layer" not in row.options and not {":", "@"} & {*row.model}}
    assert named == set(DESCRIPTORS)
    for name in TABLE3.settings["short"].rows:
        assert (name, f"{backbone_of(rows[name].model)}_gap") in TABLE3.compare or name.endswith("_gap")
    assert {name for each in ("short", "candidates", "views", "trained") for name in TABLE3.settings[each].rows} == set(
        rows
    )


def test_rows_of_several_layers_are_compared():
    """Ranked and averaged: the same layers, and no pair twice."""
    rows = {row.name: row for row in TABLE3.rows}
    assert len(set(TABLE3.compare)) == len(TABLE3.compare)
    shares = "ranked:smooth=3,stride=2,quantiles=4,weights=-0.5"
    for name, layers in (("alexnet_layers", "@conv1+conv3+conv5"), ("alexnet_layers15", "@conv1+conv5")):
        assert rows[name].model == f"alexnet{layers}/{shares}"
        assert rows[f"{name}_gap"].model == f"alexnet{layers}/gap"
        assert {(name, f"{name}_gap"), (name, "alexnet_gap"), (f"{name}_gap", "alexnet_gap")} <= set(TABLE3.compare)
    assert rows["alexnet_shares4"].model == f"alexnet/{shares}"
    assert {("alexnet_layers", f"alexnet_{other}") for other in ("gem", "rmac", "weighted")} <= set(TABLE3.compare)
    of_layers = {name for name in rows if name.startswith("alexnet_layers")}
    assert of_layers & set(TABLE3.settings["smoke"].rows) == {"alexnet_layers"}
    assert of_layers & set(TABLE3.settings["short"].rows) == {"alexnet_layers", "alexnet_layers_gap"}
    assert of_layers < set(TABLE3.settings["candidates"].rows)


def test_committed_rows_are_still_cells_of_the_recipe(monkeypatch):
    """A row counts for a cell only if its settings are the same."""
    committed = read_rows(RESULTS / "table3.jsonl").results
    names = [f"ukbench{number:05}.jpg" for number in range(1000)]
    recipe = dataclasses.replace(TABLE3, identify=lambda data, plan, split: files.digest(names))
    cells = {cell for setting in TABLE3.settings for cell, *_ in spec.cells(recipe, setting=setting)}
    found = [result for result in committed if result.split == "test" and "," not in result.setting]
    assert len(found) > 50
    assert all(result.cell in cells for result in found)


def test_the_papers_rows_are_there():
    """Table 3 of the paper: five networks, two layers; fc7 is better for all but PR-CNN."""
    assert len(TABLE3.paper) == 10
    assert set(TABLE3.paper) <= set(TABLE3.settings["trained"].rows)
    score = {name: of["Ori"] for name, of in TABLE3.paper.items()}
    assert {name[:-4] for name in score if score[name[:-1] + "6"] > score[name[:-1] + "7"]} == {"pr_cnn"}
    for name in TABLE3.settings["trained"].rows:
        network, layer = name[:-4], name[-3:]
        assert (f"{network}_fc6", f"{network}_fc7") in TABLE3.compare
        assert network == "cnn" or (name, f"cnn_{layer}") in TABLE3.compare


def test_a_row_holds_the_score_of_every_query(photos, tmp_path):
    (photos / "notes.txt").write_text("x")
    said = []
    screen = spec.Screen()
    screen.say = said.append
    options = {"setting": "smoke", "rows": ["alexnet_gap"], "columns": ["Ori", "mixed"]}
    spec.run(TABLE3, out=tmp_path, data=photos, screen=screen, **options)
    assert [line for line in said if "notes" in line] == ["no images of UK-Bench, left out: 1 files (notes.txt)"]
    rows = read_rows(tmp_path / "table3.jsonl").results
    torch.manual_seed(0)
    model = create_descriptor("alexnet/gap")
    for row in rows:
        data = UKBench.open(photos, view=row.column)
        counts, mean = ns_score(describe(model, data), data.groups)
        assert row.details["scores"] == counts.tolist()
        assert (row.value, row.n, row.steps, row.metric) == (mean, 12, 0, "NS-score")
        assert (row.details["together"], row.details["groups"], row.details["dimensions"]) == (4, 3, 256)
    assert len(rows) == 2


def test_every_seed_draws_turns_and_shifts_of_its_own(photos, tmp_path):
    recipe = dataclasses.replace(
        TABLE3,
        settings={
            "draws": dataclasses.replace(
                TABLE3.settings["draws"], plan=lambda row, column: retrieval.Drawn(generated=True)
            ),
            "smoke": TABLE3.settings["smoke"],
        },
    )
    seen: dict[int, list[bytes]] = {}
    measure = retrieval.Measure()

    def watched(job):
        (images,) = measure.galleries(job)
        seen[job.cell.seed] = [image.numpy().tobytes() for image in images.batch(torch.arange(12))[0]]
        return measure(job)

    recipe = dataclasses.replace(recipe, measure=watched)
    spec.run(recipe, out=tmp_path, data=photos, setting="draws", rows=["alexnet_gap"], columns=["T"], seeds=[0, 1, 2])
    assert all(len({drawn[place] for drawn in seen.values()}) == 3 for place in range(12))
    shown = UKBench.open(photos, view="T").batch(torch.arange(12))[0]
    assert seen[0] == [image.numpy().tobytes() for image in shown]  # the first draw is that of all other settings
    assert len(measure.maps) == 3
    assert tuple(TABLE3.settings["draws"].seeds("alexnet_gap")) == tuple(range(8))


def test_maps_are_computed_once_for_rows_that_share_them(photos, monkeypatch):
    computed = []

    def counted(model, *given, **options):
        if not isinstance(model, Descriptor):  # the part before the pool
            computed.append(model)
        return describe(model, *given, **options)

    monkeypatch.setattr(retrieval, "describe", counted)
    measure, world = retrieval.Measure(), World()
    for name in ("alexnet/gap", "alexnet/pr", "efficientnet/ranked", "alexnet/ranked"):
        torch.manual_seed(1)
        model = for_inference(create_descriptor(name))
        for view in ("Ori", "T"):
            images = UKBench.open(photos, view=view)
            assert torch.equal(measure.features(model, images, world=world), describe(model, images))
    assert len(computed) == 4  # two networks, two views
    torch.manual_seed(2)
    other = for_inference(create_descriptor("alexnet/gap"))
    assert torch.equal(measure.features(other, images, world=world), describe(other, images))
    assert len(computed) == 5  # other weights
    few = images.first(2)
    assert torch.equal(measure.features(other, few, world=world), describe(other, few))
    held = list(measure.maps)
    monkeypatch.setattr(retrieval, "ROOM", 4 * 12 * 256 * 13 * 13)
    monkeypatch.setattr(measure, "maps", dict(measure.maps))
    images = UKBench.open(photos, view="R")
    assert torch.equal(measure.features(other, images, world=world), describe(other, images))
    kept = list(measure.maps)[:-1]
    assert kept
    assert kept == held[-len(kept) :] != held  # the oldest have gone
    assert sum(maps.numel() for maps in measure.maps.values()) <= retrieval.ROOM
    monkeypatch.setattr(retrieval, "ROOM", 4 * 12 * 256 * 13 * 13 - 1)
    computed.clear()
    images = UKBench.open(photos, view="mixed")
    assert torch.equal(measure.features(other, images, world=world), describe(other, images))
    assert not computed  # too large to keep


def test_maps_are_not_shared_by_other_layers_or_pools(photos):
    measure, world, images = retrieval.Measure(), World(), UKBench.open(photos)
    names = ["alexnet/gap", *(f"alexnet@{rest}" for rest in ("conv5/gap", "conv1+conv5/gap", "conv5+conv1/gap"))]
    names += [f"alexnet@conv1+conv5/{pool}" for pool in ("gem", "ranked:keep=1", "ranked:keep=1,weights=2")]
    for name in names:
        torch.manual_seed(1)
        model = for_inference(create_descriptor(name))
        assert torch.equal(measure.features(model, images, world=world), describe(model, images)), name
    assert len(measure.maps) == len(names)


def test_a_row_of_several_layers_takes_the_given_weights(photos, tmp_path, monkeypatch):
    """In the smoke setting they are random."""
    monkeypatch.setattr(weights, "fetch", None)
    torch.manual_seed(4)
    torch.save(create_descriptor("alexnet/gap").maps.state_dict(), tmp_path / "own.pt")
    options = {"rows": ["alexnet_layers"], "columns": ["T"], "data": photos}
    spec.run(TABLE3, out=tmp_path, setting="smoke", **options)
    spec.run(TABLE3, out=tmp_path, setting="short", means=Means(weights=tmp_path / "own.pt"), **options)
    smoke, short = read_rows(tmp_path / "table3.jsonl").results
    data = UKBench.open(photos, view="T")
    for row, seed in ((smoke, 0), (short, 4)):
        torch.manual_seed(seed)
        model = for_inference(
            create_descriptor("alexnet@conv1+conv3+conv5/ranked:smooth=3,stride=2,quantiles=4,weights=-0.5")
        )
        assert row.details["weights"] == fingerprint(model)
        assert row.details["dimensions"] == 4 * (64 + 384 + 256)
        assert row.details["scores"] == ns_score(describe(model, data), data.groups)[0].tolist()


def test_fewer_groups_are_another_setting(photos, tmp_path):
    spec.run(
        TABLE3, out=tmp_path, data=photos, setting="smoke", rows=["alexnet_gap"], columns=["R"], change={"groups": 2}
    )
    (row,) = read_rows(tmp_path / "table3.jsonl").results
    assert (row.setting, row.n) == ("smoke,groups=2", 8)
    with pytest.raises(ValueError, match=r"groups \(2550\) must be from 1 to 3, which there are"):
        spec.run(TABLE3, out=tmp_path, data=photos, setting="paper", means=Means(trained=tmp_path))
    for change in ({"groups": 0}, {"groups": 1.5}, {"lr": 0.1}, {"layer": "fc6"}):
        with pytest.raises(ValueError, match=r"change \(.*\) must be groups=N, or with trained networks layer=NAME"):
            list(spec.cells(TABLE3, change=change))


def test_what_is_missing_is_asked_for(photos, tmp_path):
    one = {"rows": ["cnn_fc6"], "columns": ["Ori"], "setting": "trained", "out": tmp_path}
    with pytest.raises(ValueError, match=r"table3 needs --data DIR, a folder with UK-Bench's files ukbenchNNNNN\.jpg"):
        spec.run(TABLE3, **one)
    with pytest.raises(
        ValueError, match=r"CNN, fc6 needs --trained DIR, the output folder of `patchreorder run table2_grocery --set"
    ):
        spec.run(TABLE3, data=photos, **one)
    with pytest.raises(ValueError, match=r"holds no trained cnn of setting short and seed 0: `patchreorder"):
        spec.run(TABLE3, data=photos, means=Means(trained=tmp_path), **one)
    with pytest.raises(ValueError, match=r"table3 needs --data DIR, class folders"):
        spec.run(TABLE3, split="validation", **one)
    (tmp_path / "none").mkdir()
    with pytest.raises(ValueError, match="holds no such file; expected files"):
        spec.run(TABLE3, data=tmp_path / "none", **one)


def test_settings_are_chosen_on_class_folders(tmp_path):
    """Of every class four photographs are a group, and no class is twice in a gallery."""
    data = folder_of(tmp_path / "data", images=9)
    for file in sorted((data / "train" / "class-0001").iterdir())[6:]:
        file.unlink()
    first, second = UKBench.galleries(data, most=4)
    listed = {name: sorted(f"{name}/{file.name}" for file in (data / "train" / name).iterdir()) for name in NAMED}
    assert first.names == listed["class-0000"][:4] + listed["class-0001"][:4]
    assert second.names == listed["class-0000"][4:8]
    assert first.groups.tolist() == [0] * 4 + [1] * 4
    out = tmp_path / "out"
    cell = {"rows": ["alexnet_gap"], "columns": ["mixed"], "setting": "smoke", "split": "validation"}
    spec.run(TABLE3, out=out, data=data, **cell)
    (row,) = read_rows(out / "table3.jsonl").results
    assert (row.n, row.split, row.details["groups"]) == (12, "validation", 3)
    assert row.details["scores"][8:] == [4] * 4  # nobody else is in the second gallery
    assert row.value == sum(row.details["scores"]) / 12
    with pytest.raises(ValueError, match="has no class with 4 training images"):
        UKBench.galleries(folder_of(tmp_path / "few", images=3), most=1)


def test_settings_are_chosen_on_views_of_one_photograph(tmp_path):
    """A group is four views of a photograph, and no photograph is in two galleries."""
    data = folder_of(tmp_path / "data", images=3)
    first, second = UKBench.viewpoints(data, photographs=3)
    for gallery in (first, second):
        assert gallery.groups.tolist() == [0] * 4 + [1] * 4 + [2] * 4
        views = gallery.batch(torch.arange(12))[0]
        assert len({view.numpy().tobytes() for view in views}) == 12
        assert torch.equal(gallery.batch(torch.tensor([7]))[0], views[7:8])  # whatever else is asked for
        mixed = gallery.with_view("mixed").batch(torch.arange(4))[0]
        for place, view in enumerate(("Ori", "R", "T", "Ori")):
            assert torch.equal(mixed[place : place + 1], gallery.with_view(view).batch(torch.tensor([place]))[0])
    files = [{name.partition("#")[0] for name in gallery.names} for gallery in (first, second)]
    assert [len(each) for each in files] == [3, 3]
    assert not files[0] & files[1]
    plan = retrieval.Viewed(photographs=3, generated=True)
    setting = dataclasses.replace(TABLE3.settings["views"], plan=lambda row, column: plan)
    recipe = dataclasses.replace(TABLE3, settings={"views": setting})
    cell = {"rows": ["alexnet_shares8"], "columns": ["T"], "setting": "views"}
    spec.run(recipe, out=tmp_path / "out", data=data, split="validation", **cell)
    (row,) = read_rows(tmp_path / "out" / "table3.jsonl").results
    assert (row.n, row.details["groups"], row.details["dimensions"]) == (24, 6, 8 * 256)
    with pytest.raises(ValueError, match="add --split validation"):
        spec.run(recipe, out=tmp_path / "out", data=data, **cell)
    with pytest.raises(ValueError, match=r"has 6 training pictures, must have 8 for 2 galleries"):
        UKBench.viewpoints(data, photographs=4)


def test_a_view_of_no_change_is_the_picture():
    pixels = np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype=np.uint8)
    picture = Image.fromarray(pixels)
    numbers = [0.3] * viewpoints.NUMBERS
    still = viewpoints.view_from(picture, numbers, change=viewpoints.Change(1.0, 0, 0, 0))
    assert np.array_equal(np.array(still), pixels)
    # The left upper quarter alone, twice as large; then it all in the middle, on grey.
    numbers[:3] = 0, 0, 0
    pixels[:10, :15] = 200
    part = viewpoints.view_from(Image.fromarray(pixels), numbers, change=viewpoints.Change(0.5, 0, 0, 0))
    assert (np.array(part)[:18, :28] == 200).all()
    small = np.array(viewpoints.view_from(picture, numbers, change=viewpoints.Change(1.0, 0, 0, 0, covered=0.5)))
    around = small.copy()
    around[5:15, 7:22] = round(64 + 128 * 0.3)
    assert (around == round(64 + 128 * 0.3)).all()
    assert small[5:15, 7:22].std() > 20
    turned = viewpoints.view_from(picture, [0.5, 0.5, 0.5, 0.9, *numbers[4:]], change=viewpoints.Change(0.5, 30, 0, 0))
    assert not np.array_equal(np.array(turned), np.array(still))
    dark = viewpoints.view_from(picture, [*numbers[:12], 0, 0, 0, 0.5, 0], change=viewpoints.Change(1.0, 0, 0, 0.1))
    assert np.abs(np.array(dark) - np.array(picture) * np.exp(-0.1)).max() <= 0.5


NAMED = ("class-0000", "class-0001")


def folder_of(root, *, images):
    for part in ("train", "val"):
        write_photos(root / part, classes=len(NAMED), images=images)
    return root


# ---- fully connected layers ------------------------------------------------------------------------


def trained(run, network, *, setting="short", seed=0, recipe="table2_grocery", whole=False, width=12):
    """What a training of a table leaves: the classifier alone, where the convolutions stayed as they are."""
    row = next(row for row in recipes.load(recipe).rows if row.name == network)
    torch.manual_seed(seed + 5)
    model = create_model(row.model, dataset="imagenet", classes=7, width=width, **row.options).eval()
    kept = {name: value for name, value in model.state_dict().items() if whole or name.startswith("classifier.")}
    folder = run / "cells" / f"{network}.all.{setting}.test.{seed}.abcdef01"
    cell = [recipe, network, "Ori", setting, "test", seed, "abcdef01"]
    checkpoint.write(folder / "weights.safetensors", kept, {"cell": cell})
    return model


MODULES = {"fc6": "classifier.2", "fc7": "classifier.5", "pool5": "features.12", "conv5": "features.10"}


@pytest.mark.parametrize(
    ("network", "layer"),
    [("cnn", "fc6"), ("cnn", "fc7"), ("st_cnn", "fc6"), ("pr_cnn", "fc7"), ("pr_cnn_fine", "fc6")]
    + [("cnn", "pool5"), ("cnn", "conv5"), ("cnn", "features.10")],
)
def test_layers_of_a_trained_network(network, layer, tmp_path):
    model = trained(tmp_path, network)
    convolutions = {name: value for name, value in model.state_dict().items() if name.startswith("features.")}
    torch.save(convolutions, tmp_path / "conv.pt")
    found = retrieval.connected(tmp_path, network, layer=layer, weights=tmp_path / "conv.pt")
    seen = {}
    module = model.get_submodule(MODULES.get(layer, layer))
    module.register_forward_hook(lambda module, given, answer: seen.update(answer=answer.flatten(1).clone()))
    images = torch.rand(2, 3, 224, 224)
    with torch.inference_mode():
        model(images)
        torch.testing.assert_close(found(images), normalise(seen["answer"]))
    assert (found.name, found.dimensions) == (f"{network}/{layer}", seen["answer"].shape[1])


def test_the_training_of_the_setting_and_the_seed_is_taken(tmp_path):
    torch.save(trained(tmp_path, "cnn", width=9).state_dict(), tmp_path / "conv.pt")
    fc6 = trained(tmp_path, "cnn", setting="wide").state_dict()["classifier.1.weight"]
    trained(tmp_path, "cnn", seed=1)
    trained(tmp_path, "pr_cnn", setting="short,lr=1")
    found = retrieval.connected(tmp_path, "cnn", layer="fc6", setting="wide", weights=tmp_path / "conv.pt")
    assert torch.equal(found.pool[1].weight, fc6)
    assert retrieval.connected(tmp_path, "cnn", layer="fc6", weights=tmp_path / "conv.pt").dimensions == 9
    for network, seed in (("cnn", 2), ("pr_cnn", 0)):
        with pytest.raises(ValueError, match=f"holds no trained {network} of setting short and seed {seed}"):
            retrieval.connected(tmp_path, network, layer="fc6", seed=seed)
    with pytest.raises(ValueError, match=r"layer \('fc9'\) must be a module of AlexNet: .*classifier\.1"):
        retrieval.connected(tmp_path, "cnn", layer="fc9", weights=tmp_path / "conv.pt")


def test_networks_that_were_trained_whole_bring_their_convolutions(tmp_path, monkeypatch):
    """Those of table2 are of the other variant, whose layers have names."""
    monkeypatch.setattr(weights, "alexnet_convolutions", None)
    model = trained(tmp_path, "pr_cnn", recipe="table2", setting="paper", whole=True)
    found = retrieval.connected(tmp_path, "pr_cnn", layer="fc7", setting="paper")
    front, classifier = alexnet.split(model)
    images = torch.rand(1, 3, 224, 224)
    with torch.inference_mode():
        torch.testing.assert_close(found(images), normalise(classifier[:5](front(images))))


def test_the_command_measures_a_trained_layer(photos, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(memory, "keep_freed_memory", lambda: None)
    monkeypatch.setenv("COLUMNS", "200")
    torch.save(trained(tmp_path / "run", "cnn").state_dict(), tmp_path / "conv.pt")
    cells = ["--rows", "cnn_fc6", "--columns", "Ori", "--seeds", "0", "--workers", "0", "--threads", "1"]
    main(
        ["run", "table3", "--setting", "trained", *cells]
        + ["--data", str(photos), "--trained", str(tmp_path / "run"), "--weights", str(tmp_path / "conv.pt")]
        + ["--out", str(tmp_path / "out")]
    )
    (row,) = read_rows(tmp_path / "out" / "table3.jsonl").results
    shown = capsys.readouterr().out
    assert f"{row.value:.3f} (1)" in shown
    assert "3.381" not in shown  # the paper's, of ten times as many groups


def test_the_facts_name_the_rows_of_settings():
    found = json.loads(json.dumps(TABLE3.facts()))["rows_of"]
    assert found["wide"] == [
        f"{network}_{layer}" for network in ("cnn", "pr_cnn", "pr_cnn_fine") for layer in ("fc6", "fc7")
    ]
    assert "alexnet_mean3" not in found["smoke"]
    plain = dataclasses.replace(TABLE3, settings={"smoke": dataclasses.replace(TABLE3.settings["smoke"], rows=None)})
    assert plain.facts()["rows_of"] == {}
