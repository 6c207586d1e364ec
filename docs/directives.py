"""What pages may ask for between double braces: numbers, tables and figures of results/, never typed by hand.

{{ table("table1", "short") }}                       the table, how to read it, its command
{{ pairs("table1", "short") }}                       its paired comparisons, folded
{{ value("table1", "short", "pr_cnn", "R") }}        1.42
{{ gap("table1", "short", "st_cnn", "cnn", "R") }}   0.32 fewer (0.14 to 0.51)
{{ rates("imagenet_today", "short") }}               the table with the 95 % interval of every cell
{{ paper("table2", "cnn", "R") }}                    36.6
{{ worth("few", "generated", "cnn") }}               how many times as many images another row needs for the same error
{{ by_class("classifiers", "coins", "any") }}         a column for each number of training photographs of a class
{{ figure("upright.svg", "Error against angle") }}
{{ speed("operator") }}
"""

from __future__ import annotations

import ast
import functools
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

from patchreorder import recipes, report
from patchreorder.files import write_whole
from patchreorder.laboratory.rows import Result
from patchreorder.metrics.learning_curve import images_for
from patchreorder.metrics.rate import rate
from patchreorder.report.comparison import compare
from patchreorder.report.folder import load
from patchreorder.report.markdown import render_sheet
from patchreorder.report.sheets import Sheet, pairs_sheet, values_sheet
from patchreorder.report.tables import RecipeResults, Table
from patchreorder.report.text import count, interval, number

ROOT = Path(__file__).parent.parent
RESULTS, CACHE = ROOT / "results", ROOT / "build" / "pairs"
PATTERN = re.compile(r"\{\{ (\w+)\((.*?)\) \}\}", re.DOTALL)


def fill(text: str, *, data: str) -> str:
    """Replace what a page asks for; `data` is the address of the files of results/ from that page.

    Raises:
        ValueError: a page asks for what there is not.
    """

    def answer(found: re.Match[str]) -> str:
        name, arguments = found[1], found[2]
        if name not in DIRECTIVES:
            raise ValueError(f"{found[0]}: {name} must be one of {', '.join(DIRECTIVES)}")
        try:
            values = ast.literal_eval(f"({arguments},)") if arguments.strip() else ()
            return DIRECTIVES[name](*values).replace("DATA/", data)
        except (LookupError, TypeError, SyntaxError, OSError) as error:
            raise ValueError(f"{found[0]}: {type(error).__name__}: {error}") from error

    return PATTERN.sub(answer, text)


@functools.cache
def committed() -> dict[str, RecipeResults]:
    """The results of all recipes, by name."""
    found = {recipe.name: recipe for recipe in load(RESULTS)}
    for recipe in found.values():
        if recipe.problems:
            raise ValueError(f"results/{recipe.name}: {'; '.join(recipe.problems)}")
    return found


def find(recipe: str, setting: str, split: str = "test") -> Table:
    """The table of a setting."""
    tables = {(table.setting, table.split): table for table in committed()[recipe].tables}
    return tables[setting, split]


def table(recipe: str, setting: str, split: str = "test") -> str:
    """A table, how to read it, the command that makes it, and remarks, folded."""
    shown = find(recipe, setting, split)
    parts = [render_sheet(values_sheet(shown))]
    legend = f"{shown.legend('Bold')} {shown.about[:1].upper()}{shown.about[1:]}"
    parts.append(f"{legend[:1].upper()}{legend[1:]}\n`{shown.command}`, [rows](DATA/{recipe}.jsonl)\n{{: .caption }}")
    if remarks := _together(shown.remarks()):
        parts.append(_folded("Remarks", "\n".join(f"- {remark}" for remark in remarks)))
    return "\n\n".join(parts)


def _together(remarks: list[str]) -> list[str]:
    """Remarks of several cells as one: "ROW on COLUMN: NOTE" is "NOTE (ROW, ROW)"."""
    rows: dict[str, list[str]] = {}
    for remark in remarks:
        of_cell = re.fullmatch(r"(.+) on [^:]+: (.+)\.", remark)
        rows.setdefault(of_cell[2] if of_cell else remark, []).extend([of_cell[1]] if of_cell else [])
    return [f"{note} ({', '.join(dict.fromkeys(names))})." if names else note for note, names in rows.items()]


