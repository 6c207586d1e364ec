"""The task of Table 3: descriptors, galleries, and layers of trained networks."""

import dataclasses

import pytest
import torch

from patchreorder import recipes
from patchreorder.__main__ import main
from patchreorder.data import backbone_weights as weights
from patchreorder.data.generated import write_photos, write_ukbench
from patchreorder.data.ukbench import UKBench
from patchreorder.engine import memory
from patchreorder.engine.distributed import World
from patchreorder.engine.progress import Screen
from patchreorder.laboratory import retrieval
from patchreorder.laboratory.cells import Resources, jobs
from patchreorder.laboratory.recipe import Plan
from patchreorder.laboratory.retrieval import RetrievalTask
from patchreorder.laboratory.rows import read as read_rows
from patchreorder.laboratory.run import run
from patchreorder.metrics.retrieval import ns_score
from patchreorder.models import alexnet
from patchreorder.search.descriptors import Descriptor, create_descriptor, describe, fingerprint, for_inference
from tests.laboratory.trained_networks import write_training
from tests.oracle import normalise

pytestmark = pytest.mark.usefixtures("one_thread")

TABLE3 = recipes.load("table3")


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    return write_ukbench(tmp_path_factory.mktemp("photos"), groups=3)


def test_a_row_holds_the_score_of_every_query(photos, tmp_path):
    (photos / "notes.txt").write_text("x")
    said = []
    screen = Screen()
    screen.say = said.append
    options = {"setting": "smoke", "rows": ["alexnet_gap"], "columns": ["Ori", "mixed"]}
    run(TABLE3, out=tmp_path, data=photos, screen=screen, **options)
    assert [line for line in said if "notes" in line] == ["not of UK-Bench, left out: 1 files (notes.txt)"]
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


def test_every_seed_draws_rotations_and_shifts_of_its_own(photos, tmp_path):
    seen: dict[int, list[bytes]] = {}
    tasks = []

    class Watched(RetrievalTask):
        def measure(self, job):
            tasks.append(self)
            (images,) = self.galleries(job)
            seen[job.cell.seed] = [image.numpy().tobytes() for image in images.batch(torch.arange(12))[0]]
            return super().measure(job)

    draws = dataclasses.replace(
        TABLE3.settings["draws"], plan=lambda row, column: Plan(poses_by_seed=True, synthetic=True)
    )
    recipe = dataclasses.replace(TABLE3, settings={"draws": draws}, task=Watched)
    run(recipe, out=tmp_path, data=photos, setting="draws", rows=["alexnet_gap"], columns=["T"], seeds=[0, 1, 2])
    assert all(len({drawn[place] for drawn in seen.values()}) == 3 for place in range(12))
    shown = UKBench.open(photos, view="T").batch(torch.arange(12))[0]
    assert seen[0] == [image.numpy().tobytes() for image in shown]  # the first draw is that of all other settings
    assert len(tasks[0].maps) == 3
    assert tuple(TABLE3.settings["draws"].seeds("alexnet_gap")) == tuple(range(8))


def test_maps_are_computed_once_for_rows_that_share_them(photos, monkeypatch):
    computed = []

    def counted(model, *given, **options):
        if not isinstance(model, Descriptor):  # the part before the pool
            computed.append(model)
        return describe(model, *given, **options)

    monkeypatch.setattr(retrieval, "describe", counted)
    measure, world = RetrievalTask(), World()
    for name in ("alexnet/gap", "alexnet/pr", "efficientnet_lite0/ranked", "alexnet/ranked"):
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
    measure, world, images = RetrievalTask(), World(), UKBench.open(photos)
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
    options = {"rows": ["alexnet_layers_sorted"], "columns": ["T"], "data": photos}
    run(TABLE3, out=tmp_path, setting="smoke", **options)
    run(TABLE3, out=tmp_path, setting="short", resources=Resources(weights=tmp_path / "own.pt"), **options)
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
    run(TABLE3, out=tmp_path, data=photos, setting="smoke", rows=["alexnet_gap"], columns=["R"], change={"groups": 2})
    (row,) = read_rows(tmp_path / "table3.jsonl").results
    assert (row.setting, row.n) == ("smoke,groups=2", 8)
    with pytest.raises(ValueError, match=r"groups \(2550\) must be from 1 to 3, the number in the folder"):
        run(TABLE3, out=tmp_path, data=photos, setting="paper", rows=["cnn_fc6"], resources=Resources(trained=tmp_path))
    for change in ({"groups": 0}, {"groups": 1.5}, {"lr": 0.1}):
        with pytest.raises(ValueError, match=r"change \(.*\) must (name one of: groups, layer|be of the type)"):
            list(jobs(TABLE3, RetrievalTask(), out=tmp_path, change=change))
    with pytest.raises(ValueError, match=r"change \(layer=fc6\) is for layers of trained networks, not AlexNet"):
        run(TABLE3, out=tmp_path, data=photos, rows=["alexnet_gap"], columns=["R"], change={"layer": "fc6"})


