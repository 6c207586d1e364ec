"""Ctrl-C and SIGTERM: the run saves, says where, and gives the handlers back."""

import os
import signal
import threading

import pytest

from patchreorder.engine import checkpoint
from patchreorder.engine.options import Training
from patchreorder.engine.signals import stop_requests
from patchreorder.engine.train import Interrupted, train
from tests.engine.toy import digits, network, outcome

pytestmark = pytest.mark.usefixtures("one_thread")


def handlers():
    return signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_and_names_the_checkpoint(tmp_path, number):
    file, training, before = tmp_path / "c", Training(epochs=2, batch=8), handlers()

    def callback(progress):
        assert handlers() != before
        if progress.step == 3:
            os.kill(os.getpid(), number)

    with pytest.raises(Interrupted, match=rf"after step 4 of 10, saved in {file}"):
        train(network(), digits(), training, file=file, callback=callback)
    assert handlers() == before
    assert checkpoint.read(file)[1]["step"] == 4
    with pytest.raises(Interrupted, match="after step 4 of 10, nothing was saved"):
        train(network(), digits(), training, callback=callback)
    train(network(), digits(), training, file=file)
    train(network(), digits(), training, file=tmp_path / "whole")
    assert outcome(file) == outcome(tmp_path / "whole")


@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM])
def test_a_second_ctrl_c_stops_at_once(tmp_path, first):
    before = handlers()
    reached = []

    def callback(progress):
        reached.append(progress.step)
        if progress.step == 3:
            os.kill(os.getpid(), first)
            os.kill(os.getpid(), signal.SIGINT)
            signal.getsignal(signal.SIGINT)  # handlers run between bytecodes

    with pytest.raises(KeyboardInterrupt) as ended:
        train(network(), digits(), Training(epochs=2, batch=8), file=tmp_path / "c", callback=callback)
    assert ended.type is KeyboardInterrupt
    assert reached == [1, 2, 3]
    assert not list(tmp_path.iterdir())
    assert handlers() == before


def test_a_second_ctrl_c_while_saving_leaves_the_old_checkpoint(tmp_path, monkeypatch):
    file, fsync = tmp_path / "c", os.fsync

    def slow(handle):
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        fsync(handle)

    def callback(progress):
        if progress.step == 4:
            monkeypatch.setattr(os, "fsync", slow)

    with pytest.raises(KeyboardInterrupt):
        train(network(), digits(), Training(epochs=2, batch=8), file=file, callback=callback, save_every=0.0)
    assert [entry.name for entry in tmp_path.iterdir()] == ["c"]
    assert checkpoint.read(file)[1]["step"] == 3


def test_ctrl_c_while_the_last_checkpoint_is_written(tmp_path, monkeypatch):
    write = checkpoint.write
    monkeypatch.setattr(checkpoint, "write", lambda *args: (write(*args), os.kill(os.getpid(), signal.SIGINT)))
    with pytest.raises(Interrupted, match="after step 5 of 5, saved in"):
        train(network(), digits(), Training(steps=5, batch=8), file=tmp_path / "c")
    monkeypatch.undo()
    done = train(network(), digits(), Training(steps=5, batch=8), file=tmp_path / "c")
    assert (done.steps, done.resumed) == (5, 0)


def test_other_threads_leave_the_handlers_alone():
    before, seen = handlers(), []

    def run():
        with stop_requests() as requested:
            seen.append((handlers(), requested()))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen == [(before, False)]
    assert handlers() == before


def test_a_handler_that_python_did_not_set(monkeypatch):
    """`signal.signal` returns None for it, and does not accept None."""
    real = signal.signal
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(signal, "signal", lambda number, handler: real(number, handler) and None)
    try:
        with stop_requests():
            pass
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        real(signal.SIGTERM, before)
        real(signal.SIGINT, signal.default_int_handler)
