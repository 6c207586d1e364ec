"""Atomic writes, locks between processes, and digests of settings."""

import errno
import os
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from patchreorder.files import digest, locked, open_whole, try_lock, write_whole


def run_python(code: str, folder: Path, **options) -> "subprocess.Popen[bytes]":
    """Start a process that runs the code; `folder` is its variable."""
    opening = "import os, sys, time\nfrom pathlib import Path\nfrom patchreorder.files import try_lock, write_whole\n"
    command = [sys.executable, "-c", f"{opening}folder = Path(sys.argv[1])\n{code}", str(folder)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, **options)


def test_write_whole_replaces_a_file_and_obeys_the_umask(tmp_path):
    file = tmp_path / "new" / "file"
    old = os.umask(0o027)
    try:
        write_whole(file, b"first")
    finally:
        os.umask(old)
    assert (file.read_bytes(), file.stat().st_mode & 0o777) == (b"first", 0o640)
    write_whole(file, b"second")
    assert file.read_bytes() == b"second"
    assert list(file.parent.iterdir()) == [file]


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_failed_write_keeps_the_old_file_and_names_it(tmp_path, monkeypatch, step):
    def fail(*args):
        raise OSError(errno.EIO, "broken")

    file = tmp_path / "file"
    file.write_bytes(b"old")
    monkeypatch.setattr(os, step, fail)
    with pytest.raises(OSError, match="broken") as caught:
        write_whole(file, b"new")
    assert caught.value.filename == str(file)
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"old"]


def test_an_error_names_the_file_and_not_its_temporary_one(tmp_path):
    file = tmp_path / ("x" * 250)  # a name that is long enough that its temporary one cannot be
    with pytest.raises(OSError, match="too long") as caught:
        write_whole(file, b"new")
    assert caught.value.filename == str(file)
    file.write_bytes(b"old")
    with pytest.raises(OSError, match="too long"):
        write_whole(file, b"new")
    assert file.read_bytes() == b"old"


def test_open_whole_replaces_the_file_at_the_end_of_the_block(tmp_path):
    file = tmp_path / "file"
    file.write_bytes(b"old")
    with open_whole(file) as stream:
        stream.write(b"new")
        stream.seek(0)
        assert stream.read() == b"new"
        assert file.read_bytes() == b"old"
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"new"]
    with pytest.raises(ZeroDivisionError), open_whole(file):
        raise ZeroDivisionError
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"new"]


def test_an_interrupted_write_keeps_the_old_file(tmp_path, monkeypatch):
    def stop(*args):
        raise KeyboardInterrupt

    file = tmp_path / "file"
    file.write_bytes(b"old")
    monkeypatch.setattr(os, "replace", stop)
    with pytest.raises(KeyboardInterrupt):
        write_whole(file, b"new")
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"old"]


def test_a_process_killed_while_writing_keeps_the_old_file(tmp_path):
    file = tmp_path / "file.json"
    file.write_bytes(b"old")
    code = "os.replace = lambda *args: os.kill(os.getpid(), 9); write_whole(folder / 'file.json', b'new')"
    process = run_python(code, tmp_path)
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    assert file.read_bytes() == b"old"
    assert list(tmp_path.glob("*.json")) == [file]


def left_by_a_killed_process(folder: Path) -> Path:
    code = "os.replace = lambda *args: os.kill(os.getpid(), 9); write_whole(folder / 'file', b'x' * 99)"
    run_python(code, folder).communicate(timeout=60)
    (left,) = [path for path in folder.iterdir() if path.name.startswith(".file.")]
    return left


def test_what_a_killed_process_left_is_removed_by_the_next_write(tmp_path):
    pytest.importorskip("fcntl")
    left = left_by_a_killed_process(tmp_path)
    assert left.stat().st_size == 99
    others = [tmp_path / name for name in (".file.0123456", ".file.01234567.x", "xfile.01234567", ".other.01234567")]
    for other in others:
        other.touch()
    (tmp_path / ".file.00000000").mkdir()
    (tmp_path / ".file.00000001").symlink_to(others[0])
    os.mkfifo(tmp_path / ".file.00000002")
    before = set(tmp_path.iterdir())
    write_whole(tmp_path / "file", b"new")
    assert set(tmp_path.iterdir()) == before - {left} | {tmp_path / "file"}


WRITE_SLOWLY = """
from patchreorder.files import open_whole
with open_whole(folder / "file") as file:
    file.write(b"slow")
    print("begun", flush=True)
    sys.stdin.readline()
print("done")
"""


