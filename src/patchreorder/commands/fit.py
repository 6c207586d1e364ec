"""`patchreorder fit`: a classifier for own photographs, with reordering and without, and what it gained."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from patchreorder.report import page, terminal
from patchreorder.report.folder import load

from .run import use_cores


def fit(
    *,
    data: Path,
    model: str = "alexnet",
    weights: Path | None = None,
    reorder: str = "conv1+conv2+conv3+conv4+conv5:ranked:quantiles=8,centre=true",
    width: int = 512,
    epochs: float = 20.0,
    lr: float = 0.005,
    seeds: int = 3,
    out: Path | None = None,
    threads: int = 0,
    workers: int | None = None,
) -> None:
    """Train a classifier on folders of photographs, and compare it with the same network without reordering.

    The convolutions of AlexNet, trained on ImageNet, are frozen; the layers after them are trained on
    the photographs as they are. Both networks are then tested on other photographs as they are, rotated and shifted.

    Args:
        data: folder with train/CLASS/*.jpg and val/CLASS/*.jpg, or with CLASS/*.jpg, of which a fifth is for tests.
        model: alexnet.
        weights: file with the ImageNet-trained convolutions (.safetensors, .pth); fetched once and cached without it.
        reorder: where and how: conv1 to conv5, pool5 or input, and a layer of the family: pool5:ranked:quantiles=16,
            conv5:align or conv5:reorder:grid=2,levels=2; without a name it is reorder, as in pool5:grid=pixels. Several
            convolutions are joined by a layer that leaves numbers; the default did best on groceries (Table 2).
        width: of the two hidden layers.
        epochs: over the photographs.
        lr: the highest learning rate.
        seeds: trainings of each network; chance shows in how they differ.
        out: folder for everything; runs/fit-NAME by default, NAME being the name of the data's folder.
        threads: of the computation; by default all cores.
        workers: processes that decode photographs; by default all cores.
    """
    console = Console(highlight=False)
    page.need_packages()
    if not data.is_dir():
        raise ValueError(f"data ({data}) must be a folder with train/CLASS/*.jpg and val/CLASS/*.jpg, or CLASS/*.jpg")
    out = out or Path("runs") / f"fit-{data.resolve().name}"
    decoders = use_cores(threads, workers)
    from patchreorder.classifier.fit import recipe, save_classifier
    from patchreorder.engine.progress import Terminal
    from patchreorder.laboratory.cells import Resources
    from patchreorder.laboratory.photographs import FrozenPhotographTask
    from patchreorder.laboratory.run import run

    chosen = recipe(data, model=model, reorder=reorder, width=width, epochs=epochs, lr=lr, seeds=seeds)
    screen, file = Terminal(console), out / "classifier.safetensors"
    resources = Resources(workers=decoders, weights=weights)
    try:
        outcome = run(chosen, out=out, setting="fit", data=data, screen=screen, resources=resources)
        jobs = [*outcome.measured, *outcome.there_before, *outcome.elsewhere]
        first = next(job for job in jobs if job.row.name == "reordered" and job.cell.seed == 0)
        assert isinstance(outcome.task, FrozenPhotographTask)
        save_classifier(outcome.task, first, file)
    except KeyboardInterrupt as stop:
        screen.say(f"{str(stop) or 'stopped'}; the same command goes on from there")
        raise
    finally:
        screen.close()
    found = load(out)
    terminal.show(found, console)
    page.write(found, out / "report.html")
    screen.say(
        f"\nThe reordered network (seed 0): {file}. The report: {out / 'report.html'}.\n"
        f"Next: `patchreorder predict {file} IMAGE...` names what is on an image; in Python, "
        "`patchreorder.load_classifier(file)` gives the network and its classes."
    )
