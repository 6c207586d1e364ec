"""What a recipe is: the rows, columns and settings of a table or figure, and the plan of a cell."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import UnionType
from typing import TYPE_CHECKING, Any, Literal, Union, get_args, get_origin, get_type_hints

from patchreorder.engine.options import Training
from patchreorder.files import differing

if TYPE_CHECKING:
    from .task import Task


@dataclass(frozen=True)
class Row:
    """A row of a table: a network, its options, and the columns it is measured in (none named: all)."""

    name: str
    title: str
    about: str
    model: str
    options: Mapping[str, Any] = field(default_factory=dict)
    columns: Sequence[str] = ()


@dataclass(frozen=True)
class Column:
    """A column of a table: a data set, and within how many first answers the right one counts."""

    name: str
    title: str
    about: str
    dataset: str
    top: int = 1


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a cell is computed from. A cell's hash covers the fields that differ from their defaults, but for `note`.

    Args:
        training: how the network is trained; None where nothing is trained.
        view: of the training images; "" is the usual one of the task.
        fixed_poses: every training image has one pose in all epochs, as a data set that was generated once.
        images, tested: how many training and test images are used; None for all.
        per_class: at most so many training photographs of every class are used; None for all.
        images_by_seed: the cell's seed draws which training images are used, instead of the first.
        curve_images: test images that curves over poses are measured on.
        tested_at: numbers of steps after which the network is also tested, for a curve over the training.
        copies: augmented copies of every image whose features are kept; epochs use them in turn.
        frozen: the convolutions are pretrained on ImageNet and are not trained.
        start: the row whose weights the training begins with.
        options: of the network, for all rows.
        source: what a figure shows: mnist, cifar10, grocery or imagenet.
        trained: the setting of the trainings whose networks are measured.
        groups: of UK-Bench, the first; None for all.
        layer: the layer whose activations describe an image, instead of the row's.
        poses_by_seed: the cell's seed draws the poses of the test images, instead of one draw for all.
        random_weights: weights as before training instead of trained ones.
        synthetic: small synthetic images and random weights, for smoke runs.
        note: a remark for readers.
    """

    training: Training | None = None
    view: str = ""
    fixed_poses: bool = False
    images: int | None = None
    tested: int | None = None
    per_class: int | None = None
    images_by_seed: bool = False
    curve_images: int = 2000
    tested_at: Sequence[int] = ()
    copies: int = 1
    frozen: bool = False
    start: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    source: str = ""
    trained: str = ""
    groups: int | None = None
    layer: str = ""
    poses_by_seed: bool = False
    random_weights: bool = False
    synthetic: bool = False
    note: str = ""

    def hashed(self) -> dict[str, Any]:
        """The values that decide about a cell: those that differ from their defaults."""
        return differing(dataclasses.replace(self, note=""))

    def changed(self, change: Mapping[str, Any], *, own: Sequence[str] = ()) -> Plan:
        """The plan with other values of its training, or of the fields of its own that are named in `own`.

        Raises:
            ValueError: there is no such value here, or it is of the wrong type.
        """
        of_training = {field.name for field in dataclasses.fields(Training)} if self.training else set()
        hints = get_type_hints(Plan) | get_type_hints(Training)
        for name, value in change.items():
            if name not in (*own, *of_training):
                allowed = ", ".join([*own, *sorted(of_training)]) or "nothing can be changed here"
                raise ValueError(f"change ({name}={value!r}) must name one of: {allowed}")
            if not _fits(value, hints[name]) or (name in own and value in (0, "", None)):
                kind = getattr(hints[name], "__name__", hints[name])
                raise ValueError(f"change ({name}={value!r}) must be of the type {kind}")
        plan = dataclasses.replace(self, **{name: value for name, value in change.items() if name in own})
        if self.training is None:
            return plan
        training = {name: value for name, value in change.items() if name not in own}
        return dataclasses.replace(plan, training=dataclasses.replace(self.training, **training))


