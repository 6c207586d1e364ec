"""`patchreorder measure MODEL --images DIR_OR_DATASET`: how invariant a network is, and where it is not."""

from __future__ import annotations

import contextlib
import shlex
import sys
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from patchreorder.laboratory.provenance import provenance
from patchreorder.measuring.measurement import Measurement, UnstableImage
from patchreorder.report import measured, measured_files, measured_page, page
from patchreorder.untrusted import clean

from .console import open_console
from .values import Advanced, Folder, Shown

TRANSFORMS = ("rotate", "rotate360", "translate", "flip", "scale", "crops", "combine")
PAPER = "rotate,translate"
ALL = "all"
AXES = ("x", "y", "diagonal")
NONE = "-"  # in place of a file, layer or place that a network does not have
MEASURES = ("invariance", "similarity", "equivariance", "order")
COUNT = 1000
SHOWN = 5  # unstable images, and unreadable files that are listed by name


def measure(
    models: Annotated[tuple[str, ...], Positional, arg(metavar="MODEL ...")],
    *,
    images: Annotated[str, Shown("FOLDER|DATASET")],
    transforms: str = PAPER,
    padded: bool = False,
    count: int = COUNT,
    out: Folder = Path("runs/measure"),
    json: bool = False,
    csv: bool = False,
    weights: Annotated[tuple[str, ...], Shown("FILE ...")] = (),
    layer: Annotated[tuple[str, ...], Shown("LAYER ...")] = (),
    place: Annotated[tuple[str, ...], Shown("PLACE ...")] = (),
    axes: Advanced[str] = "x,y",
    layers: Advanced[tuple[str, ...]] = (),
    measures: Advanced[str | None] = None,
    labels: Advanced[bool] = True,
    strict: Advanced[bool] = False,
    size: Advanced[int | None] = None,
    data: Advanced[Folder | None] = None,
    seed: Advanced[int] = 0,
    threads: Advanced[int] = 0,
    workers: Advanced[int | None] = None,
) -> None:
    """Measure how invariant networks are to poses of the image, layer by layer: tables, numbers, a page.

    Every image passes through a network as it is, rotated by -45 to 45 degrees and shifted by -20 to 20 %. Several
    networks see the same images; the first is compared with each other one.

    Examples:
        patchreorder measure pr_cnn cnn st_cnn --images mnist
        patchreorder measure mobilenet_v2 --images photos --transforms all --padded

    Args:
        models: networks of ours (such as pr_cnn or mobilenet_v2), files that `patchreorder fit` made, MODULE:FUNCTION
            that builds an nn.Module, torchvision:NAME or timm:NAME, or .onnx files.
        images: a folder of images, or of one folder per class (then errors are counted too: the class folders, sorted
            by name, are the network's outputs in their order); or mnist, mnist-r, mnist-t, cifar10,
            cifar10-r, cifar10-t.
        transforms: some of rotate, rotate360 (all angles), translate, flip, scale, crops (random crops, much as in
            the BlurPool paper) and combine (random rotations, shifts, scales and flips at once), or all.
        padded: shrink every image on its canvas first, so that no pose loses a part of it; otherwise poses cut
            off corners and edges, as in the paper.
        axes: of the shifts: x, y, diagonal.
        layers: names of the layers to measure, as in named_modules (for an ONNX file: names of outputs in its graph);
            by default at most a dozen outputs of convolutions and fully connected layers, and all reordering layers.
        measures: of layers: invariance, similarity, equivariance, order; by default all that apply.
        count: how many images; 0 for all.
        weights: files with the networks' weights (.safetensors, .pt, .pth), read without running code: one for each
            network, - for its own.
        layer: reordering layers by name, such as ranked:quantiles=16 or align, one for each network, - for none. A
            network of ours is created with it and needs --weights that were trained with it; into others it is
            inserted.
        place: where these layers go: for ours a place as in create_model (pool, input), for others the module that it
            is inserted after; one for each network, - for none.
        labels: class folders are labels; --no-labels ignores them.
        strict: fail if an image cannot be read, instead of leaving it out.
        json: print the numbers as JSON and nothing else on standard output.
        csv: print them as CSV: model,measure,layer,transform,pose,value,low,high,n.
        size: pixels a side of the images of a folder, for networks that do not say; 224 by default.
        data: folder with the data set's files; by default they are downloaded once and cached.
        out: folder for measure.json and measure.html.
        seed: of the neurons that are sampled from large layers, and of random poses.
        threads: for computation; all cores by default.
        workers: for decoding images; as many as cores by default.
    """
    if json and csv:
        raise ValueError("json and csv: choose one of them")
    console = open_console(stderr=json or csv)
    page.need_packages()
    if not models:
        raise ValueError("model (none): name one network or more, such as pr_cnn or mobilenet_v2")
    kinds, along = _listed("transforms", transforms, TRANSFORMS, every=ALL), _listed("axes", axes, AXES)
    wanted = MEASURES if measures is None else _listed("measures", measures, MEASURES)
    for name, value, least in (
        ("count", count, 0),
        ("threads", threads, 0),
        ("workers", workers, 0),
        ("size", size, 1),
    ):
        if value is not None and value < least:
            raise ValueError(f"{name} ({value}) must be {least} or more")
    own = [
        _of_each(name, given, len(models)) for name, given in (("weights", weights), ("layer", layer), ("place", place))
    ]
    import torch

    from patchreorder.data.loader import processors
    from patchreorder.data.sweeps import fitting_side, sweep
    from patchreorder.engine.memory import keep_freed_memory
    from patchreorder.engine.progress import Terminal
    from patchreorder.measuring import findings, image_set
    from patchreorder.measuring.measure import forward_passes
    from patchreorder.measuring.measure import measure as run
    from patchreorder.measuring.networks import common_classes, distinct_names, open_network

    keep_freed_memory()
    if threads:
        torch.set_num_threads(threads)
    dataset = images if image_set.is_dataset(images) else None
    opened = distinct_names(
        [
            open_network(name, dataset=dataset, weights=file and Path(file), layer=own_layer, place=own_place)
            for name, file, own_layer, own_place in zip(models, *own, strict=True)
        ]
    )
    if measures is not None and "order" in wanted and not any(network.reorders for network in opened):
        names = " or ".join(network.name for network in opened)
        raise ValueError(f"measures (order) needs a reordering layer, and {names} has none: leave it out")
    with contextlib.closing(Terminal(console)) as screen:
        if dataset:
            if size is not None:
                raise ValueError(f"size ({size}) is for folders of images: {dataset} has its own")
            found = image_set.open_dataset(dataset, folder=data, count=count, say=screen.say)
        else:
            if size is not None and all(network.side for network in opened):
                sides = " and ".join(f"{network.name} takes {network.side}" for network in opened)
                raise ValueError(f"size ({size}) is for networks that do not say theirs, but {sides}: leave it out")
            found = image_set.open_folder(
                Path(images),
                classes=common_classes(opened) if labels else None,
                labels=labels,
                count=count,
                strict=strict,
                workers=processors() if workers is None else workers,
                progress=screen.progress("checking images"),
            )
        for files, one, several in (
            (found.bad, "1 image is left out", "images are left out"),
            (found.ignored, "1 file is no image", "files are no images"),
        ):
            if files:
                more = f"; and {len(files) - SHOWN} more" if len(files) > SHOWN else ""
                what = one if len(files) == 1 else f"{len(files)} {several}"
                screen.say(f"{what}: {'; '.join(map(clean, files[:SHOWN]))}{more}")
        poses = {kind: sweep(kind, axes=along, seed=seed) for kind in kinds}
        side = fitting_side(pose for own in poses.values() for pose in own.values()) if padded else 1.0
        seen: list[measured.MeasuredNetwork] = []
        measurements: list[Measurement] = []
        unstable: list[UnstableImage] = []
        for network in opened:
            takes = network.side or size or image_set.SIZE
            shown = found.for_network(channels=network.channels, side=takes, crop=network.crop)
            passes = forward_passes(len(found), poses, invariance="invariance" in wanted)
            scores = run(
                network.network,
                shown.data,
                transforms=poses,
                layers=layers or None,
                invariance="invariance" in wanted,
                similarity="similarity" in wanted,
                order="order" in wanted,
                equivariance="equivariance" in wanted,
                fill=shown.fill,
                side=side,
                seed=seed,
                classes=len(found.classes) or None,
                report=screen.count(f"measuring {clean(network.name)}", passes),
            )
            cost = scores.forwards, scores.seconds, scores.cpu_seconds
            seen.append(measured.MeasuredNetwork(network.name, network.weights, scores.classes, *cost))
            measurements += findings.measurements(scores, network.name)
            unstable += findings.unstable_images(
                scores, network.name, shown, SHOWN, classes=network.classes or (), side=side
            )
    document = measured.Document(
        images=found.title,
        n=len(found),
        labelled=bool(found.classes),
        models=seen,
        poses={name: tuple(pose) for name, pose in scores.poses.items()},
        transforms=scores.transforms,
        measurements=measurements,
        unstable=unstable,
        labels=[] if scores.labels is None else scores.labels.tolist(),
        side=side,
        bad=list(found.bad),
        seed=seed,
        command=shlex.join(["patchreorder", *sys.argv[1:]]),
        origin=provenance(),
    )
    measured_files.write(document, out / "measure.json")
    measured_page.write(document, out / "measure.html")
    if json or csv:
        sys.stdout.write(measured_files.as_json(document) if json else measured_files.as_csv(document))
    else:
        measured.show(document, console)
    screen.say(f"\nNumbers: {clean(str(out / 'measure.json'))}. Page: {clean(str(out / 'measure.html'))}.")
    screen.say(f"Next: open the page in a browser{_next(models, kinds, padded)}.")


