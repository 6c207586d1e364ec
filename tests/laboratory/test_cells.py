"""Which cells are asked for, and what their hashes cover."""

import dataclasses

import pytest

from patchreorder.engine.options import Training
from patchreorder.laboratory.cells import Job, jobs
from patchreorder.laboratory.recipe import Column, Plan, Recipe, Row, Setting
from patchreorder.laboratory.task import Task

PLAN = Plan(training=Training(epochs=1, lr=0.5))
MADE_UP = Recipe(
    name="made_up",
    title="Made up",
    about="Nothing.",
    metric="error %",
    rows=[Row(name, name.upper(), name, name, options={"grid": 2}) for name in "abc"],
    columns=[Column(name, name, name, f"mnist-{name.lower()}") for name in "RT"],
    settings={
        "short": Setting(about="", plan=lambda row, column: PLAN, seeds=lambda row: (0, 1) if row == "a" else (0,)),
        "demo": Setting(about="", plan=lambda row, column: PLAN, rows=("c", "a")),
    },
    task=Task,
)


def asked(recipe: Recipe, tmp_path, task: Task | None = None, **which) -> list[Job]:
    return list(jobs(recipe, task or Task(), out=tmp_path, **which))


def test_the_first_seed_of_all_comes_before_the_second_of_any(tmp_path):
    def chosen(**which) -> list[str]:
        return [f"{job.cell.row}{job.cell.column}{job.cell.seed}" for job in asked(MADE_UP, tmp_path, **which)]

    assert chosen() == ["aR0", "aT0", "bR0", "bT0", "cR0", "cT0", "aR1", "aT1"]
    assert chosen(seeds=[3, 2], rows=["b"]) == ["bR2", "bT2", "bR3", "bT3"]
    assert chosen(setting="demo") == ["aR0", "aT0", "cR0", "cT0"]
    assert chosen(rows=["c", "a"], columns=["T"], seeds=[0]) == ["cT0", "aT0"]
    assert chosen(rows=["b", "b"], columns=["T", "T"], seeds=[1, 1]) == ["bT1"]


def test_a_row_may_be_measured_in_some_columns_only(tmp_path):
    rows = [dataclasses.replace(row, columns=("T",)) if row.name == "b" else row for row in MADE_UP.rows]
    recipe = dataclasses.replace(MADE_UP, rows=rows)
    found = [f"{job.cell.row}{job.cell.column}" for job in asked(recipe, tmp_path, seeds=[0])]
    assert found == ["aR", "aT", "bT", "cR", "cT"]
    assert [row.get("columns") for row in recipe.facts()["rows"]] == [None, ["T"], None]
    with pytest.raises(ValueError, match=r"columns \(R\): b is measured in T only"):
        asked(recipe, tmp_path, rows=["b"], columns=["R"])
    old, new = (asked(each, tmp_path, rows=["b"], columns=["T"])[0].cell for each in (MADE_UP, recipe))
    assert old == new  # columns decide nothing about a training


def first(recipe: Recipe, tmp_path, **which) -> Job:
    return asked(recipe, tmp_path, rows=["b"], columns=["R"], **which)[0]


def test_the_hash_covers_what_could_change_the_value_and_nothing_else(tmp_path):
    """Rows that were measured are found by this hash: it must stay what it is."""
    cell = first(MADE_UP, tmp_path).cell
    assert cell == ("made_up", "b", "R", "short", "test", 0, "660ad83c")

    def planned(**changes) -> Recipe:
        plan = dataclasses.replace(PLAN, **changes)
        return dataclasses.replace(MADE_UP, settings={"short": Setting(about="", plan=lambda row, column: plan)})

    row, column = MADE_UP.rows[1], MADE_UP.columns[0]
    others = [
        dataclasses.replace(MADE_UP, rows=[dataclasses.replace(row, model="x")]),
        dataclasses.replace(MADE_UP, rows=[dataclasses.replace(row, options={"grid": 3})]),
        dataclasses.replace(MADE_UP, columns=[dataclasses.replace(column, dataset="x")]),
        planned(training=Training(epochs=1, lr=0.4)),
        planned(images=7),
    ]
    hashes = [first(other, tmp_path).cell.settings for other in (MADE_UP, *others)]
    assert len(set(hashes)) == len(hashes)
    renamed = dataclasses.replace(MADE_UP, rows=[dataclasses.replace(row, title="x", about="y")])
    for same in (renamed, planned(note="a remark"), planned(curve_images=2000)):
        assert first(same, tmp_path).cell == cell


