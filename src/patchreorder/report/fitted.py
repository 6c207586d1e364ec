"""The report of `patchreorder fit` as sentences and tables, and on the terminal.

A report is the dictionary that `fit` saves as report.json; what it lacks is left out. Names of files and classes are
untrusted: they are cleaned, cut and never read as markup.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from rich.console import Console
from rich.text import Text

from patchreorder.untrusted import clean, clean_lines

from . import text
from .sheets import Sheet

Report = Mapping[str, Any]

LONGEST = 4096  # letters of a name where names are whole: no path is longer
FEW = 3  # items of a list on the terminal
RELIABLE = 50  # percent of other things that "none of these" must refuse to be worth anything


class Fault(NamedTuple):
    """Something wrong with the photographs."""

    what: str
    names: Sequence[str] = ()


class Confused(NamedTuple):
    """Two classes that are taken for each other, the one that is more often taken for the other first."""

    first: str
    second: str
    there: int  # photographs of the first that are taken for the second
    back: int

    @property
    def total(self) -> int:
        return self.there + self.back


def short_name(name: Any, most: int) -> str:
    """A name without control characters, its middle left out if it is too long.

    >>> short_name("train/a\\x1b[31m/photograph.jpg", 40), short_name("train/a/photograph.jpg", 15)
    ('train/a [31m/photograph.jpg', 'train/a…aph.jpg')
    """
    whole = str(name)
    if len(whole) > most:
        whole = whole[: most // 2] + "…" + whole[-((most - 1) // 2) :]
    return clean(whole)


def verdict(report: Report) -> str:
    """The outcome in a sentence or two."""
    return short_name(report.get("verdict") or "Nothing was measured.", 1000)


def faults(report: Report, *, room: int = LONGEST) -> list[Fault]:
    """What is wrong with the photographs, the worst first.

    Args:
        report: of `fit`.
        room: letters of a name.
    """

    def name(value: Any) -> str:
        return short_name(value, room)

    found = []
    if bad := report.get("unreadable") or {}:
        names = [f"{name(file)} ({name(reason)})" for file, reason in bad.items()]
        found.append(Fault(f"{_files(len(bad))} cannot be read and {_are(len(bad))} left out", names))
    if twice := report.get("in_two_classes") or []:
        names = [" = ".join(map(name, files)) for files in twice]
        found.append(Fault(f"{_photographs(len(twice))} {_are(len(twice))} in more than one class", names))
    if shared := report.get("shared") or []:
        what = f"{_photographs(len(shared), 'test ')} {_are(len(shared))} also in training and left out of the test"
        found.append(Fault(what, [name(file) for file in shared]))
    for key, what in (
        ("absent", "no training photograph that can be read"),
        ("single", "one training photograph, which cross-validation cannot leave out"),
    ):
        if few := report.get(key) or []:
            classes = "1 class has" if len(few) == 1 else f"{text.count(len(few))} classes have"
            found.append(Fault(f"{classes} {what}", [name(own) for own in few]))
    if others := report.get("ignored") or []:
        what = f"{_files(len(others))} {_are(len(others))} left out: not named like an image, or a link to nothing"
        found.append(Fault(what, [name(file) for file in others]))
    if hurt := report.get("rotations_hurt"):
        found.append(_rotations_hurt(hurt, room))
    return found


def _rotations_hurt(hurt: Mapping[str, Any], room: int) -> Fault:
    degrees = hurt.get("rotations")
    angle = f" by up to {degrees:g}°" if degrees is not None else ""
    cost, loss = (_points(hurt.get(key), text.number, " points") for key in ("cost", "loss"))
    what = (
        f"Rotations hurt (cross-validation): photographs rotated{angle} are right less often by {loss}, and learning "
        f"from them costs {cost} on photographs as they are. If a rotated photograph means something else, say so: "
        "--rotations 45 or 0"
    )
    pairs = [" and ".join(short_name(own, room) for own in pair) for pair in hurt.get("classes") or []]
    return Fault(what + ("; most confused then" if pairs else ""), pairs)


def chosen(report: Report) -> list[str]:
    """What cross-validation chose, and by how much."""
    own = report.get("chosen")
    if not own:
        return []
    backbone = short_name(report.get("backbone", "?"), 80)
    size = f" at {report['size']} pixels" if report.get("size") else ""
    learned = _learned(report, bool(own.get("copies")))
    sentences = [f"Chosen: {short_name(own.get('name'), 200)}; backbone {backbone}{size}; learned from {learned}."]
    gain = report.get("gain") or {}
    better = any(_differs(gain.get(key)) for key in ("upright", "posed"))
    parts, against = [], " against the plain average"
    for key, words in (("upright", "right as they are"), ("posed", "in poses that mean the same")):
        if own.get(key) is not None:
            part = f"{text.number(own[key], 1)} % {words}"
            if better and gain.get(key):
                part += f", {_points(gain[key], text.signed, ' points')}{against}"
                against = ""
            parts.append(part)
    if parts:
        plain = "; this is the plain average, nothing was better" if gain and not better else ""
        sentences.append(f"Cross-validation: {'; '.join(parts)}{plain}.")
    if tuned := report.get("finetune"):
        kept = "kept" if tuned.get("kept") else "not kept, the backbone stays frozen"
        points = _points(tuned.get("gain"), text.signed, " points")
        held = _photographs(tuned.get("held_out", 0))
        sentences.append(f"Fine-tuning for {tuned.get('epochs', 0):g} epochs: {points} on {held} held out; {kept}.")
    return sentences


def _learned(report: Report, copies: bool) -> str:
    number = report.get("copies")
    if not copies:
        return "photographs as they are"
    copies_of = "1 posed copy" if number == 1 else f"{number} posed copies"
    return f"photographs and {copies_of} of each" if number else "photographs and posed copies"


def _differs(gain: Mapping[str, float] | None) -> bool:
    return gain is not None and any(gain[key] for key in ("value", "low", "high"))


def methods(report: Report) -> list[str]:
    """The classifiers that were tested, ours first."""
    return list(next(iter((report.get("accuracy") or {}).values()), {}))


def accuracy_sheet(report: Report, *, differences: bool) -> Sheet:
    """Accuracy in each pose, a column for each method.

    Args:
        report: of `fit`.
        differences: give the paired differences in columns of their own; else intervals are rounded, and a star marks
            methods whose difference to the first is more than chance.
    """
    names = methods(report)
    paired = report.get("differences") or {}
    rows = []
    for pose, own in (report.get("accuracy") or {}).items():
        against = paired.get(pose) or {}
        marks = {name: "*" if not differences and _shown(against.get(name)) else "" for name in names}
        row = [_pose(pose), *(_with_interval(own.get(name), int(differences)) + marks[name] for name in names)]
        rows.append(row + ([_points(against.get(name), text.signed) for name in names[1:]] if differences else []))
    angles = report.get("angles") or {}
    if angles and rows:
        number = max(len(own.get("degrees") or ()) for own in angles.values())
        empty = [text.NONE] * (len(names) - 1) if differences else []
        means = [text.number((angles.get(name) or {}).get("mean"), 1) for name in names]
        worsts = [_worst((angles.get(name) or {}).get("worst")) for name in names]
        rows += [[f"mean of {number} rotations", *means, *empty], [f"worst of {number} rotations", *worsts, *empty]]
    heads = ["% right", *names, *(f"{names[0]} {text.MINUS} {name}" for name in names[1:] if differences)]
    return Sheet("Accuracy in each pose", [clean(head) for head in heads], rows)


def _pose(name: str) -> str:
    return clean(name) + ("°" if name[-1:].isdigit() else "")


def _shown(difference: Mapping[str, float] | None) -> bool:
    return difference is not None and (difference["low"] > 0 or difference["high"] < 0)


def _with_interval(rate: Mapping[str, float] | None, digits: int) -> str:
    if not rate:
        return text.NONE
    ends = (text.number(rate[key], digits) for key in ("low", "high"))
    return f"{text.number(rate['value'], 1)} ({' to '.join(ends)})"


def _worst(rate: Mapping[str, float] | None) -> str:
    return f"{text.number(rate['value'], 1)} at {rate['degrees']:g}°" if rate else text.NONE


def _points(difference: Mapping[str, float] | None, written: Callable[[float, int], str], unit: str = "") -> str:
    if not difference:
        return text.NONE
    value, low, high = (written(difference[key], 1) for key in ("value", "low", "high"))
    return f"{value}{unit} ({low} to {high})"


def weakest(report: Report) -> list[Mapping[str, Any]]:
    """The classes with test photographs, the one with the lowest share of right ones first."""
    tested = [own for own in report.get("per_class") or [] if own.get("test")]
    return sorted(tested, key=lambda own: (own["right"] / own["test"], -own["test"]))


def confusion(report: Report) -> tuple[Sequence[Sequence[int]], Sequence[str]]:
    """The confusion matrix (label, prediction) and the names of its classes; empty without either."""
    matrix, classes = report.get("confusion") or [], report.get("classes") or []
    return (matrix, classes) if len(matrix) == len(classes) else ([], [])


def confused(report: Report) -> list[Confused]:
    """The pairs of classes that are taken for each other, the most frequent first."""
    matrix, classes = confusion(report)
    counts = {
        (truth, answer): number
        for truth, row in enumerate(matrix)
        for answer, number in enumerate(row)
        if number and truth != answer
    }
    found = []
    for (truth, answer), there in counts.items():
        back = counts.get((answer, truth), 0)
        if there > back or (there == back and truth < answer):
            found.append(Confused(str(classes[truth]), str(classes[answer]), there, back))
    return sorted(found, key=lambda pair: -pair.total)


def calibration(report: Report) -> str:
    """How far probabilities can be trusted; "" if that was not measured."""
    error = report.get("calibration_error")
    if error is None:
        return ""
    return f"Probabilities are off by {text.number(error, 1)} points on average (expected calibration error)."


def refusal(report: Report) -> str:
    """What "none of these" does; "" if that was not measured."""
    found = report.get("refusal") or {}
    own, others = found.get("test", found.get("own")), found.get("others")
    if own is None:
        return ""
    which = "test photographs" if found.get("test") is not None else "training photographs (cross-validation)"
    sentence = f'"None of these" wrongly refuses {text.number(own, 1)} % of the {which}'
    if others is None:
        return f"{sentence}; how many of other things it refuses is not known."
    sentence += f"; of photographs of classes left out of training it refuses {text.number(others, 1)} %"
    return sentence + (": do not rely on it." if others < RELIABLE else ".")


def doubt(mistake: Mapping[str, Any], *, room: int = LONGEST) -> str:
    """The label and the prediction of a photograph."""
    sure = mistake.get("probability")
    percent = "" if sure is None else f" ({text.number(100 * sure, 0)} %)"
    label, answer = (short_name(mistake.get(key, "?"), room) for key in ("class", "answer"))
    return f"label {label}, predicted {answer}{percent}"


def show(report: Report, console: Console) -> None:
    """Print the report; on a terminal long names are cut, piped they are whole."""
    terminal = console.is_terminal
    classes, files = (40, 90) if terminal else (LONGEST, LONGEST)

    def say(content: str, style: str = "", *, whole: bool = False) -> None:
        console.print(Text(clean_lines(content), style), soft_wrap=whole or not terminal)

    say(verdict(report), "bold")
    for what, names in faults(report, room=files):
        say(f"{what}{_listed(names)}.", "yellow")
    for sentence in chosen(report):
        say(sentence)
    sheet = accuracy_sheet(report, differences=False)
    for number, line in enumerate(_lines(sheet)):
        say(line if number else f"\n{line}", "" if number else "bold", whole=True)
    if sheet.rows:
        starred = any(cell.endswith("*") for row in sheet.rows for cell in row)
        star = f"; * differs from {sheet.heads[1]} by more than chance (paired)" if starred else ""
        say(f"In brackets: 95 % intervals{star}.\n", "dim")
    low = [
        f"{short_name(own['class'], classes)} ({own['right']} of {own['test']} right)"
        for own in weakest(report)[:FEW]
        if own["right"] < own["test"]
    ]
    pairs = [
        f"{short_name(pair.first, classes)} and {short_name(pair.second, classes)} ({pair.total})"
        for pair in confused(report)[:FEW]
    ]
    if low and pairs:
        say(f"Weakest classes: {', '.join(low)}. Most confused: {', '.join(pairs)}.")
    for sentence in filter(None, (calibration(report), refusal(report))):
        say(sentence)
    wrong = report.get("mislabelled") or []
    if wrong:
        more = f", the first {FEW}" if len(wrong) > FEW else ""
        say(f"{_photographs(len(wrong), 'training ')} {_are(len(wrong))} probably mislabelled{more}:")
        for each in wrong[:FEW]:
            say(f"  {short_name(each.get('name', '?'), files)}: {doubt(each, room=classes)}", whole=True)


def _listed(names: Sequence[str]) -> str:
    if not names:
        return ""
    more = f"; and {text.count(len(names) - FEW)} more" if len(names) > FEW else ""
    return f": {'; '.join(names[:FEW])}{more}"


def _lines(sheet: Sheet) -> Iterator[str]:
    """A table as lines of aligned text."""
    if not sheet.rows:
        return
    table = [sheet.heads, *sheet.rows]
    widths = [max(len(row[column]) for row in table) for column in range(len(sheet.heads))]
    for row in table:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _files(number: int) -> str:
    return "1 file" if number == 1 else f"{text.count(number)} files"


def _photographs(number: int, kind: str = "") -> str:
    return f"1 {kind}photograph" if number == 1 else f"{text.count(number)} {kind}photographs"


def _are(number: int) -> str:
    return "is" if number == 1 else "are"
