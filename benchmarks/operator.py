"""Time of the operator as a multiple of `x.clone()`, beside torch functions of similar cost: a table and a JSON file.

    python benchmarks/operator.py [--out runs/bench] [--quick]

The file's name has the processor's: results/ holds one for each that was measured.

Method: one thread (except the last line) and CPU time of this process. Every form is timed in each round, so that noise
affects all of them; a ratio is taken within its round, and the table shows the median and quartiles over the rounds.
Freed memory is kept (mallopt), because page faults would favour whatever allocates less. Each form is timed in two
states of the caches: "cold", after other memory was written, as between the layers of a network, and "warm", in a loop.
Targets hold for "cold". Rows "kernel" call the C interface with prepared pointers and one allocation for the result, as
clone() makes; rows "call" are `patch_reorder` with autograd and Python.
"""

from __future__ import annotations

import sys

sys.path.pop(0)  # this folder: `import operator` would find this file instead of the standard library's

import argparse
import datetime
import json
import platform
import re
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.nn import functional as F

from patchreorder import __version__, patch_reorder
from patchreorder.engine.memory import keep_freed_memory
from patchreorder.laboratory.provenance import commit, processor
from patchreorder.operator import native, torch_form
from patchreorder.operator.functional import Grid, PatchReorderOptions