def test_values_that_are_the_default_are_not_hashed(tmp_path):
    """So a new option changes no old cell; and a default may never change: these are what committed rows mean."""
    assert Training(epochs=1) == Training(
        epochs=1,
        batch=128,
        lr=0.07,
        momentum=0.9,
        nesterov=True,
        weight_decay=0.0,
        schedule="one-cycle",
        warmup=0.15,
        decay_every=50_000,
        clip=None,
        amp=False,
        scales={},
    )
    usual = {
        "view": "",
        "images": None,
        "tested": None,
        "curve_images": 2000,
        "copies": 1,
        "frozen": False,
    }
    usual |= {"start": None, "options": {}, "source": "", "trained": "", "groups": None, "layer": ""}
    assert Plan() == Plan(**usual, fixed_poses=False, poses_by_seed=False, random_weights=False, synthetic=False)
    assert Plan().hashed() == {}


def test_images_of_a_folder_are_part_of_the_hash(tmp_path):
    class Identifies(Task):
        def identify(self, data, plan, split):
            return f"{data}, {split}"

    found = {
        first(MADE_UP, tmp_path, task=Identifies(), data=data, split=split).cell.settings
        for data in ("one", "two")
        for split in ("test", "validation")
    }
    assert len(found) == 4


def test_columns_of_one_training_share_its_folder(tmp_path):
    once = dataclasses.replace(MADE_UP, trains_once=True)
    r, t = asked(once, tmp_path, rows=["b"], seeds=[0])
    assert r.cell.settings != t.cell.settings
    assert r.folder == t.folder
    assert r.folder.name.startswith("b.all.short.test.0.")
    r, t = asked(MADE_UP, tmp_path, rows=["b"], seeds=[0])
    assert (r.folder.name, t.folder.name) == (r.cell.folder, t.cell.folder)


def test_a_training_may_begin_with_that_of_another_row(tmp_path):
    def plan(row, column):
        return dataclasses.replace(PLAN, start="a" if row == "b" else None)

    recipe = dataclasses.replace(MADE_UP, settings={"short": Setting(about="", plan=plan)})
    a, b = (asked(recipe, tmp_path, rows=[row], columns=["T"])[0] for row in "ab")
    assert (a.start, b.start) == (None, a.folder)


def test_a_setting_may_have_other_networks_and_data_sets(tmp_path):
    instead = {"b": "large_b", "mnist-r": "R"}
    setting = Setting(about="", plan=lambda row, column: PLAN, instead=instead)
    recipe = dataclasses.replace(MADE_UP, settings={"short": setting})
    job = first(recipe, tmp_path)
    assert (job.row.name, job.row.model, job.column.name, job.column.dataset) == ("b", "large_b", "R", "R")
    assert job.cell.settings != first(MADE_UP, tmp_path).cell.settings


@pytest.mark.parametrize(
    ("which", "message"),
    [
        ({"setting": "nope"}, r"setting \('nope'\) must be one of short, demo"),
        ({"split": "series"}, r"split \('series'\) must be test or validation for made_up"),
        ({"rows": ["z"]}, r"rows \('z'\) must be among a, b, c"),
        ({"columns": ["X"]}, r"columns \('X'\) must be among R, T"),
        ({"seeds": [0, -1]}, r"seed \(-1\) must be 0 or more"),
    ],
)
def test_what_is_not_there_is_named(tmp_path, which, message):
    with pytest.raises(ValueError, match=message):
        asked(MADE_UP, tmp_path, **which)


def test_a_changed_plan_names_its_setting(tmp_path):
    (job,) = asked(MADE_UP, tmp_path, rows=["b"], columns=["R"], change={"lr": 0.1, "batch": 2})
    assert job.cell.setting == "short,batch=2,lr=0.1"
    assert job.plan.training == Training(epochs=1, lr=0.1, batch=2)


def test_a_change_that_no_row_could_name_is_refused_before_the_training(tmp_path):
    with pytest.raises(ValueError, match=r"change \(short,lr=9+\.\.\.\) has \d+ characters: 1000 are the most"):
        asked(MADE_UP, tmp_path, rows=["b"], columns=["R"], change={"lr": int("9" * 1000)})