def test_a_file_that_a_process_is_writing_is_not_removed(tmp_path):
    command = run_python(WRITE_SLOWLY, tmp_path, stdin=subprocess.PIPE)
    assert command.stdout.readline() == b"begun\n"
    write_whole(tmp_path / "file", b"quick")
    assert (tmp_path / "file").read_bytes() == b"quick"
    assert command.communicate(b"\n", timeout=60)[0] == b"done\n"
    assert (tmp_path / "file").read_bytes() == b"slow"
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]


def test_without_locks_nothing_is_removed(tmp_path, monkeypatch):
    fcntl = pytest.importorskip("fcntl")

    def refuse(handle, how):
        raise OSError(errno.ENOLCK, "no locks available")

    left = left_by_a_killed_process(tmp_path)
    monkeypatch.setattr(fcntl, "flock", refuse)
    write_whole(tmp_path / "file", b"new")
    assert set(tmp_path.iterdir()) == {left, tmp_path / "file"}


def test_many_writers_of_one_file_never_take_each_other_s_for_abandoned(tmp_path):
    code = "for number in range(200): write_whole(folder / 'file', b'x' * number)"
    processes = [run_python(code, tmp_path) for _ in range(3)]
    for process in processes:
        process.communicate(timeout=120)
    assert [process.returncode for process in processes] == [0, 0, 0]
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]


def test_a_file_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    steps, sync, move = [], os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda handle: (steps.append(stat.S_IFMT(os.fstat(handle).st_mode)), sync(handle)))
    monkeypatch.setattr(os, "replace", lambda *paths: (steps.append("replace"), move(*paths)))
    write_whole(tmp_path / "file", b"new")
    assert steps == [stat.S_IFREG, "replace", stat.S_IFDIR]


def test_a_reader_never_sees_a_file_half_written(tmp_path):
    path, contents = tmp_path / "file", [bytes([value]) * 300_000 for value in range(4)]
    write_whole(path, contents[0])

    def write(content: bytes) -> None:
        for _ in range(15):
            write_whole(path, content)

    writers = [threading.Thread(target=write, args=[content]) for content in contents]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        assert path.read_bytes() in contents
    assert list(tmp_path.iterdir()) == [path]


HOLD_LOCK = """
assert try_lock(folder / "cell" / "lock") is not None
print("held", flush=True)
time.sleep(60)
"""


def test_a_lock_is_exclusive_until_its_process_dies(tmp_path):
    pytest.importorskip("fcntl")
    lock = tmp_path / "cell" / "lock"
    process = run_python(HOLD_LOCK, tmp_path)
    try:
        assert process.stdout.readline() == b"held\n"
        assert try_lock(lock) is None
    finally:
        process.kill()  # SIGKILL: the process cannot clean up
        process.communicate(timeout=60)
    handle = try_lock(lock)
    assert handle is not None
    assert try_lock(lock) is None
    os.close(handle)
    again = try_lock(lock)
    assert again is not None
    os.close(again)


def test_a_file_system_without_locks_is_no_error(tmp_path, monkeypatch):
    fcntl = pytest.importorskip("fcntl")

    def refuse(handle, how):
        raise OSError(errno.ENOLCK, "no locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    handle = try_lock(tmp_path / "lock")
    assert handle is not None
    entered = False
    with locked(handle):
        entered = True
    assert entered
    os.close(handle)


def test_the_digest_depends_on_every_setting_but_not_on_their_order():
    settings = {"model": "cnn", "options": {"grid": 2, "place": "relu"}, "plan": {"lr": 0.07, "clip": None, "on": True}}
    same = {"plan": {"on": True, "clip": None, "lr": 0.07}, "options": {"place": "relu", "grid": 2}, "model": "cnn"}
    others = [
        settings | {"model": "fcn"},
        settings | {"options": {"grid": 3, "place": "relu"}},
        settings | {"options": {"grid": 2}},
        settings | {"plan": {"lr": 0.070001, "clip": None, "on": True}},
        settings | {"plan": {"lr": 0.07, "clip": 0, "on": True}},
        settings | {"plan": {"lr": 0.07, "clip": None, "on": "True"}},
        settings | {"more": None},
    ]
    assert digest(settings) == digest(same) == "bab09aa9"  # committed rows are identified by it
    assert len({digest(settings), *map(digest, others)}) == 1 + len(others)
