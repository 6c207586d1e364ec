"""What a person sees of a training: a line that moves on a terminal, nothing in a log file; or tensorboard."""

from __future__ import annotations

import atexit
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from .train import Progress

Report = Callable[[Progress], None]


class Screen:
    """Where a run tells what it does; this one says nothing."""

    def say(self, text: str) -> None:
        """Show a line."""

    def watch(self, title: str) -> Report:
        """Something that takes the progress of a training and shows it under this title."""
        return lambda progress: None

    def count(self, title: str, total: int) -> Callable[[int], None]:
        """Something that takes how many images more are done, of `total`, and shows it under this title."""
        return lambda more: None


class Terminal(Screen):
    """Lines always; on a terminal also a bar with loss, images a second and the time left."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.bar: Bar | None = None
        atexit.register(self.close)  # a bar hides the cursor as long as it moves

    def say(self, text: str) -> None:
        self.close()
        self.console.print(text, markup=False, soft_wrap=True)

    def watch(self, title: str) -> Report:
        if not self.console.is_terminal:
            return lambda progress: None
        self.close()
        bar = self.bar = Bar(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=None),
            TaskProgressColumn(),
            TextColumn("loss {task.fields[loss]}  {task.fields[speed]} images/s", markup=False),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=self.console,
        )
        task = bar.add_task(title, loss="-", speed="-")
        bar.start()

        def show(progress: Progress) -> None:
            loss, speed = f"{progress.loss:.3f}", f"{progress.images_per_second:.0f}"
            bar.update(task, completed=progress.step, total=progress.total, loss=loss, speed=speed)
            if progress.step == progress.total:
                self.close()

        return show

    def count(self, title: str, total: int) -> Callable[[int], None]:
        if not self.console.is_terminal:
            return lambda more: None
        self.close()
        bar = self.bar = Bar(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=None),
            TaskProgressColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=self.console,
        )
        task = bar.add_task(title, total=total)
        bar.start()

        def show(more: int) -> None:
            bar.advance(task, more)
            if bar.finished:
                self.close()

        return show

    def close(self) -> None:
        """Leave the bar as it is."""
        if self.bar is not None:
            self.bar.stop()
            self.bar = None


def tensorboard(folder: Path) -> Report:
    """Write loss, learning rate and speed of every tenth step for tensorboard."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise ImportError("logging for tensorboard needs it: pip install 'patchreorder[tensorboard]'") from None
    writers: list[SummaryWriter] = []

    def write(progress: Progress) -> None:
        if not writers:  # a resumed run replaces what was logged beyond its checkpoint
            writers.append(SummaryWriter(str(folder), purge_step=progress.step, flush_secs=10))
            atexit.register(writers[0].close)  # else what a stopped run logged last would be lost
        if progress.step % 10 and progress.step != progress.total:
            return
        for name, value in (
            ("loss", progress.loss),
            ("learning rate", progress.rate),
            ("images per second", progress.images_per_second),
        ):
            writers[0].add_scalar(name, value, progress.step)
        if progress.step == progress.total:
            writers.pop().close()

    return write


def both(first: Report, second: Report) -> Report:
    """Report to two."""

    def report(progress: Progress) -> None:
        first(progress)
        second(progress)

    return report