def test_what_is_missing_is_named(photos, tmp_path):
    one = {"rows": ["cnn_fc6"], "columns": ["Ori"], "setting": "trained", "out": tmp_path}
    with pytest.raises(ValueError, match=r"table3 needs --data DIR, a folder with UK-Bench's files ukbenchNNNNN\.jpg"):
        run(TABLE3, **one)
    with pytest.raises(
        ValueError, match=r"CNN, fc6 needs --trained DIR, the output folder of `patchreorder run table2_grocery --set"
    ):
        run(TABLE3, data=photos, **one)
    with pytest.raises(ValueError, match=r"holds no trained cnn of setting short and seed 0: `patchreorder"):
        run(TABLE3, data=photos, resources=Resources(trained=tmp_path), **one)
    with pytest.raises(ValueError, match=r"table3 needs --data DIR, class folders"):
        run(TABLE3, split="validation", **one)
    (tmp_path / "none").mkdir()
    with pytest.raises(ValueError, match="holds no such file; expected"):
        run(TABLE3, data=tmp_path / "none", **one)


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
    run(TABLE3, out=out, data=data, **cell)
    (row,) = read_rows(out / "table3.jsonl").results
    assert (row.n, row.split, row.details["groups"]) == (12, "validation", 3)
    assert row.details["scores"][8:] == [4] * 4  # nobody else is in the second gallery
    assert row.value == sum(row.details["scores"]) / 12
    with pytest.raises(ValueError, match="has no class with 4 training images"):
        UKBench.galleries(folder_of(tmp_path / "few", images=3), most=1)


NAMED = ("class-0000", "class-0001")


def folder_of(root, *, images):
    for part in ("train", "val"):
        write_photos(root / part, classes=len(NAMED), images=images)
    return root


MODULES = {"fc6": "classifier.2", "fc7": "classifier.5", "pool5": "features.12", "conv5": "features.10"}


@pytest.mark.parametrize(
    ("network", "layer"),
    [("cnn", "fc6"), ("cnn", "fc7"), ("st_cnn", "fc6"), ("pr_cnn", "fc7"), ("pr_cnn_fine", "fc6")]
    + [("cnn", "pool5"), ("cnn", "conv5"), ("cnn", "features.10")],
)
def test_layers_of_a_trained_network(network, layer, tmp_path):
    model = write_training(tmp_path, network)
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
    torch.save(write_training(tmp_path, "cnn", width=9).state_dict(), tmp_path / "conv.pt")
    fc6 = write_training(tmp_path, "cnn", setting="wide").state_dict()["classifier.1.weight"]
    write_training(tmp_path, "cnn", seed=1)
    write_training(tmp_path, "pr_cnn", setting="short,lr=1")
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
    model = write_training(tmp_path, "pr_cnn", table="table2", setting="paper", whole=True)
    found = retrieval.connected(tmp_path, "pr_cnn", layer="fc7", setting="paper")
    front, classifier = alexnet.split(model)
    images = torch.rand(1, 3, 224, 224)
    with torch.inference_mode():
        torch.testing.assert_close(found(images), normalise(classifier[:5](front(images))))


def test_the_command_measures_a_trained_layer(photos, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(memory, "keep_freed_memory", lambda: None)
    monkeypatch.setenv("COLUMNS", "200")
    torch.save(write_training(tmp_path / "run", "cnn").state_dict(), tmp_path / "conv.pt")
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
