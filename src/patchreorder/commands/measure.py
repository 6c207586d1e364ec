"""`patchreorder measure MODEL --images DIR_OR_DATASET`: how invariant a network is, and where it is not."""

from __future__ import annotations

import contextlib
import os
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
from .values import Advanced, File, Folder, Shown

TRANSFORMS = ("rotate", "translate")
AXES = ("x", "y", "diagonal")
MEASURES = ("invariance", "similarity", "order")
COUNT = 1000
SHOWN = 5  # unstable images, and unreadable files that are listed by name


def measure(
    model: Annotated[str, Positional, arg(metavar="MODEL")],
    *,
    images: Annotated[str, Shown("FOLDER|DATASET")],
    compare: Annotated[str | None, Shown("MODEL")] = None,
    count: int = COUNT,
    out: Folder = Path("runs/measure"),
    json: bool = False,
    csv: bool = False,
    layer: str | None = None,
    place: str | None = None,
    weights: File | None = None,
    transforms: Advanced[str] = "rotate,translate",
    axes: Advanced[str] = "x,y",
    layers: Advanced[tuple[str, ...]] = (),
    measures: Advanced[str | None] = None,
    compare_weights: Advanced[File | None] = None,
    compare_layer: Advanced[Annotated[str | None, Shown("LAYER")]] = None,
    compare_place: Advanced[Annotated[str | None, Shown("PLACE")]] = None,
    labels: Advanced[bool] = True,
    strict: Advanced[bool] = False,
    size: Advanced[int | None] = None,
    data: Advanced[Folder | None] = None,
    seed: Advanced[int] = 0,
    threads: Advanced[int] = 0,
    workers: Advanced[int | None] = None,
) -> None:
    """Measure how invariant a network is to rotations and shifts, layer by layer: tables, numbers, a page.

    Every image passes through the network as it is, rotated by -45 to 45 degrees and shifted by -20 to 20 %.

    Examples:
        patchreorder measure pr_cnn --images mnist --compare cnn
        patchreorder measure torchvision:resnet18 --images photos --layer reorder:grid=pixels --place layer4

    Args:
        model: a network of ours (such as pr_cnn), a file that `patchreorder fit` made, MODULE:FUNCTION that builds an
            nn.Module, torchvision:NAME or timm:NAME, or an .onnx file.
        images: a folder of images, or of one folder per class (then errors are counted too: the class folders, sorted
            by name, are the network's outputs in their order); or mnist, mnist-r, mnist-t, cifar10,
            cifar10-r, cifar10-t.
        transforms: rotate, translate or both.
        axes: of the shifts: x, y, diagonal.
        layers: names of the layers to measure, as in named_modules (for an ONNX file: names of outputs in its graph);
            by default at most a dozen outputs of convolutions and fully connected layers, and all reordering layers.
        measures: of layers: invariance, similarity, order; by default all that apply.
        count: how many images; 0 for all.
        compare: another network, measured on the same images and compared with the first.
        weights: file with the network's weights (.safetensors, .pt, .pth), read without running code.
        compare_weights: the same for the other network.
        layer: a reordering layer by name, such as ranked:quantiles=16 or align. A network of ours is created with it
            and needs --weights that were trained with it; into other networks it is inserted.
        place: where the layer goes: for ours a place as in create_model (pool, input), for others the module that it
            is inserted after.
        compare_layer: the same for the other network.
        compare_place: the same for the other network.
        labels: class folders are labels; --no-labels ignores them.
        strict: fail if an image cannot be read, instead of leaving it out.
        json: print the numbers as JSON and nothing else on standard output.
        csv: print them as CSV: model,measure,layer,transform,pose,value,low,high,n.
        size: pixels a side of the images of a folder, if the network does not say; 224 by default.
        data: folder with the data set's files; by default they are downloaded once and cached.
        out: folder for measure.json and measure.html.
        seed: of the neurons that are sampled from large layers.
        threads: for computation; all cores by default.
        workers: for decoding images; as many as cores by default.
    """
    if json and csv:
        raise ValueError("json and csv: choose one of them")
    console = open_console(stderr=json or csv)
    page.need_packages()
    kinds, along = _listed("transforms", transforms, TRANSFORMS), _listed("axes", axes, AXES)
    wanted = MEASURES if measures is None else _listed("measures", measures, MEASURES)
    for name, value, least in (
        ("count", count, 0),
        ("threads", threads, 0),
        ("workers", workers, 0),
        ("size", size, 1),
    ):
        if value is not None and value < least:
            raise ValueError(f"{name} ({value}) must be {least} or more")
    for name, other in {"weights": compare_weights, "layer": compare_layer, "place": compare_place}.items():
        if other is not None and not compare:
            raise ValueError(f"compare-{name} ({other}) is for the network of --compare: give --compare too")
    import torch

    from patchreorder.data.poses import rotations, translations
    from patchreorder.engine.memory import keep_freed_memory
    from patchreorder.engine.progress import Terminal
    from patchreorder.measuring import findings, image_set
    from patchreorder.measuring.measure import forward_passes
    from patchreorder.measuring.measure import measure as run
    from patchreorder.measuring.networks import common_side, distinct_names, open_network

    keep_freed_memory()
    if threads:
        torch.set_num_threads(threads)
    dataset = images if image_set.is_dataset(images) else None
    opened = [open_network(model, dataset=dataset, weights=weights, layer=layer, place=place)]
    if compare:
        opened.append(
            open_network(compare, dataset=dataset, weights=compare_weights, layer=compare_layer, place=compare_place)
        )
    opened = distinct_names(opened)
    side = common_side(opened)
    if measures is not None and "order" in wanted and not any(network.reorders for network in opened):
        names = " or ".join(network.name for network in opened)
        raise ValueError(f"measures (order) needs a reordering layer, and {names} has none: leave it out")
    with contextlib.closing(Terminal(console)) as screen:
        if dataset:
            if size is not None:
                raise ValueError(f"size ({size}) is for folders of images: {dataset} has its own")
            found = image_set.open_dataset(dataset, folder=data, count=count, say=screen.say)
        else:
            if size is not None and side not in (None, size):
                raise ValueError(f"size ({size}) is not what {opened[0].name} takes, {side}: leave it out")
            found = image_set.open_folder(
                Path(images),
                channels=opened[0].channels,
                side=side or size or image_set.SIZE,
                crop=opened[0].crop,
                classes=opened[0].classes if labels else None,
                labels=labels,
                count=count,
                strict=strict,
                workers=(os.cpu_count() or 1) if workers is None else workers,
                progress=screen.progress("checking images"),
            )
        for files, what in ((found.bad, "images are left out"), (found.ignored, "files are no images")):
            if files:
                more = f"; and {len(files) - SHOWN} more" if len(files) > SHOWN else ""
                screen.say(f"{len(files)} {what}: {'; '.join(map(clean, files[:SHOWN]))}{more}")
        poses = {"rotate": rotations(), "translate": translations(axes=along)}
        poses = {kind: poses[kind] for kind in TRANSFORMS if kind in kinds}
        models: list[measured.MeasuredNetwork] = []
        measurements: list[Measurement] = []
        unstable: list[UnstableImage] = []
        for network in opened:
            passes = forward_passes(len(found), poses, invariance="invariance" in wanted)
            scores = run(
                network.network,
                found.data,
                transforms=poses,
                layers=layers or None,
                invariance="invariance" in wanted,
                similarity="similarity" in wanted,
                order="order" in wanted,
                fill=found.fill,
                seed=seed,
                classes=len(found.classes) or None,
                report=screen.count(f"measuring {clean(network.name)}", passes),
            )
            cost = scores.forwards, scores.seconds, scores.cpu_seconds
            models.append(measured.MeasuredNetwork(network.name, network.weights, scores.classes, *cost))
            measurements += findings.measurements(scores, network.name)
            unstable += findings.unstable_images(scores, network.name, found, SHOWN, classes=network.classes or ())
    document = measured.Document(
        images=found.title,
        n=len(found),
        labelled=bool(found.classes),
        models=models,
        poses={name: tuple(pose) for name, pose in scores.poses.items()},
        transforms=scores.transforms,
        measurements=measurements,
        unstable=unstable,
        labels=[] if scores.labels is None else scores.labels.tolist(),
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
    other = "" if compare else "; `--compare OTHER` compares this network with another one"
    screen.say(f"Next: open the page in a browser{other}.")


def _listed(name: str, text: str, known: tuple[str, ...]) -> list[str]:
    values = [value.strip() for value in text.split(",") if value.strip()]
    if not values or not set(values) <= set(known):
        raise ValueError(f"{name} ({text}) must be one or more of {', '.join(known)}, separated by commas")
    return values