def pairs(recipe: str, setting: str, split: str = "test") -> str:
    """The paired comparisons of a table, folded. They take seconds, so they are kept until rows or code change."""
    parts = [
        RESULTS / f"{recipe}.jsonl",
        RESULTS / f"{recipe}.json",
        *sorted(Path(report.__file__).parent.glob("*.py")),
    ]
    known = blake2b(f"{setting} {split}".encode() + b"".join(part.read_bytes() for part in parts), digest_size=16)
    kept = CACHE / f"{known.hexdigest()}.md"
    if kept.is_file():
        return kept.read_text(encoding="utf-8")
    sheet = pairs_sheet(find(recipe, setting, split))
    heads = [" ".join(head.split()) for head in sheet.heads]
    text = _folded("Paired comparisons, on the same images", render_sheet(sheet._replace(heads=heads)))
    CACHE.mkdir(parents=True, exist_ok=True)
    write_whole(kept, text.encode())
    return text


def value(recipe: str, setting: str, row: str, column: str, split: str = "test") -> str:
    """The mean of a cell."""
    cell = find(recipe, setting, split).cells[row, column]
    if cell.mean is None:
        raise LookupError(f"{recipe}, {setting}: {row} on {column} has no rows")
    return number(cell.mean, cell.digits)


def rates(recipe: str, setting: str, split: str = "test") -> str:
    """A table of shares of right answers, each with its 95 % interval, and the command that makes it."""
    shown = find(recipe, setting, split)
    rows = []
    for row in shown.rows:
        cells = [shown.cell(row, column) for column in shown.columns]
        if any(cell.results for cell in cells):
            rows.append([row.title, *(_rate(cell.results) for cell in cells)])
    made = f"`{shown.command}`, [rows](DATA/{recipe}.jsonl)\n{{: .caption }}"
    return f"{_sheet(['network', *(column.title for column in shown.columns)], rows)}\n\n{made}"


def _rate(results: Sequence[Result]) -> str:
    if not results:
        return ""
    if len(results) > 1:
        raise LookupError(f"{results[0].row} on {results[0].column} has {len(results)} seeds: an interval is of one")
    result = results[0]
    found = rate(result.n - len(result.errors), result.n)
    return f"{found.value:.1f} ({found.low:.1f} to {found.high:.1f})"


def paper(recipe: str, row: str, column: str) -> str:
    """The paper's number in a cell."""
    return number(recipes.load(recipe).paper[row][column], 1)


def worth(recipe: str, setting: str, than: str) -> str:
    """How many times as many training images the row `than` needs for the errors of the others, for each number."""
    shown = find(recipe, setting)
    counts: dict[str, list[int]] = {}
    for column in shown.columns:
        counts.setdefault(column.name[0], []).append(int(column.name[1:]))
    names = shown.recipe.figure["panels"]
    parts = []
    for letter, own in counts.items():
        curves = {
            row.title: {
                n: cell.mean
                for n in own
                if (cell := shown.cells.get((row.name, f"{letter}{n}"))) and cell.mean is not None
            }
            for row in shown.rows
        }
        against = curves.pop(next(row.title for row in shown.rows if row.name == than))
        rows = [
            [title, *(_times(curve[n], n, against) if n in curve else "" for n in own)]
            for title, curve in curves.items()
            if curve
        ]
        parts.append(_sheet([str(names[letter]), *(f"{n:,}" for n in own)], rows))
    return "\n\n".join(parts)


def by_class(recipe: str, setting: str, column: str) -> str:
    """A column of a setting after training on so many images of each class, and on all; the fewest seeds of a cell."""
    fewer = re.compile(rf"{re.escape(setting)},per_class=(\d+)")
    found = {int(own[1]): table for table in committed()[recipe].tables if (own := fewer.fullmatch(table.setting))}
    shown = {f"{n} a class": found[n] for n in sorted(found)} | {"all": find(recipe, setting)}
    first = next(iter(shown.values()))
    rows = []
    for row in first.rows:
        cells = [own.cells.get((row.name, column)) for own in shown.values()]
        if cells[0] and cells[0].results:
            means = [cell and cell.mean is not None and number(cell.mean, cell.digits) for cell in cells]
            seeds = min(len(cell.results) for cell in cells if cell and cell.results)
            rows.append([f"{row.title} ({seeds})", *(mean or "" for mean in means)])
    title = next(own.title for own in first.columns if own.name == column)
    made = f"`{find(recipe, setting).command} --change per_class=N`, [rows](DATA/{recipe}.jsonl)\n{{: .caption }}"
    return f"{_sheet([title, *shown], rows)}\n\n{made}"


