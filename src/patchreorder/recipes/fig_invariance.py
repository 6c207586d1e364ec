"""The paper's figure of invariance: the score of Goodfellow et al. at the end of every layer, CNN against PR-CNN.

    patchreorder run fig_invariance                                       # MNIST, the networks that are shipped
    patchreorder run fig_invariance --setting trained --trained runs/table1
    patchreorder run fig_invariance --setting cifar10 --trained runs/table2_cifar10
    patchreorder run fig_invariance --setting grocery --trained runs/table2_grocery --data GROCERY [--weights FILE]
    patchreorder run fig_invariance --setting paper --trained runs/table2 --data IMAGENET

Rotations from -45 to 45 degrees in steps of 9, translations from -0.2 to 0.2 in steps of 0.04 along x and along y, as
in the paper (docs/measures.md has the definition). A cell is the score of the maps that the first connected layer gets;
its curve has every layer. Of MNIST's networks the one for turned digits (R) is turned, the one for shifted digits (T)
shifted. Scores of unequal numbers of images cannot be compared: the highest that can be is told with each row.
"""

from __future__ import annotations

from patchreorder.data.poses import rotations, translations
from patchreorder.laboratory import subjects
from patchreorder.laboratory.recipe import Column, Job, Recipe, Row, Setting
from patchreorder.laboratory.rows import Result
from patchreorder.laboratory.subjects import Plan, clock, stages
from patchreorder.measuring import measure as engine

METRIC = "invariance score"
POSES = {"rotation": rotations, "translation": translations}
ROWS = (
    Row(name="cnn", title="CNN", model="cnn", about="no reordering"),
    Row(name="cnn_aug", title="CNN-Data-Aug", model="cnn_aug", about="trained on turned and shifted images"),
    Row(name="st_cnn", title="ST-CNN", model="st_cnn", about="a spatial transformer before the CNN"),
    Row(name="pr_cnn", title="PR-CNN", model="pr_cnn", about="patches reordered after the last convolution"),
    Row(
        name="pr_cnn_fine",
        title="PR-CNN-fine",
        model="pr_cnn_fine",
        about="every pixel a patch, reordered after the last pool; ours",
    ),
)
COLUMNS = (
    Column(name="rotation", title="rotation", about="turned by -45, -36, ..., 45 degrees", dataset="R"),
    Column(
        name="translation",
        title="translation",
        about="shifted by -0.2, -0.16, ..., 0.2 of the width, and of the height",
        dataset="T",
    ),
)


def measure(job: Job) -> Result:
    """The scores of all layers of the row's network over the column's grid."""
    model, data = subjects.network(job), subjects.images(job)
    ends = stages(model)
    transforms = {job.column.name: POSES[job.column.name]()}
    show = job.screen.count(f"{job.row.title}, {job.column.title}", engine.forward_passes(len(data), transforms))
    begun = clock()
    found = engine.measure(
        model,
        data,
        transforms=transforms,
        layers=[stage.module for stage in ends.values()],
        similarity=False,
        order=False,
        fill=subjects.fill(job.plan),
        report=show,
    )
    layers = {name: found.layers[stage.module].invariance[job.column.name] for name, stage in ends.items()}
    same = found.consistency(job.column.name)
    return subjects.result(
        job,
        model,
        begun,
        metric=METRIC,
        value=layers["maps"].score,
        n=found.images,
        curves={METRIC: [[float(place), layer.score] for place, layer in enumerate(layers.values())]},
        details={
            "layers": list(layers),
            "neurons": [len(layer.scores) for layer in layers.values()],
            "unselective": [layer.unselective for layer in layers.values()],
            "ceiling": next(iter(layers.values())).ceiling,
            "poses": len(found.poses),
            "equal answers %": same.value,
        },
    )


def _also(settings: dict[str, Setting]) -> dict[str, Setting]:
    posed = Plan(of="mnist", images=2000, posed=True)
    return settings | {
        "posed": Setting(
            about="the shipped networks on Table 1's own test digits, which are turned (R) or shifted (T) before",
            plan=lambda row, column: posed,
            rows=settings["short"].rows,
        )
    }


RECIPE = Recipe(
    name="fig_invariance",
    title="Invariance of every layer",
    about="How often the neurons of a layer go on firing when an image is turned or shifted, relative to how often "
    "they fire at all: the mean of the best fifth (docs/measures.md). In the table: of the maps that the first "
    "connected layer gets.",
    metric=METRIC,
    better="higher",
    rows=ROWS,
    columns=COLUMNS,
    settings=_also(subjects.settings(ROWS, digits=2000, pictures=2000, photographs=200)),
    measure=measure,
    parameters=None,
    change=subjects.changed,
    curves={METRIC: {"x": "layer, by its number from the first", "y": METRIC}},
    figure={"kind": "lines", "curve": METRIC, "labels": "layers", "x": "end of layer", "n": "images"},
    identify=subjects.identify,
)
