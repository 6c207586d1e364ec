"""`patchreorder measure MODEL --images DIR_OR_DATASET`: how invariant a network is, and where it is not."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from tyro.conf import Positional

from patchreorder.laboratory.provenance import provenance
from patchreorder.report import measured, measured_page, page
from patchreorder.untrusted import clean

TRANSFORMS = ("rotate", "translate")
MEASURES = ("invariance", "similarity", "order")
COUNT = 1000
SHOWN = 5  # images that break first, and bad files that are listed by name


def measure(
    model: Positional[str],
    *,
    images: str,
    transforms: str = "rotate,translate",
    axes: str = "x,y",
    layers: tuple[str, ...] = (),
    measures: str | None = None,
    count: int = COUNT,
    compare: str | None = None,
    weights: Path | None = None,
    compare_weights: Path | None = None,
    layer: str | None = None,
    place: str | None = None,
    compare_layer: str | None = None,
    compare_place: str | None = None,
    labels: bool = True,
    strict: bool = False,
    size: int | None = None,
    data: Path | None = None,
    out: Path = Path("runs/measure"),
    seed: int = 0,
    threads: int = 0,
    workers: int | None = None,
) -> None:
    """Say how invariant a network is to turns and shifts, layer by layer: tables, numbers, a page.

    Every image goes through the network as it is, turned from -45 to 45 degrees and shifted from -20 to 20 %.

    Args:
        model: a network of ours (such as pr_cnn), a file that `patchreorder fit` made, MODULE:FUNCTION that builds an
            nn.Module, torchvision:NAME or timm:NAME, or an .onnx file.
        images: a folder of pictures, or of a folder for each class (then wrong answers are counted too: the classes, by
            name, are the network's answers in their order); or mnist, mnist-r, mnist-t, cifar10, cifar10-r,
            cifar10-t.
        transforms: rotate, translate or both.
        axes: of the shifts: x, y, diagonal.
        layers: names of the layers to measure, as of named_modules (of an ONNX file: names of outputs in its graph);
            by default those behind convolutions and fully connected layers, without gates, at most a dozen, and
            reordering layers.
        measures: of layers: invariance, similarity, order; by default all that there can be.
        count: how many images; 0 for all.
        compare: another network, measured on the same images and set beside the first.
        weights: file with the network's weights (.safetensors, .pt, .pth), read without running code.
        compare_weights: the same for the other network.
        layer: of the family, by name, such as ranked:quantiles=16 or align, to be part of the network: ours need
            --weights that were trained with it, into others it is put.
        place: where: of ours a place as in create_model (pool, input), of others the module that it is put after.
        compare_layer: the same for the other network.
        compare_place: the same for the other network.
        labels: class folders are labels; with --no-labels they are not.
        strict: a picture that cannot be read is an error, and not left out.
        size: pixels a side that a folder's pictures are scaled to, where the network does not say; 224 by default.
        data: folder with the data set's files; they are fetched once and cached without it.
        out: folder for measure.json and measure.html.
        seed: of the neurons that are drawn from large layers.
        threads: of the computation; by default all cores.
        workers: processes that decode pictures; by default all cores.
    """
    console = Console(highlight=False)
    page.need_jinja()
    kinds, along = _listed("transforms", transforms, TRANSFORMS), _listed("axes", axes, ("x", "y", "diagonal"))
    wanted = None if measures is None else _listed("measures", measures, MEASURES)
    for name, value in (("count", count), ("threads", threads), ("workers", workers or 0)):
        if value < 0:
            raise ValueError(f"{name} ({value}) must be 0 or more")
    if size is not None and size < 1:
        raise ValueError(f"size ({size}) must be 1 or more")
    others = {"weights": compare_weights, "layer": compare_layer, "place": compare_place}
    for what, other in others.items():
        if other is not None and not compare:
            raise ValueError(f"compare-{what} ({other}) is for the network of --compare, which is not there")
    import torch

    from patchreorder.data.poses import rotations, translations
    from patchreorder.engine.memory import keep_freed_memory
    from patchreorder.engine.progress import Terminal
    from patchreorder.measuring import findings, gallery
    from patchreorder.measuring.measure import forwards
    from patchreorder.measuring.measure import measure as run
    from patchreorder.measuring.networks import open_network

    keep_freed_memory()
    if threads:
        torch.set_num_threads(threads)
    dataset = images if gallery.is_dataset(images) else None
    opened = [open_network(model, dataset=dataset, weights=weights, layer=layer, place=place)]
    if compare:
        opened.append(
            open_network(compare, dataset=dataset, weights=compare_weights, layer=compare_layer, place=compare_place)
        )
    names = [one.name for one in opened]
    if len(set(names)) < len(names):  # the same network with other weights
        names = [f"{one.name} ({one.weights}{', second' * place})" for place, one in enumerate(opened)]
    if wanted and "order" in wanted and not any(one.reorders for one in opened):
        raise ValueError(
            f"measures (order) is of reordering layers, and none is found in {' or '.join(names)}: leave it out"
        )
    first = opened[0]
    for second in opened[1:]:
        if (second.channels, second.side or first.side) != (first.channels, first.side or second.side):
            raise ValueError(
                f"compare ({second.name}) takes {_told(second)}, {first.name} {_told(first)}: "
                "they cannot be shown the same images"
            )
    screen = Terminal(console)
    try:
        if dataset:
            if size is not None:
                raise ValueError(f"size ({size}) is for folders of pictures: {dataset} has its own")
            found = gallery.open_dataset(dataset, folder=data, count=count, say=screen.say)
        else:
            sides = {one.side for one in opened if one.side} or {size or gallery.SIZE}
            if size is not None and size not in sides:
                raise ValueError(f"size ({size}) is not what {first.name} takes, {sides.pop()}: leave it out")
            tick = _Ticks(screen, "checking pictures")
            found = gallery.open_folder(
                Path(images),
                channels=first.channels,
                side=sides.pop(),
                crop=first.crop,
                classes=first.classes if labels else None,
                labels=labels,
                count=count,
                strict=strict,
                workers=(os.cpu_count() or 1) if workers is None else workers,
                progress=tick,
            )
        if found.bad:
            more = f"; and {len(found.bad) - SHOWN} more" if len(found.bad) > SHOWN else ""
            screen.say(f"{len(found.bad)} pictures are left out: {'; '.join(map(clean, found.bad[:SHOWN]))}{more}")
        grids = {}
        if "rotate" in kinds:
            grids["rotate"] = rotations()
        if "translate" in kinds:
            grids["translate"] = translations(axes=along)
        models, rows, worst = [], [], []
        poses: dict[str, tuple[float, ...]] = {}
        for name, one in zip(names, opened, strict=True):
            invariance = wanted is None or "invariance" in wanted
            numbers = run(
                one.network,
                found.data,
                grids=grids,
                layers=layers or None,
                invariance=invariance,
                similarity=wanted is None or "similarity" in wanted,
                order=None if wanted is None or "order" in wanted else False,
                fill=found.fill,
                seed=seed,
                classes=len(found.classes) or None,
                report=screen.count(f"measuring {clean(name)}", forwards(len(found), grids, invariance=invariance)),
            )
            poses = {pose: tuple(place) for pose, place in numbers.poses.items()}
            models.append(
                measured.Model(
                    name, one.weights, numbers.classes, numbers.forwards, numbers.seconds, numbers.cpu_seconds
                )
            )
            rows += [_row(row) for row in findings.rows(numbers, name)]
            for image in findings.broken(numbers, found.data, SHOWN, fill=found.fill):
                worst.append(_worst(name, image, found.names, one.classes or found.classes, poses))
    finally:
        screen.close()
    document = measured.Document(
        images=found.title,
        n=len(found),
        labelled=bool(found.classes),
        models=models,
        poses=poses,
        grids={grid: list(members) for grid, members in grids.items()},
        rows=rows,
        worst=worst,
        bad=list(found.bad),
        seed=seed,
        command=shlex.join(["patchreorder", *sys.argv[1:]]),
        origin=provenance(),
    )
    measured.write(document, out / "measure.json")
    measured_page.write(document, out / "measure.html")
    measured.show(document, console)
    screen.say(f"\nNumbers: {clean(str(out / 'measure.json'))}. Page: {clean(str(out / 'measure.html'))}.")
    screen.say("Next: open the page in a browser; `--compare OTHER` sets another network beside this one.")


class _Ticks:
    """Shows how many pictures were checked."""

    def __init__(self, screen: Any, title: str) -> None:
        self.screen, self.title, self.done = screen, title, 0
        self.show: Any = None

    def __call__(self, done: int, total: int) -> None:
        self.show = self.show or self.screen.count(self.title, total)
        self.show(done - self.done)
        self.done = done


def _listed(name: str, text: str, known: tuple[str, ...]) -> list[str]:
    values = [value.strip() for value in text.split(",") if value.strip()]
    if not values or not set(values) <= set(known):
        raise ValueError(f"{name} ({text}) must be of {', '.join(known)}, with commas between")
    return values


def _told(one: Any) -> str:
    kind = "grey images" if one.channels == 1 else "images in colours"
    return f"{kind} of {one.side}x{one.side}" if one.side else kind


def _row(row: dict[str, Any]) -> measured.Row:
    own = measured.Row.__dataclass_fields__.keys()
    facts = {name: value for name, value in row.items() if name not in own}
    return measured.Row(**{name: value for name, value in row.items() if name in own}, facts=facts)


def _worst(model: str, image: Any, names: Any, classes: Any, poses: Any) -> measured.Worst:
    def called(answer: int) -> str:
        return str(classes[answer]) if answer < len(classes) else f"answer {answer}"

    label = "" if image.label is None else f", label {called(image.label)}"
    texts = [f"as it is: {called(image.answer)}{label}"]
    texts += [f"{measured.in_words(poses[pose])}: {called(answer)}" for pose, answer in image.poses]
    return measured.Worst(model, names[image.image], image.changed, image.pictures, texts)
