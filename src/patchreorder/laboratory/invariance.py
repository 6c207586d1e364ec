"""The task of the figure of invariance: the score of Goodfellow et al. at the end of every layer."""

from __future__ import annotations

from patchreorder.data.poses import rotations, translations
from patchreorder.measuring import measure as measuring

from .cells import Job
from .figure import Clock, FigureTask, fill, result, stages
from .rows import Result

METRIC = "invariance score"
POSES = {"rotation": rotations, "translation": translations}


class InvarianceTask(FigureTask):
    """Scores of all layers of the row's network over the poses of the column; the cell is that of the last maps."""

    def measure(self, job: Job) -> Result:
        model, data = self.network(job), self.images(job)
        ends = stages(model)
        transforms = {job.column.name: POSES[job.column.name]()}
        show = job.screen.count(f"{job.row.title}, {job.column.title}", measuring.forward_passes(len(data), transforms))
        clock = Clock()
        found = measuring.measure(
            model,
            data,
            transforms=transforms,
            layers=[stage.module for stage in ends.values()],
            similarity=False,
            order=False,
            fill=fill(job.plan),
            report=show,
        )
        layers = {name: found.layers[stage.module].invariance[job.column.name] for name, stage in ends.items()}
        same = found.consistency(job.column.name)
        return result(
            job,
            model,
            clock,
            metric=METRIC,
            value=layers["maps"].score,
            n=found.images,
            curves={METRIC: [[float(index), layer.score] for index, layer in enumerate(layers.values())]},
            details={
                "layers": list(layers),
                "neurons": [len(layer.scores) for layer in layers.values()],
                "unselective": [layer.unselective for layer in layers.values()],
                "ceiling": next(iter(layers.values())).ceiling,
                "poses": len(found.poses),
                "equal answers %": same.value,
            },
        )
