"""What a person sees of a run: bars on a terminal, lines in a log file, tensorboard."""

import io
import re
import sys
import time

import pytest
from rich.console import Console

from patchreorder.engine import progress
from patchreorder.engine.options import Training
from patchreorder.engine.progress import Screen, Terminal
from patchreorder.engine.train import Progress, train
from tests.engine.toy import Killed, dies_at, digits, network

pytestmark = pytest.mark.usefixtures("one_thread")
CURSOR = "\x1b[?25h"  # shows it


def terminal(**options):
    file = io.StringIO()
    return Terminal(Console(file=file, width=120, color_system=None, **options)), file


def test_training_bar_shows_loss_speed_and_time_left():
    screen, file = terminal(force_terminal=True)
    callback = screen.training("CNN [R], seed 0")
    for step in (1, 2, 3):
        callback(Progress(step, 4, step / 5, 2.34567, 0.1, 1234.5))
        screen.bar.refresh()
        time.sleep(0.01)
    text = file.getvalue()
    assert "CNN [R], seed 0" in text
    assert "75%" in text
    assert "loss 2.346  1234 images/s" in text
    assert re.search(r"left 0:\d\d:\d\d", text)  # an estimate, no dashes
    assert CURSOR not in text
    callback(Progress(4, 4, 0.8, 1.0, 0.1, 1.0))
    assert screen.bar is None
    assert file.getvalue().endswith(CURSOR)


def test_escape_sequences_in_names_are_not_printed():
    screen, file = terminal(force_terminal=True)
    screen.say("first\nhas \x1b]0;owned\x07")
    assert file.getvalue() == "first\nhas  ]0;owned \n"
    screen.count("\x1b]0;owned\x07", 4)
    screen.bar.refresh()
    screen.close()
    screen.training("\x1b]0;owned\x07")
    screen.bar.refresh()
    screen.close()
    assert "\x1b]" not in file.getvalue()
    assert file.getvalue().count(" ]0;owned ") >= 3


def test_count_bar_ends_with_the_last_image():
    screen, file = terminal(force_terminal=True)
    show = screen.count("comparing [all]", 4)
    show(3)
    screen.bar.refresh()
    assert "comparing [all]" in file.getvalue()
    assert "75%" in file.getvalue()
    show(1)
    assert screen.bar is None
    assert file.getvalue().endswith(CURSOR)
    screen.count("nothing", 0)
    assert screen.bar is None


def test_progress_of_an_unknown_total_is_the_same_bar():
    screen, file = terminal(force_terminal=True)
    show = screen.progress("checking")
    assert screen.bar is None
    show(2, 4)
    show(3, 4)
    screen.bar.refresh()
    assert "checking" in file.getvalue()
    assert "75%" in file.getvalue()
    show(4, 4)
    assert screen.bar is None


def test_the_cursor_is_shown_after_a_line_and_at_exit(monkeypatch):
    at_exit = []
    monkeypatch.setattr(progress.atexit, "register", at_exit.append)
    screen, file = terminal(force_terminal=True)
    callback = screen.training("one")
    screen.say("stopped [here]")
    assert screen.bar is None
    assert CURSOR in file.getvalue()
    assert file.getvalue().endswith("stopped [here]\n")
    callback(Progress(1, 4, 0.2, 1.0, 0.1, 1.0))  # of a bar that is closed: no error
    screen.training("two")
    file.truncate(0)
    for function in at_exit:
        function()
    assert CURSOR in file.getvalue()


def test_no_bar_in_a_log_file():
    screen, file = terminal(force_terminal=False)
    train(network(), digits(), Training(steps=4, batch=8), callback=screen.training("CNN"))
    screen.count("comparing", 4)(4)
    assert file.getvalue() == ""
    assert screen.bar is None
    screen.say("a line")
    assert file.getvalue() == "a line\n"


def test_a_plain_screen_shows_nothing(capsys):
    Screen().say("nothing")
    Screen().training("nothing")(Progress(1, 4, 0.2, 1.0, 0.1, 1.0))
    Screen().count("nothing", 4)(1)
    assert capsys.readouterr() == ("", "")


def test_tensorboard_that_is_not_installed(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ImportError, match=r"pip install 'patchreorder\[tensorboard\]'"):
        progress.tensorboard(tmp_path)


def test_tensorboard_of_a_resumed_run_has_each_step_once(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    training, seen = Training(steps=45, batch=8), []
    log = tmp_path / "log"

    def callback(stop=None):
        return progress.both(progress.both(progress.tensorboard(log), seen.append), dies_at(stop))

    file = tmp_path / "c"
    with pytest.raises(Killed):
        train(network(), digits(), training, file=file, callback=callback(12), save_every=0.0)
    content = file.read_bytes()
    with pytest.raises(Killed):  # logs 20 and 30, which are lost with the checkpoint
        train(network(), digits(), training, file=file, callback=callback(35))
    file.write_bytes(content)
    time.sleep(1.1)  # files of events are named by the second
    train(network(), digits(), training, file=file, callback=callback())
    found = EventAccumulator(str(log))
    found.Reload()
    assert set(found.Tags()["scalars"]) == {"loss", "learning rate", "images per second"}
    losses = {at.step: at.loss for at in seen}
    values = [(event.step, event.value) for event in found.Scalars("loss")]
    assert values == [(step, pytest.approx(losses[step])) for step in (10, 20, 30, 40, 45)]
    rates = [(event.step, event.value) for event in found.Scalars("learning rate")]
    assert rates == [(step, pytest.approx(training.rate(step - 1, 45))) for step in (10, 20, 30, 40, 45)]
