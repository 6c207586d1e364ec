"""The progress of a run for people: lines and a bar on a terminal, lines only in a log file, or tensorboard."""

from __future__ import annotations

import atexit
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.progress import (
    BarColumn,
    ProgressColumn,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as Bar

from patchreorder.untrusted import clean, clean_lines

from .train import Progress

Callback = Callable[[Progress], None]


class Screen:
    """Where messages and progress are shown; this one shows nothing."""

    def say(self, text: str) -> None:
        """Show a line."""

    def training(self, title: str) -> Callback:
        """A callback for `train` that shows its progress."""
        return lambda progress: None

    def count(self, title: str, total: int) -> Callable[[int], None]:
        """A function that takes the number of images done since its last call, of `total`, and shows the sum."""
        return lambda more: None

    def progress(self, title: str) -> Callable[[int, int], None]:
        """A function that takes the number of images done and of all, and shows them."""
        before: int = 0
        show: Callable[[int], None] | None = None

        def progress(done: int, total: int) -> None:
            nonlocal before, show
            show = show or self.count(title, total)
            show(done - before)
            before = done

        return progress


SILENT = Screen()


class Terminal(Screen):
    """Lines, and on a terminal also a bar with the time left. Escape sequences in names are not printed."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.bar: Bar | None = None
        atexit.register(self.close)  # a moving bar hides the cursor

    def say(self, text: str) -> None:
        self.close()
        self.console.print(clean_lines(text), markup=False, soft_wrap=True)

    def training(self, title: str) -> Callback:
        if not self.console.is_terminal:
            return super().training(title)
        bar = self._start(TextColumn("loss {task.fields[loss]}  {task.fields[speed]} images/s", markup=False))
        task = bar.add_task(clean(title), loss="-", speed="-")

        def show(progress: Progress) -> None:
            loss, speed = f"{progress.loss:.3f}", f"{progress.images_per_second:.0f}"
            bar.update(task, completed=progress.step, total=progress.total, loss=loss, speed=speed)
            if progress.step == progress.total:
                self.close()

        return show

    def count(self, title: str, total: int) -> Callable[[int], None]:
        if not self.console.is_terminal or not total:
            return super().count(title, total)
        bar = self._start()
        task = bar.add_task(clean(title), total=total)

        def show(more: int) -> None:
            bar.advance(task, more)
            if bar.finished:
                self.close()

        return show

    def _start(self, *columns: ProgressColumn) -> Bar:
        self.close()
        self.bar = Bar(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=None),
            TaskProgressColumn(),
            *columns,
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=self.console,
        )
        self.bar.start()
        return self.bar

    def close(self) -> None:
        """Stop the bar where it is."""
        if self.bar is not None:
            self.bar.stop()
            self.bar = None


def tensorboard(folder: Path) -> Callback:
    """A callback that logs loss, learning rate and speed of every tenth step for tensorboard."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise ImportError("logging for tensorboard needs it: pip install 'patchreorder[tensorboard]'") from None
    writers: list[SummaryWriter] = []

    def write(progress: Progress) -> None:
        if not writers:  # a resumed run replaces what was logged after its checkpoint
            writers.append(SummaryWriter(str(folder), purge_step=progress.step, flush_secs=10))
            atexit.register(writers[0].close)  # or the last values of an interrupted run would be lost
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


def both(first: Callback, second: Callback) -> Callback:
    """A callback that calls two."""

    def call(progress: Progress) -> None:
        first(progress)
        second(progress)

    return call
