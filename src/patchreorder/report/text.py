"""Numbers and comparisons as text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .comparison import Difference

if TYPE_CHECKING:
    from .tables import Pair, RecipeResults, TableCell

MISSING, NONE, MINUS = "missing", "\N{EN DASH}", "\N{MINUS SIGN}"


def number(value: float | None, digits: int = 2) -> str:
    return NONE if value is None else f"{value:.{digits}f}".replace("-", MINUS)


def signed(value: float | None, digits: int = 2) -> str:
    if value is None:
        return NONE
    text = f"{value:+.{digits}f}"
    return text[1:] if float(text) == 0 else text.replace("-", MINUS)


def short(value: float | None) -> str:
    """A number of three digits."""
    return NONE if value is None else f"{value:.3g}".replace("-", MINUS)


def count(value: float | None) -> str:
    return NONE if value is None else f"{value:,.0f}"


def chance(p: float) -> str:
    """A p value of two digits, never rounded to zero."""
    return "p < 0.0001" if p < 0.0001 else f"p = {min(p, 1):.2g}"


def duration(seconds: float | None) -> str:
    if seconds is None:
        return NONE
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60:02d} min"


def seeds(numbers: Sequence[int]) -> str:
    return f"seed{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"


def sentence(text: str) -> str:
    """The text with a full stop, unless it is empty or has one."""
    return text if not text or text.endswith((".", "!", "?")) else f"{text}."


def value(cell: TableCell) -> str:
    """Mean ± standard deviation (number of seeds)."""
    if cell.mean is None:
        return MISSING if cell.expected else NONE
    spread = "" if cell.spread is None else f" ± {number(cell.spread, cell.digits)}"
    return f"{number(cell.mean, cell.digits)}{spread} ({len(cell.results)})"


def interval(difference: Difference) -> str:
    """The ends of the 95 % interval."""
    return f"{signed(difference.low, difference.digits)} to {signed(difference.high, difference.digits)}"


def describe(compared: Pair) -> str:
    """A comparison as one to three sentences."""
    a, b = compared.a.title, compared.b.title
    about = f"{a} against {b} on {compared.column.title}"
    found = compared.comparison
    if found is None:
        return f"{about}: not compared, {compared.reason}."
    difference = found.difference
    over = " over images alone" if len(difference.seeds) == 1 else ""
    unequal = f"; {compared.steps}" if compared.steps else ""
    unit, split = "points of error", f"Wrong only by {a} : only by {b}"
    if difference.scores:
        unit, split = "in score", f"Lower for {a} : for {b}"
        drawn = "images" if difference.together == 1 else f"groups of {difference.together} images"
        over = f", drawing {drawn} again,"
    tests = {f"seed {seed}": test for seed, test in found.tests.items()}
    if len(tests) > 1:
        tests["all seeds"] = found.together
    counts = (f"{count(test.only_a)} : {count(test.only_b)}, {chance(test.p)} ({of})" for of, test in tests.items())
    return (
        f"{about}: {found.verdict}. {signed(difference.mean, difference.digits)} {unit} (95 % interval{over} "
        f"{interval(difference)}; {count(difference.n)} images, {seeds(difference.seeds)}{unequal}). {split}: "
        f"{'; '.join(counts)}."
    )


def no_rows(recipe: RecipeResults) -> str:
    how = f": run `{recipe.command}`" if recipe.command else ""
    return f"{recipe.title}: no rows yet{how}."
