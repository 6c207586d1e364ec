"""Parts of a folder, described by several processes into one folder or one store; some are killed, some repeated."""

import os
import shutil
import signal

import pytest
import torch

from patchreorder.__main__ import main
from patchreorder.data import loader
from patchreorder.search import descriptors, parts
from patchreorder.search import update as update_module
from patchreorder.search.index import Index
from patchreorder.search.manifest import MANIFEST, Manifest, read_chunk, write_chunk
from patchreorder.search.parts import Part, describe_part

from .conftest import url_of
from .samples import Colours, files, made, noise, state


@pytest.fixture(params=["folder", "postgres", "qdrant"])
def store(request, tmp_path):
    """Where parts meet: a folder that machines share, or a store."""
    return None if request.param == "folder" else url_of(request.param, tmp_path, request)


@pytest.fixture
def many(tmp_path):
    """A folder of 60 images, one of them unreadable, two with the same content."""
    folder = noise(tmp_path / "in", 60)
    (folder / "0007.png").write_bytes(b"not an image")
    shutil.copy2(folder / "0001.png", folder / "0002.png")
    for name in ("0007.png", "0002.png"):
        os.utime(folder / name, (1_000_000_100,) * 2)
    return folder


def test_every_image_is_in_one_part():
    names = [f"{number}.jpg" for number in range(1000)] + ["bad\udcff.jpg"]
    for total in (1, 2, 16):
        held = [{name for name in names if Part(number, total).holds(name)} for number in range(1, total + 1)]
        assert sum(map(len, held)) == 1001
        assert set.union(*held) == {*names}
        assert min(map(len, held)) > 1001 / total / 2


@pytest.mark.parametrize("text", ["0/16", "17/16", "3", "3/0", "a/b", "-1/4", "1/4/2", "", "1/٤", "1/9999999"])
def test_a_bad_part_is_named(text):
    with pytest.raises(ValueError, match=r"part \(.*\) must be such as 3/16: the third of sixteen, counted from 1"):
        Part.parse(text)


def test_parts_make_the_index_of_one_update(small_chunks, many, tmp_path, store, reads):
    expected, out, model = tmp_path / "expected", tmp_path / "out", Colours()
    made(many, expected)
    described = []
    for number in (3, 1, 2):
        done = describe_part(many, out, model, part=Part(number, 3), store=store, batch=4)
        described.append(done.described)
        with pytest.raises(ValueError, match="is not finished"):
            Index(out)
    assert model.seen == sum(described) == 58
    reads.clear()
    done = made(many, out, model, store=store)
    assert (done.images, [file.name for file in done.unreadable]) == (59, ["0007.png"])
    assert model.seen == 58
    assert set(reads) <= {"0007.png", "0001.png", "0002.png"}  # those of which a store knows only one name
    assert state(out) == state(expected)
    found = Manifest.read(out)
    assert files(out) == {MANIFEST, *found.chunks}


def test_machines_that_share_only_a_store(small_chunks, many, tmp_path, request, reads):
    url = url_of("postgres", tmp_path, request)
    expected, out, model = tmp_path / "expected", tmp_path / "out", Colours()
    made(many, expected)
    for number in range(1, 5):
        describe_part(many, out, model, part=Part(number, 4), store=url)
        shutil.rmtree(out)  # the disk of another machine
    assert model.seen == 58
    reads.clear()
    describe_part(many, out, model, part=Part(2, 4), store=url)  # repeated elsewhere: the store knows its images
    shutil.rmtree(out)
    assert model.seen == 58
    assert set(reads) <= {"0007.png", "0001.png", "0002.png"}
    made(many, out, model, store=url)
    assert model.seen == 58
    assert state(out) == state(expected)


def test_a_part_can_be_repeated(small_chunks, many, tmp_path, store):
    out, model = tmp_path / "out", Colours()
    first = describe_part(many, out, model, part=Part(1, 2), store=store)
    chunks = files(out)
    again = describe_part(many, out, model, part=Part(1, 2), store=store)
    assert (again.described, again.images, again.changed) == (0, first.images, False)
    assert files(out) == chunks
    seen = model.seen
    assert made(many, out, model, store=store).images == 59  # the other part is not missing: it is described now
    assert model.seen == 58 > seen
    before = state(out)
    assert describe_part(many, out, model, part=Part(2, 2)).described == 0  # in the store of the last update
    assert not made(many, out, model).changed
    assert (state(out), model.seen) == (before, 58)


def test_parts_of_new_images(small_chunks, many, tmp_path, store):
    out = tmp_path / "out"
    made(many, out, store=store)
    noise(many / "new", 80)
    (many / "0000.png").unlink()
    for number in (1, 2):
        describe_part(many, out, Colours(), part=Part(number, 2))
        assert len(state(out)) == 59  # searches see the old state
    model = Colours()
    made(many, out, model)
    assert model.seen == 0
    made(many, tmp_path / "expected")
    assert state(out) == state(tmp_path / "expected")


# ---- processes -------------------------------------------------------------------------------------


def work(folder, out, part, store, die, pipe):
    """In a process of its own: describe a part, and die by SIGKILL before the `die`-th chunk is written or sent."""
    torch.set_num_threads(1)
    update_module.CHUNK = 3
    steps = 0

    def counted(function):
        def call(*given, **options):
            nonlocal steps
            steps += 1
            if steps == die:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*given, **options)

        return call

    update_module.write_chunk = counted(write_chunk)
    parts.send_chunk = counted(parts.send_chunk)
    pipe.send(describe_part(folder, out, Colours(), part=part, store=store, batch=3).described)


def start(*given):
    context = loader._context()
    pipe, own = context.Pipe(duplex=False)
    process = context.Process(target=work, args=(*given, own))
    process.start()
    own.close()
    return process, pipe


