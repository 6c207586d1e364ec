"""Help from signatures and docstrings: names, values, defaults, advanced options last, lines that fit."""

from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from patchreorder.commands import help_text
from patchreorder.commands.values import Advanced, File, Folder


def paint(
    images: Annotated[tuple[str, ...], Positional, arg(metavar="IMAGE ...")],
    *,
    out: Folder,
    colour: str = "red",
    k: Annotated[int, arg(aliases=["-k"])] = 4,
    page: File | None = None,
    frame: bool = True,
    style: Advanced[Literal["oil", "ink"]] = "oil",
    speeds: Advanced[tuple[float, ...]] = (),
    folder_of_brushes: Advanced[Folder] = Path("brushes"),
) -> None:
    """Paint over images.

    They are
    changed.

    Examples:
        patchreorder paint a.jpg
        patchreorder paint b.jpg -k 3

    Args:
        images: to paint over.
        out: where they go.
        colour: of the paint,
            in English.
        k: coats.
        page: with all of them.
        frame: around them.
        style: of painting.
        speeds: of the brush; slow by default.
        folder_of_brushes: where they are.
    """


EXPECTED = """\
usage: patchreorder paint IMAGE ... [options]

Paint over images.

They are changed.

examples:
  patchreorder paint a.jpg
  patchreorder paint b.jpg -k 3

arguments:
  IMAGE ...  to paint over

options:
  --out FOLDER     where they go (required)
  --colour COLOUR  of the paint, in English
                   (default: red)
  -k, --k N        coats (default: 4)
  --page FILE      with all of them
  --no-frame       around them
  -h, --help       show this

colours:
  red  as blood

advanced:
  --style oil|ink           of painting (default:
                            oil)
  --speeds X ...            of the brush; slow by
                            default
  --folder-of-brushes FOLDER
                            where they are
                            (default: brushes)"""


def test_help_of_a_command():
    assert help_text.command_help("paint", paint, width=50, sections={"colours": {"red": "as blood"}}) == EXPECTED


def test_overview():
    text = help_text.overview({"art": {"paint": "Paint."}}, about="Art.", examples=["patchreorder paint"], width=60)
    assert text.startswith("usage: patchreorder COMMAND [options]\n\nArt.\n\nexamples:\n  patchreorder paint\n\nart:\n")
    assert "\n  paint  Paint.\n" in text
