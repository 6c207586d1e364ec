"""`patchreorder fit`: a classifier for own photographs, tested as they are and in other poses."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

from patchreorder.files import write_whole
from patchreorder.report import fitted as terminal
from patchreorder.report import fitted_page, page

from .console import open_console
from .run import use_cores
from .values import Advanced, File, Folder


def fit(
    *,
    data: Folder,
    out: Folder | None = None,
    rotations: float = 180.0,
    flips: bool = False,
    backbone: str = "efficientnet_lite0",
    finetune: float = 0.0,
    test: float = 0.2,
    shifts: Advanced[float] = 0.1,
    zoom: Advanced[float] = 0.1,
    size: Advanced[int | None] = None,
    copies: Advanced[int | None] = None,
    angles: Advanced[int] = 6,
    weights: Advanced[File | None] = None,
    seed: Advanced[int] = 0,
    threads: Advanced[int] = 0,
    workers: Advanced[int | None] = None,
) -> None:
    """Make a classifier for the photographs in class folders, and say how well it works in every pose.

    A trained backbone describes every photograph, as it is and in other poses; cross-validation chooses what of it a
    linear classifier reads.

    Examples:
        patchreorder fit --data photographs --out runs/photographs
        patchreorder fit --data signs --rotations 15 --finetune 12

    Args:
        data: folder with CLASS/*.jpg, of which a fifth is for the test, or with train/CLASS/*.jpg and val/CLASS/*.jpg.
        out: folder for classifier.safetensors, report.json and report.html; runs/fit-NAME by default, NAME being the
            name of the data's folder.
        backbone: efficientnet_lite0, efficientnet_lite1, efficientnet_lite2, mobilenet_v2, alexnet, torchvision:NAME or
            timm:NAME.
        rotations: photographs rotated by up to so many degrees mean the same thing; 180 is all rotations, 0 none.
        flips: mirrored photographs mean the same thing.
        shifts: photographs shifted by up to so much of their sides mean the same thing.
        zoom: photographs scaled up or down by up to this fraction mean the same thing.
        finetune: train the network for so many epochs afterwards, such as 10; it is kept only if it is better.
        test: the fraction of photographs for the test, if there is no val/.
        size: pixels a side of the images; larger shows finer detail and takes longer.
        copies: posed copies of each photograph to learn from; 4 by default, fewer above 10,000 photographs.
        angles: rotations that each test photograph is tested in; all 24 take longer.
        weights: file with the backbone's weights (.safetensors, .pth); fetched once and cached without it.
        seed: of the poses.
        threads: of the computation; by default all cores.
        workers: processes that decode photographs; by default all cores.
    """
    console = open_console()
    page.need_packages()
    if not data.is_dir():
        raise ValueError(f"data ({data}) must be a folder with CLASS/*.jpg, or train/CLASS/*.jpg and val/CLASS/*.jpg")
    out = out or Path("runs") / f"fit-{data.resolve().name}"
    decoders = use_cores(threads, workers)
    from patchreorder.classifier.finetune import finetuned
    from patchreorder.classifier.fit import FitOptions
    from patchreorder.classifier.fit import fit as fit_photographs
    from patchreorder.classifier.photographs import SamePoses
    from patchreorder.classifier.thumbnails import thumbnails
    from patchreorder.engine.progress import Terminal

    options = FitOptions(
        same=SamePoses(rotations, flips, shifts, zoom),
        backbone=backbone,
        size=size,
        copies=copies,
        test=test,
        angles=angles,
        weights=weights,
        workers=decoders,
        seed=seed,
    )
    screen = Terminal(console)
    try:
        made = fit_photographs(data, out, options, screen=screen)
        if finetune:
            made = finetuned(made, out, options, epochs=finetune, screen=screen)
    except KeyboardInterrupt as stop:
        screen.say(f"{str(stop) or 'stopped'}; the same command goes on from there")
        raise
    finally:
        screen.close()
    same = f"--rotations {rotations:g} --shifts {shifts:g} --zoom {zoom:g}{' --flips' if flips else ''}"
    more = f"{f' --finetune {finetune:g}' if finetune else ''} --test {test:g} --seed {seed}"
    made.report["command"] = f"patchreorder fit --data {shlex.quote(str(data))} --backbone {backbone} {same}{more}"
    write_whole(out / "report.json", json.dumps(made.report, indent=1).encode())
    terminal.show(made.report, console)
    fitted_page.write(made.report, out / "report.html", thumbnails=thumbnails(made.report))
    file = out / "classifier.safetensors"
    screen.say(
        f"\nThe classifier: {file}. The report: {out / 'report.html'}.\n"
        f"Next: `patchreorder predict {shlex.quote(str(file))} PATH...` names what is on photographs; in Python "
        "`patchreorder.load_classifier(file)(path)` does."
    )