@pytest.mark.parametrize("kind", ["folder", "postgres"])
@pytest.mark.parametrize("die", [1, 2, 3, 4])
def test_four_processes_one_of_them_killed(many, tmp_path, request, kind, die):
    store = None if kind == "folder" else url_of(kind, tmp_path, request)
    expected, out = tmp_path / "expected", tmp_path / "out"
    made(many, expected)
    begun = [start(many, out, Part(number, 4), store, die if number == 2 else 0) for number in range(1, 5)]
    described = []
    for number, (process, pipe) in enumerate(begun, 1):
        if number == 2:
            with pytest.raises(EOFError):
                pipe.recv()
        else:
            described.append(pipe.recv())
        process.join()
        assert process.exitcode == (-signal.SIGKILL if number == 2 else 0)
    finished = {digest for path in out.glob("[0-9a-f]*.safetensors") for digest in read_chunk(path).digests}
    process, pipe = start(many, out, Part(2, 4), store, 0)  # the scheduler runs it again
    again = pipe.recv()
    process.join()
    readable = [file for file in Manifest.read(expected).files if not file.reason]
    missing = {file.digest for file in readable if Part(2, 4).holds(file.name)} - finished
    assert again == len(missing) > 0
    model = Colours()
    made(many, out, model, store=store)
    assert model.seen == 0
    assert state(out) == state(expected)


def test_the_same_part_twice_at_the_same_time(many, tmp_path):
    out = tmp_path / "out"
    begun = [start(many, out, Part(1, 1), None, 0) for _ in range(3)]
    described = []
    for process, pipe in begun:
        described.append(pipe.recv())
        process.join()
    assert any(described)  # one that begins late, on a busy machine, may find everything done
    model = Colours()
    made(many, out, model)
    assert model.seen == 0
    made(many, tmp_path / "expected")
    assert state(out) == state(tmp_path / "expected")


def test_an_update_leaves_the_files_of_parts_that_are_being_described(small_chunks, many, tmp_path, monkeypatch):
    out = tmp_path / "out"
    made(many, out)
    noise(many / "new", 80)
    real, written = update_module.write_chunk, []

    def late(folder, *given, **options):
        chunk = real(folder, *given, **options)
        if not written:
            written.append(chunk.name)
            with monkeypatch.context() as patch:
                patch.setattr(update_module, "write_chunk", real)
                temporary = out / f".{'a' * 32}.safetensors.{'b' * 8}"  # of another part
                temporary.touch()
                (many / "0000.png").rename(tmp_path / "0000.png")
                made(many, out)
                assert temporary.exists()
                (tmp_path / "0000.png").rename(many / "0000.png")
        return chunk

    monkeypatch.setattr(update_module, "write_chunk", late)
    describe_part(many, out, Colours(), part=Part(1, 2), batch=3)
    monkeypatch.setattr(update_module, "write_chunk", real)
    made(many, out)
    assert not list(out.glob(".*.safetensors.*"))  # nobody writes it now
    made(many, tmp_path / "expected")
    assert state(out) == state(tmp_path / "expected")


def test_an_update_leaves_the_chunks_that_a_part_writes_meanwhile(small_chunks, many, tmp_path):
    out = tmp_path / "out"

    class Slow(Colours):
        def forward(self, images):
            if not self.seen:
                noise(many / "new", 80)  # after the update has listed the images
                describe_part(many, out, Colours(), part=Part(1, 1))
            return super().forward(images)

    made(many, out, Slow())
    assert len(state(out)) == 59
    model = Colours()
    made(many, out, model)
    assert (model.seen, len(state(out))) == (0, 139)


def test_a_chunk_that_was_not_sent_is_sent_by_the_next_call(small_chunks, many, tmp_path, request, monkeypatch):
    url, out, model = url_of("postgres", tmp_path, request), tmp_path / "out", Colours()

    def fail(*given):
        raise OSError("the network is gone")

    with monkeypatch.context() as patch:
        patch.setattr(parts, "send_chunk", fail)
        with pytest.raises(OSError, match="the network is gone"):
            describe_part(many, out, model, part=Part(1, 1), store=url, batch=30)
    assert model.seen > 20
    describe_part(many, out, model, part=Part(1, 1), store=url)
    assert model.seen == 58
    shutil.rmtree(out)  # another machine finishes
    made(many, out, model, store=url)
    assert model.seen == 58


def test_a_part_waits_while_an_update_removes_files(many, tmp_path):
    out = tmp_path / "out"
    describe_part(many, out, Colours(), part=Part(1, 2))
    handle = update_module.try_lock(out / update_module.PARTS)
    process, pipe = start(many, out, Part(2, 2), None, 0)
    assert not pipe.poll(3)
    os.close(handle)
    assert pipe.recv() > 0
    process.join()


# ---- the command -----------------------------------------------------------------------------------


def test_the_command(many, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(descriptors, "open_descriptor", lambda name, *, weights=None, say=None: Colours())
    monkeypatch.setenv("COLUMNS", "200")
    out = str(tmp_path / "out")
    command = ["index", str(many), "--out", out, "--workers", "0"]
    for number in (1, 2):
        assert main([*command, "--part", f"{number}/2"]) == 0
        printed = capsys.readouterr().out
        assert f"Part {number}/2 of {out}: " in printed
        assert "Next: the other parts, on any machine; then the same command without --part" in printed
    assert main(command) == 0
    assert "59 images (0 described now, 0 removed)" in capsys.readouterr().out
    assert main([*command, "--part", "3/2"]) != 0
    assert "part (3/2) must be such as 3/16" in capsys.readouterr().err
