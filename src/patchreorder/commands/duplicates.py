"""`patchreorder duplicates INDEX`: copies of images, in any pose, verified by their pixels."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Annotated

from rich.table import Table
from rich.text import Text
from tyro.conf import Positional, arg

from patchreorder.untrusted import clean, quoted

from .console import open_console, print_plain
from .values import Advanced, File, Folder

SHOWN = 40  # similar pairs in a terminal


def duplicates(
    index: Annotated[Path, Positional, arg(metavar="INDEX")],
    *,
    html: File | None = None,
    csv: bool = False,
    json: bool = False,
    similar: bool = False,
    move_to: Folder | None = None,
    link: bool = False,
    yes: bool = False,
    undo: bool = False,
    keep: str = "pixels,colours,camera,quality,oldest,folder,name",
    reference: tuple[Folder, ...] = (),
    workers: Advanced[int | None] = None,
) -> None:
    """List copies: the same image re-encoded, resized, rotated by any angle, mirrored, cropped or with other colours.

    Each pair is verified by its pixels. Other shots of a scene and things that look alike are no copies; `--similar`
    lists them apart. One file of each group is kept. Nothing is changed without `--yes`.

    Examples:
        patchreorder duplicates photos.index --html copies.html
        patchreorder duplicates photos.index --move-to spare --yes

    Args:
        index: folder that `patchreorder index` made.
        csv: print a header and one line per file, nothing else.
        json: print one JSON document, nothing else.
        similar: also list what only looks alike.
        keep: what decides which file is kept: pixels, colours, camera (EXIF), quality, oldest, newest, folder, name.
        reference: folders whose files are kept and never touched.
        html: write a page with thumbnails in the found pose.
        move_to: move all files but the kept ones there; without `--yes` only say so.
        link: replace files with the same bytes by hard links to the kept one; without `--yes` only say so.
        yes: do what `--move-to` or `--link` says.
        undo: take back the last `--move-to` or `--link`.
        workers: processes that compare; by default all cores.
    """
    from patchreorder.data.loader import processors
    from patchreorder.engine.progress import Terminal
    from patchreorder.search import actions, duplicates_page, listing, page
    from patchreorder.search.duplicates import find_duplicates
    from patchreorder.search.index import Index
    from patchreorder.search.keeping import KeepRule

    if csv and json:
        raise ValueError("--csv and --json are two forms of the same list: name one")
    if move_to and link:
        raise ValueError("--move-to and --link are two things to do: name one")
    if yes and not (move_to or link):
        raise ValueError("--yes says to do what --move-to DIR or --link would do: name one of them")
    console = open_console(stderr=csv or json)
    screen = Terminal(console)
    if undo:
        for line in actions.undo(index):
            screen.say(line)
        return
    if html:
        page.need_jinja()
    for folder in reference:
        if not folder.is_dir():
            raise ValueError(f"reference ({clean(str(folder))}) must be a folder")
    rule = KeepRule(keep, tuple(folder.resolve() for folder in reference))
    with console.status("opening the index"):
        opened = Index(index)
    workers = processors() if workers is None else workers
    with contextlib.closing(screen):
        found = find_duplicates(opened, keep=rule, similar=similar, workers=workers, screen=screen)
    if csv or json:
        text = listing.csv_text(found, opened.root) if csv else listing.json_text(found, opened.root, similar=similar)
        print_plain(text)
    elif console.is_terminal:
        table = Table("group", "", "relation", "file")
        for number, group in enumerate(found.groups, 1):
            for member in group:
                words = member.words if member.relation else f"kept: {member.why}"
                name = Text(quoted(member.file.name), overflow="fold")
                shown = str(number) if member is group[0] else ""
                table.add_row(shown, "keep" if member.keep else "", Text(words), name, end_section=member is group[-1])
        if found.groups:
            console.print(table)
        for relation, first, second in found.similar[:SHOWN]:
            screen.say(f"{relation.kind}: {quoted(first)} and {quoted(second)}")
        if len(found.similar) > SHOWN:
            screen.say(f"and {len(found.similar) - SHOWN} more; `--json` lists all")
    else:
        print_plain("".join(f"{line}\n" for line in listing.plain_lines(found, similar=similar)))
    notes = Terminal(open_console(stderr=True)) if not console.is_terminal else screen
    spare = sum(not member.keep for group in found.groups for member in group)
    notes.say(
        f"Groups: {len(found.groups)}, with copies to spare: {spare}, images: {len(opened)}, pairs compared: "
        f"{found.compared}. Files are in {clean(str(opened.root))}."
    )
    if html:
        with console.status("writing the page"):
            duplicates_page.write(html, found, opened.root)
        notes.say(f"Page: {clean(str(html))}.\nNext: open it in a browser.")
    if move_to or link:
        for line in actions.act(opened, found, rule=rule, move_to=move_to, really=yes):
            notes.say(line)
    elif not html and found.groups:
        notes.say("Next: `--html FILE` shows the images, `--move-to DIR` or `--link` says what they would do.")