def _times(error: float, n: int, curve: Mapping[int, float]) -> str:
    needed = images_for(error, curve)
    if not needed:
        return f"below {min(curve) / n:.2g}"
    return f"{needed / n:.2g}" if math.isfinite(needed) else f"over {max(curve) / n:.2g}"


def gap(recipe: str, setting: str, first: str, second: str, column: str, split: str = "test") -> str:
    """How much less or more the first has than the second, and the 95 % interval of the difference."""
    cells = find(recipe, setting, split).cells
    found = compare(cells[first, column].results, cells[second, column].results)
    difference = found.difference
    if found.verdict == "no difference shown":
        return f"no difference shown ({interval(difference)})"
    low, high = sorted((abs(difference.low), abs(difference.high)))
    ends = f"{number(low, difference.digits)} to {number(high, difference.digits)}"
    size = number(abs(difference.mean), difference.digits)
    if difference.scores:
        return f"{size} {'lower' if difference.mean < 0 else 'higher'} ({ends})"
    return f"{size} points {'fewer' if difference.mean < 0 else 'more'} errors ({ends})"


def figure(name: str, alt: str) -> str:
    """A figure of results/."""
    if not (RESULTS / name).is_file():
        raise FileNotFoundError(f"results/{name}")
    return f"![{alt}](DATA/{name})"


def _benchmark(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RESULTS / f"benchmark_{name}.json").read_text(encoding="utf-8"))
    return found


def _made(name: str, options: str = "") -> str:
    found = _benchmark(name)
    machine = found.get("machine", "")
    if isinstance(machine, dict):
        machine = machine["processor"]
    command = f"python benchmarks/{name}.py{f' {options}' if options else ''}"
    return f"`{command}`, {machine}, [numbers](DATA/benchmark_{name}.json)\n{{: .caption }}"


OPERATOR_FILES = list(RESULTS.glob("benchmark_operator.*.json"))  # one for each processor
BESIDE = ("kernel", "both ways", "call")  # shown for all processors side by side
MEASURED = {"operator.intel_xeon_processor_2.80ghz": "2026-11-15, commit 335c0ac"}  # files that do not say it


def speed_operator() -> str:
    """Time of the operator over that of x.clone(), forward, float32, one thread, on every processor measured."""
    names = {
        "kernel": "kernel",
        "both ways": "kernel, both ways / 2",
        "channels_last": "kernel channels_last",
        "joint": "kernel joint",
        "call": "call",
        "plain torch": "torch form",
        "max_pool2d": "max_pool2d 2x2",
        "grid_sample": "affine_grid + grid_sample",
        "torch.sort": "torch.sort of the maps",
    }
    found = {name: _benchmark(name) for name in sorted(path.stem.removeprefix("benchmark_") for path in OPERATOR_FILES)}
    heads = ["maps", "grid, levels", *(f"{head}: {_maker(each)}" for head in BESIDE for each in found.values())]
    rows = []
    for same in zip(*(each["rows"] for each in found.values()), strict=True):
        cells = [f"{row['ratios'][names[head]]['ratio']:.2f}" for head in BESIDE for row in same]
        rows.append(["x".join(map(str, same[0]["shape"])), f"{same[0]['grid']}, {same[0]['levels']}", *cells])
    parts = [_sheet(heads, rows, texts=2)]
    for name, each in found.items():
        rows = []
        for row in each["rows"]:
            ratios = row["ratios"]
            cells = [f"{ratios[key]['ratio']:.2f}" if key in ratios else "" for key in names.values()]
            rows.append(["x".join(map(str, row["shape"])), f"{row['grid']}, {row['levels']}", *cells])
        measured = f"{each['date']}, commit {each['commit']}" if "date" in each else MEASURED[name]
        made = f"`python benchmarks/operator.py`, {measured}, [numbers](DATA/benchmark_{name}.json)\n{{: .caption }}"
        sheet = _sheet(["maps", "grid, levels", *names], rows, texts=2)
        parts.append(_folded(f"Everything, on {each['machine']['processor']}", f"{sheet}\n\n{made}"))
    return "\n\n".join(parts)


