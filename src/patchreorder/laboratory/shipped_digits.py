"""The task that tests the networks that come with the package, so that a table can be checked without training."""

from __future__ import annotations

from dataclasses import replace

from torch import nn

from patchreorder.engine.batches import Dataset
from patchreorder.engine.train import Trained
from patchreorder.models import create_model, shipped

from .cells import Job
from .classification import Network
from .rows import Result
from .small_images import DigitTask


class ShippedDigitTask(DigitTask):
    """Counts the errors of shipped networks on the test digits, and compares them with the row that came with each."""

    def prepare(self, job: Job) -> None:
        self.test_set(job)

    def measure(self, job: Job) -> Result:
        found = super().measure(job)
        committed = shipped.row(job.row.model, job.column.dataset)
        differing = sorted(set(found.errors) ^ set(committed["errors"]))
        same = "as in results/" if not differing else f"{len(differing)} digits differ from the row in results/"
        job.screen.say(f"{job.row.title}, {job.column.title}: {len(found.errors)} of {found.n:,} digits wrong, {same}")
        return replace(found, details={**found.details, "committed": committed["value"], "differing": differing})

    def trained(self, job: Job) -> Network:
        row = shipped.row(job.row.model, job.column.dataset)
        model = create_model(job.row.model, dataset=job.column.dataset, pretrained=True).to(job.world.device).eval()
        done = Trained(row["steps"], row["seconds"], row["cpu_seconds"], row["curves"]["training loss"], 0)
        return Network(job.folder, model, done, row["details"].get("training images", 60_000))

    def curves(self, job: Job, model: nn.Module, test_set: Dataset) -> dict[str, list[list[float]]]:
        return {}
