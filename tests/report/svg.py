"""Reads drawings back from SVG."""

import re
from xml.etree import ElementTree

SVG = "{http://www.w3.org/2000/svg}"


def texts(svg: str) -> list[str]:
    """The texts of a drawing, in its order."""
    return ["".join(text.itertext()) for text in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def lines(svg: str, colour: str) -> list[list[tuple[float, float]]]:
    """The points of every plotted line of a colour; y grows downwards."""
    found = []
    for path in _plotted(svg, "path"):
        style = path.get("style", "")
        if f"stroke: {colour}" in style and "fill: none" in style:
            found.append([(float(x), float(y)) for x, y in re.findall(r"[ML] ([-\d.e]+) ([-\d.e]+)", path.get("d"))])
    return found


def marks(svg: str, colour: str) -> list[tuple[float, float]]:
    """The positions of all plotted marks that are filled with a colour."""
    uses = [use for use in _plotted(svg, "use") if f"fill: {colour}" in use.get("style", "")]
    return [(float(use.get("x")), float(use.get("y"))) for use in uses]


def _plotted(svg: str, tag: str) -> list[ElementTree.Element]:
    """The elements that are not of the legend."""
    root = ElementTree.fromstring(svg)
    legends = [group for group in root.iter(f"{SVG}g") if group.get("id", "").startswith("legend")]
    keys = {key for legend in legends for key in legend.iter(f"{SVG}{tag}")}
    return [element for element in root.iter(f"{SVG}{tag}") if element not in keys]