def _fits(value: Any, kind: Any) -> bool:
    """Whether a JSON value is of the type that a field of a dataclass states."""
    origin, parts = get_origin(kind), get_args(kind)
    if kind is Any:
        return True
    if origin in (Union, UnionType):
        return any(_fits(value, part) for part in parts)
    if origin is Literal:
        return value in parts
    if origin is Mapping:
        return isinstance(value, dict) and all(_fits(item, parts[1]) for item in value.values())
    if kind is float:  # a row cannot hold a number that is not finite
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return type(value) is kind


@dataclass(frozen=True, kw_only=True)
class Setting:
    """How much is spent on a cell, and how; every row of a table gets the same.

    Args:
        about: one line for readers.
        plan: of a row and a column, by their names.
        seeds: of a row.
        rows, columns: those of the setting; None for all.
        task: instead of the recipe's.
        instead: networks and data sets that stand for those of the rows and columns, by name.
        needs: options that the command must have, such as `--trained DIR`.
        meaning: what a reader may conclude from the table, printed after a run.
        like_paper: whether its numbers can be compared with the paper's.
    """

    about: str
    plan: Callable[[str, str], Plan]
    seeds: Callable[[str], Sequence[int]] = lambda row: (0,)
    rows: Sequence[str] | None = None
    columns: Sequence[str] | None = None
    task: type[Task] | None = None
    instead: Mapping[str, str] = field(default_factory=dict)
    needs: str = ""
    meaning: str = ""
    like_paper: bool = True


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A table or figure of the paper: rows, columns, settings, and the task that measures a cell.

    Args:
        task: trains and evaluates cells; a run makes one object of it, which owns what cells share.
        paper: the paper's cells, by row and column.
        compare: pairs of rows for a paired test, the first against the second.
        curves: axes of the curves in the rows, by name.
        figure: how the report draws the figure, see `patchreorder.report.figures`.
        command: what makes the table, if it is not `patchreorder run NAME`.
        trains_once: one training serves all columns, which differ in the test images only.
        splits: what can be tested on, see `cells`.
    """

    name: str
    title: str
    about: str
    metric: str
    rows: Sequence[Row]
    columns: Sequence[Column]
    settings: Mapping[str, Setting]
    task: type[Task]
    paper: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    compare: Sequence[tuple[str, str]] = ()
    curves: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    figure: Mapping[str, Any] = field(default_factory=dict)
    better: str = "lower"
    command: str = ""
    trains_once: bool = False
    splits: Sequence[str] = ("test", "validation")

    def facts(self) -> dict[str, Any]:
        """What a report needs to know beside the rows."""
        return {
            "recipe": self.name,
            "title": self.title,
            "about": self.about,
            "metric": self.metric,
            "better": self.better,
            "command": self.command or f"patchreorder run {self.name}",
            "rows": [
                {"name": row.name, "title": row.title, "about": row.about}
                | ({"columns": list(row.columns)} if row.columns else {})
                for row in self.rows
            ],
            "columns": [
                {"name": c.name, "title": c.title, "about": c.about} | ({} if c.top == 1 else {"compared": False})
                for c in self.columns
            ],
            "paper": self.paper,
            "compare": self.compare,
            "settings": {name: setting.about for name, setting in self.settings.items()},
            "rows_of": {name: list(setting.rows) for name, setting in self.settings.items() if setting.rows},
            "columns_of": {name: list(setting.columns) for name, setting in self.settings.items() if setting.columns},
            "parameters": {
                row.name: {
                    column.name: count
                    for column in self.columns
                    if (count := self.task.count_parameters(row, column)) is not None
                }
                for row in self.rows
            },
            "curves": self.curves,
            "figure": self.figure,
            "needs": {name: setting.needs for name, setting in self.settings.items() if setting.needs},
            "unlike_paper": [name for name, setting in self.settings.items() if not setting.like_paper],
        } | ({"trains_once": True} if self.trains_once else {})