# shape, grid, levels, target of forward, target of (forward + backward) / 2 or None
SHAPES: list[tuple[tuple[int, ...], Grid, int, float, float | None]] = [
    ((256, 64, 4, 4), 2, 1, 1.6, 2.0),
    ((256, 64, 11, 11), 2, 1, 1.8, 1.7),
    ((64, 256, 13, 13), 2, 2, 2.2, 1.9),
    ((64, 256, 13, 13), 4, 1, 2.5, 2.2),
    ((8, 512, 56, 56), 2, 2, 1.35, 1.4),
    ((64, 256, 6, 6), "pixels", 1, 6.0, None),
    ((64, 256, 13, 13), "pixels", 1, 12.0, None),
]
Timed = dict[str, Callable[[], object]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/bench"))
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--quick", action="store_true", help="three rounds, to check that it runs")
    args = parser.parse_args()
    rounds = 3 if args.quick else args.rounds
    console = Console()
    keep_freed_memory()
    torch.set_num_threads(1)
    rows = []
    for shape, grid, levels, forward, both in SHAPES:
        found = measure(shape, grid, levels, rounds)
        rows.append({"shape": shape, "grid": grid, "levels": levels, "most": [forward, both], "ratios": found})
        show(console, rows[-1])
    speedup = two_threads(rounds)
    console.print(f"two threads, 8x512x56x56 (2,2): {speedup:.2f} times as fast as one (wall time, target: 1.6)")
    measured = {"machine": machine(), "commit": commit(), "date": datetime.date.today().isoformat()}
    report = {**measured, "rounds": rounds, "rows": rows, "two_threads": speedup}
    args.out.mkdir(parents=True, exist_ok=True)
    path = args.out / f"operator.{file_name(model())}.json"
    path.write_text(json.dumps(report, indent=1))
    console.print(f"saved to {path}")


def measure(shape: tuple[int, ...], grid: Grid, levels: int, rounds: int) -> dict[str, dict[str, float]]:
    x = torch.randn(shape)
    last = x.contiguous(memory_format=torch.channels_last)
    options = PatchReorderOptions(grid, levels)
    joint = PatchReorderOptions(grid, levels, per_channel=False)
    timed: Timed = {"clone": x.clone, "clone channels_last": last.clone}
    for name, maps, chosen in [
        ("kernel", x, options),
        ("kernel joint", x, joint),
        ("kernel channels_last", last, options),
        ("kernel channels_last joint", last, joint),
    ]:
        timed |= kernel_calls(name, maps, chosen)
    tracked = x.clone().requires_grad_()
    weight = torch.randn(shape)
    timed["call"] = lambda: patch_reorder(x, grid=grid, levels=levels)
    timed["call, both ways"] = lambda: patch_reorder(tracked, grid=grid, levels=levels).backward(weight)
    timed["clone, both ways"] = lambda: tracked.clone().backward(weight)
    timed["torch form"] = torch_form_call(x, options)
    timed |= peers(x)
    return ratios(timed, rounds)


def kernel_calls(name: str, x: Tensor, options: PatchReorderOptions) -> Timed:
    """The two functions of the kernel, with everything prepared except the memory of the result."""
    rows, columns, levels, energy, per_channel, descending = patches = options.patch_grid(*x.shape[2:])
    if native.KERNEL.library is None or not native.fits(rows, columns):
        return {}
    z, order = native.reorder(x, *patches)
    interleaved, joint = not x.is_contiguous(), not per_channel
    reorder, permute = native.KERNEL.library.patchreorder_forward, native.KERNEL.library.patchreorder_permute
    forward_arguments = (2, *x.shape, rows, columns, levels, energy == "l1", joint, descending, interleaved, 1)
    backward_arguments = (4, *x.shape, rows, columns, joint, 1, interleaved, 1)
    from_x, from_z = x.data_ptr(), z.data_ptr()

    def forward() -> Tensor:
        result = torch.empty_like(x)
        reorder(from_x, result.data_ptr(), order.data_ptr(), *forward_arguments)
        return result

    def backward() -> Tensor:
        result = torch.empty_like(z)
        permute(from_z, result.data_ptr(), order.data_ptr(), *backward_arguments)
        return result

    return {name: forward, f"{name}, backward": backward}


def torch_form_call(x: Tensor, options: PatchReorderOptions) -> Callable[[], Tensor]:
    patches = options.patch_grid(*x.shape[2:])
    return lambda: torch_form.permute(x, torch_form.patch_order(x, *patches), inverse=False)


def peers(x: Tensor) -> Timed:
    identity = torch.eye(2, 3).repeat(len(x), 1, 1)
    return {
        "max_pool2d 2x2": lambda: F.max_pool2d(x, 2),
        "affine_grid + grid_sample": lambda: F.grid_sample(
            x, F.affine_grid(identity, list(x.shape), align_corners=False), align_corners=False
        ),
        "torch.roll": lambda: torch.roll(x, (1, 1), (2, 3)),
        "torch.sort of the maps": lambda: torch.sort(x.flatten(2), dim=-1, descending=True),
    }


def ratios(timed: Timed, rounds: int) -> dict[str, dict[str, float]]:
    """Median and quartiles of the time of each form over that of clone() in the same round, cold and warm."""
    other = torch.zeros(4 * 2**20)  # 16 MB, more than the caches of one core
    once = dict.fromkeys(timed, 1)
    many = {name: repeat_for(call) for name, call in timed.items()}
    table: dict[str, dict[str, float]] = {}
    for state, repeats, between in (("", once, lambda: other.add_(1)), ("_again", many, lambda: None)):
        seconds = both_ways(time_rounds(timed, rounds, repeats, between))
        for name, values in seconds.items():
            relative = [value / clone for value, clone in zip(values, seconds[base_of(name)], strict=True)]
            low, _, high = statistics.quantiles(relative, n=4)
            table.setdefault(name, {})
            table[name] |= {f"ratio{state}": statistics.median(relative), f"low{state}": low, f"high{state}": high}
            table[name] |= {f"microseconds{state}": statistics.median(values) * 1e6}
    return table


def time_rounds(
    timed: Timed, rounds: int, repeats: dict[str, int], between: Callable[[], object]
) -> dict[str, list[float]]:
    seconds: dict[str, list[float]] = {name: [] for name in timed}
    for _ in range(rounds):
        for name, call in timed.items():
            between()
            start = time.process_time()
            for _ in range(repeats[name]):
                call()
            seconds[name].append((time.process_time() - start) / repeats[name])
    return seconds


def both_ways(seconds: dict[str, list[float]]) -> dict[str, list[float]]:
    """Replace the times of backward by the mean of forward and backward."""
    result = {}
    for name, values in seconds.items():
        forward, found, _ = name.partition(", backward")
        if found:
            result[f"{forward}, both ways / 2"] = [(a + b) / 2 for a, b in zip(seconds[forward], values, strict=True)]
        else:
            result[name] = values
    return result


def base_of(name: str) -> str:
    if name.startswith("call, both"):
        return "clone, both ways"
    return "clone channels_last" if "channels_last" in name else "clone"


def repeat_for(call: Callable[[], object], aim: float = 0.004) -> int:
    call()
    start = time.perf_counter()
    call()
    return max(1, int(aim / max(time.perf_counter() - start, 1e-7)))


def two_threads(rounds: int) -> float:
    x = torch.randn(8, 512, 56, 56)
    pairs = []
    for _ in range(max(rounds, 3)):
        wall = []
        for threads in (1, 2):
            torch.set_num_threads(threads)
            start = time.perf_counter()
            patch_reorder(x, levels=2)
            wall.append(time.perf_counter() - start)
        pairs.append(wall[0] / wall[1])
    torch.set_num_threads(1)
    return statistics.median(pairs)


def show(console: Console, row: dict) -> None:
    size = "x".join(map(str, row["shape"]))
    table = Table(
        title=f"{size}, grid {row['grid']}, levels {row['levels']}: multiples of clone()",
        title_justify="left",
    )
    for heading in ("", "cold", "quartiles", "us", "target", "warm"):
        table.add_column(heading, justify="left" if heading == "" else "right")
    forward, both = row["most"]
    coarse = row["grid"] != "pixels"
    targets = {"kernel": forward, "kernel, both ways / 2": both}
    if coarse:
        targets |= dict.fromkeys(("kernel joint", "kernel channels_last", "kernel channels_last joint"), 2.5)
    if row["grid"] == 2 and row["levels"] == 2:
        targets["torch form"] = 5.0 if row["shape"][2] == 56 else 20.0
    if not coarse:
        targets["kernel"] = min(forward, row["ratios"]["torch.sort of the maps"]["ratio"])
    for name, found in row["ratios"].items():
        target = targets.get(name)
        missed = target is not None and found["ratio"] > target
        table.add_row(
            name,
            f"{found['ratio']:.2f}",
            f"{found['low']:.2f}-{found['high']:.2f}",
            f"{found['microseconds']:.0f}",
            "" if target is None else f"{target:g}" + (" missed" if missed else ""),
            f"{found['ratio_again']:.2f}",
            style="red" if missed else None,
        )
    console.print(table)


def model() -> str:
    """The processor's name, with the family and model that virtual machines leave out of it."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return processor()
    numbers = dict(re.findall(r"^(cpu family|model)\s*: (\d+)$", text, re.MULTILINE))
    return (
        f"{processor()} (family {numbers['cpu family']}, model {numbers['model']})"
        if len(numbers) == 2
        else processor()
    )


def file_name(model: str) -> str:
    """Lower-case words of a processor's name between underscores, without trade marks."""
    return "_".join(re.findall(r"[a-z0-9.]+", re.sub(r"\((r|tm)\)", "", model.lower())))


def machine() -> dict[str, str | int]:
    return {
        "processor": model(),
        "system": platform.system(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "patchreorder": __version__,
        "kernel": native.KERNEL.build,
    }


if __name__ == "__main__":
    main()
