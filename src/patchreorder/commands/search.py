"""`patchreorder search INDEX IMAGE`: the images of an index that show the same as another image."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import Annotated

from rich.table import Column, Table
from rich.text import Text
from tyro.conf import Positional, arg

from patchreorder.untrusted import clean

from .console import open_console, print_plain
from .values import Advanced, File, Shown

COMPARED = 4  # hits that are compared with the query


def search(
    index: Annotated[Path, Positional, arg(metavar="INDEX")],
    image: Annotated[Path, Positional, arg(metavar="IMAGE")],
    *,
    k: Annotated[int, arg(aliases=["-k"])] = 4,
    html: File | None = None,
    json: bool = False,
    crop: Annotated[str | None, Shown("LEFT,TOP,WIDTH,HEIGHT")] = None,
    poses: bool = False,
    model: Advanced[str | None] = None,
    weights: Advanced[File | None] = None,
    workers: Advanced[int | None] = None,
) -> None:
    """Find the images of an index that are nearest to an image, or to every image of a folder.

    Examples:
        patchreorder search photos.index key.jpg --html found.html
        patchreorder search photos.index street.jpg --crop 40,60,200,200 -k 10

    Args:
        index: folder that `patchreorder index` made.
        image: an image, or a folder of images.
        k: how many to find.
        crop: left,top,width,height of the part of the image to search for, in pixels.
        json: print one JSON document, nothing else.
        poses: also rotate the image (every 45 degrees) and shift it (by a fifth, four ways): twelve times the work.
        html: write a page with thumbnails.
        model: the network that describes images; it must be that of the index.
        weights: file with its weights; by default that of the index.
        workers: processes that decode images; by default all cores.
    """
    if not image.exists():
        raise ValueError(f"{clean(str(image))} is not an image and not a folder")
    piped = not sys.stdout.isatty()
    console = open_console(stderr=json or piped)
    from patchreorder.data.loader import processors
    from patchreorder.engine.memory import keep_freed_memory
    from patchreorder.engine.progress import Terminal
    from patchreorder.search import page
    from patchreorder.search.descriptors import open_descriptor
    from patchreorder.search.index import Index
    from patchreorder.search.listing import answer_cells, answers_json
    from patchreorder.search.local_features import has_opencv
    from patchreorder.search.query import parse_box, search_images

    box = parse_box(crop) if crop else None

    if html:
        page.need_jinja()
    keep_freed_memory()
    screen = Terminal(console)
    with console.status("opening the index"):
        opened = Index(index)
    if weights is None and opened.manifest.weights:
        weights = Path(opened.manifest.weights)
    descriptor = open_descriptor(model or opened.manifest.maker.model, weights=weights, say=screen.say)
    workers = processors() if workers is None else workers
    with contextlib.closing(screen):
        answers, bad = search_images(
            opened,
            descriptor,
            image,
            k=k,
            poses=poses,
            box=box,
            relations=COMPARED if has_opencv() else 0,
            workers=workers,
            screen=screen,
        )
    if not answers:
        raise ValueError("; ".join(bad))
    if json:
        print_plain(answers_json(answers, opened.root))
        return
    many = image.is_dir()
    cells = answer_cells(answers, many=many, poses=poses)
    if piped:
        print_plain("".join("\t".join(row) + "\n" for row in cells))
    else:
        heads = [*["query"] * many, "rank", "distance", "file", "relation", *["query's pose"] * poses]
        table = Table(*(Column(head, overflow="fold") for head in heads))
        for row in cells:
            table.add_row(*map(Text, row))
        console.print(table)
    if not len(opened):
        screen.say(f"{clean(str(index))} holds no images that can be found.")
    for reason in bad:
        screen.say(reason)
    screen.say(f"Files are in {clean(str(opened.root))}; distances are from 0 (the same image) to 2.")
    if html:
        root = image if many else image.parent
        sections = [
            page.Section(
                answer.query,
                [page.Thumbnail.of(hit, opened.root) for hit in answer.hits],
                page.Thumbnail(root / answer.query, answer.query, ["query"]),
            )
            for answer in answers
        ]
        about = [f"The {k} nearest of {len(opened)} images in {opened.root}, by {opened.manifest.maker}.", *bad]
        with console.status("writing the page"):
            page.write(html, sections, title="Nearest images", about=about)
        screen.say(f"Page: {clean(str(html))}.\nNext: open it in a browser.")
    else:
        part = "" if crop else ", `--crop left,top,width,height` searches for a part"
        screen.say(f"Next: `--html FILE` also shows the images{part}.")