def _maker(found: dict[str, Any]) -> str:
    """The maker of a processor, with the family that tells those of one maker apart."""
    processor = found["machine"]["processor"]
    family = re.search(r"family \d+", processor)
    return ", ".join([re.split(r"\W", processor)[0], *([family[0]] if family else [])])


def speed_training() -> str:
    """Time of a training step over the CNN's."""
    sets = _benchmark("training")["sets"]
    names = list(dict.fromkeys(name for found in sets.values() for name in found["networks"]))
    rows = [
        [
            f"`{name}`",
            *(
                f"{found['networks'][name]['ratio']:.2f}" if name in found["networks"] else ""
                for found in sets.values()
            ),
        ]
        for name in names
    ]
    return _sheet(["network", *sets], rows) + f"\n\n{_made('training', '--rounds 11')}"


def speed_tiny() -> str:
    """Training on 64x64 photographs: time of a step over the CNN's, and the loop over the bare pass."""
    found = _benchmark("tiny")
    titles = {row.name: row.title for row in recipes.load("table2_tiny").rows}
    rows = [
        [titles[name], f"{row['ratio']:.2f}", f"{row['images per second']:.0f}"] for name, row in found["step"].items()
    ]
    loops = ", ".join(f"{titles[name]} {row['ratio']:.2f}" for name, row in found["loop"].items())
    text = _sheet(["network", "time of a step", "images/s"], rows)
    made = _made("tiny", f"--rounds {found['rounds']}")
    return f"{text}\n\nSpeed of the whole loop over the bare pass: {loops}. {made}"


def speed_family() -> str:
    """Time of a training step of the CNN with a layer over that without it."""
    found = _benchmark("family")["rows"]
    places = list(dict.fromkeys(row["maps"] for row in found))
    layers = list(dict.fromkeys(row["layer"] for row in found))
    ratios = {(row["layer"], row["maps"]): f"{row['ratio']:.3f}" for row in found}
    rows = [[f"`{layer}`", *(ratios.get((layer, place), "") for place in places)] for layer in layers]
    return _sheet(["layer", *places], rows) + f"\n\n{_made('family', '--rounds 31')}"


def speed_backbones() -> str:
    """Accuracy on photographs of ImageNet, and speed, of the backbones."""
    found = _benchmark("backbones")
    rows = [
        [f"`{row['name']}`"]
        + [
            f"{row[top]['value']:.1f} ({row[top]['low']:.1f} to {row[top]['high']:.1f})" if row.get(top) else ""
            for top in ("top1", "top5")
        ]
        + [f"{row['images_per_second']:.0f}", str(row["size"]), count(row["parameters"])]
        for row in found["rows"]
    ]
    heads = ["backbone", "top-1 %", "top-5 %", "images/s", "pixels", "parameters"]
    return _sheet(heads, rows) + f"\n\n{_made('backbones')}"


def speed_stores() -> str:
    """Milliseconds of a query, and recall, of the stores of vectors."""
    found = _benchmark("stores")
    rows = [
        [
            name,
            f"{row['median']:.1f}",
            f"{row['recall']:.4f}",
            *(f"{row[key]:.0f}" if key in row else "" for key in ("sent", "built")),
        ]
        for name, row in found["stores"].items()
    ]
    heads = ["store", "ms a query", "recall of the four nearest", "sent, s", "graph built, s"]
    return _sheet(heads, rows) + f"\n\n{count(found['vectors'])} vectors. {_made('stores', '--threads 1')}"