def _next(models: tuple[str, ...], kinds: list[str], padded: bool) -> str:
    """What has not been done yet."""
    if len(models) == 1:
        return f"; `patchreorder measure {clean(models[0])} OTHER` compares this network with another one"
    left = [kind for kind in TRANSFORMS if kind not in kinds]
    if left:
        return f"; `--transforms {ALL}` adds {', '.join(left)}"
    return "" if padded else "; `--padded` shows poses that lose no part of the image"


def _of_each(name: str, given: tuple[str, ...], count: int) -> list[str | None]:
    """A value for each network."""
    if given and len(given) != count:
        raise ValueError(
            f"{name} ({' '.join(given)}) must have one value for each of {count} networks, {NONE} for a network without"
        )
    return [None if value == NONE else value for value in given] or [None] * count


def _listed(name: str, text: str, known: tuple[str, ...], *, every: str = "") -> list[str]:
    """The values of a list with commas, in the order of `known`; `every` stands for all of them."""
    values = {value.strip() for value in text.split(",") if value.strip()}
    if every and values == {every}:
        return list(known)
    if not values or not values <= set(known):
        more = f", or {every}" if every else ""
        raise ValueError(f"{name} ({text}) must be one or more of {', '.join(known)}, separated by commas{more}")
    return [value for value in known if value in values]