def speed_duplicates() -> str:
    """Recall and precision of groups of copies, on every set that was measured, and processor time."""
    rows = [
        [
            name,
            f"`{row['method']}`",
            count(own["images"]),
            count(own["copies"]),
            "" if row["recall"] is None else f"{row['recall']:.3f}",
            f"{row['precision']:.4f}",
            ", ".join(f"{seconds:.0f}" for seconds in row["seconds"].values()),
            own["commit"][:7],
        ]
        for name, own in _benchmark("duplicates")["sets"].items()
        for row in own["rows"]
    ]
    heads = ["set", "method", "photographs", "copies", "recall", "precision", "seconds", "commit"]
    about = "[options, kinds of change, machines](DATA/benchmark_duplicates.json)"
    made = f"`python benchmarks/duplicates.py --help`, {about}"
    return f"{_sheet(heads, rows, texts=2)}\n\n{made}\n{{: .caption }}"


def speed_pose_descriptors() -> str:
    """How many copies have their original among the ten nearest, and the time over that of one view."""
    found = _benchmark("pose_descriptors")
    times = {"time": "time of one", "time_together": f"of {found['together']} together"}
    rows = [
        [row["form"], *(count(row["found"][name]) for name in found["sets"]), *(f"{row[key]:.2f}" for key in times)]
        for row in found["rows"]
    ]
    heads = ["form", *(f"{name}, of {own['copies']}" for name, own in found["sets"].items()), *times.values()]
    return _sheet(heads, rows) + f"\n\n{_made('pose_descriptors', '--set NAME=FOLDER ...')}"


def speed_head_5() -> str:
    """Heads that learn from five photographs of each class: percentages that are right, means over the sets."""
    found = _benchmark("head_5")
    means: dict[str, list[list[float]]] = {}
    for row in found["rows"]:
        if "right" in row and row["head"] != "highest score":
            chosen = row["head"] in ("fit", "5 nearest")
            name = row["head"] if chosen else f"{row['reads']}: {row['head']}"
            means.setdefault(name, []).append([value["value"] for value in row["right"].values()])
    rows = [
        [name, *(f"{sum(own) / len(own):.1f}" for own in zip(*values, strict=True))]
        for name, values in sorted(means.items(), key=lambda each: -sum(map(sum, each[1])))
    ]
    heads = ["head", *next(row["right"] for row in found["rows"])]
    sets = ", ".join(dict.fromkeys(row["set"] for row in found["rows"]))
    made = "`python benchmarks/head.py --data DIR ... --per-class 30 --learn 5`, [numbers](DATA/benchmark_head_5.json)"
    return _sheet(heads, rows) + f"\n\n{made}; sets: {sets}\n{{: .caption }}"


def speed_finetune() -> str:
    """What fine-tuning gives for each share of the trained weights: percentages that are right."""
    found = _benchmark("finetune")
    poses = list(found["rows"][0]["accuracy"])
    rows = [
        [f"{row['set']}, {row['share']:g}", *(f"{own['value']:.1f}" for own in row["accuracy"].values())]
        for row in found["rows"]
    ]
    made = "`python benchmarks/finetune.py --help`, [numbers](DATA/benchmark_finetune.json)"
    return _sheet(["set, share", *poses], rows) + f"\n\n{made}\n{{: .caption }}"


def _sheet(heads: list[str], rows: list[list[str]], *, texts: int = 1) -> str:
    """A table; cells between backticks are code."""
    text = render_sheet(Sheet("", heads, rows, texts=texts))
    return re.sub(r"\\`(.*?)\\`", lambda code: "`" + re.sub(r"\\(.)", r"\1", code[1]) + "`", text)


def _folded(title: str, text: str) -> str:
    inside = "\n".join(f"    {line}".rstrip() for line in text.splitlines())
    return f'??? note "{title}"\n\n{inside}'


SPEEDS = {name.removeprefix("speed_"): found for name, found in globals().items() if name.startswith("speed_")}


def speed(name: str) -> str:
    """The table of a benchmark."""
    return SPEEDS[name]()


DIRECTIVES: dict[str, Callable[..., str]] = {
    "table": table, "pairs": pairs, "value": value, "gap": gap, "figure": figure, "speed": speed, "rates": rates,
    "paper": paper, "worth": worth, "by_class": by_class,
}  # fmt: skip
