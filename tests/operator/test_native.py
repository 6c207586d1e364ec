"""The builds of the kernel: which one is chosen, its instruction set, and running without it or after a fork."""

import math
import multiprocessing
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from patchreorder import patch_reorder, undo_reorder
from patchreorder.operator import native, torch_form
from tests.forms import RUNNABLE


def _child(queue, x, expected):
    z = patch_reorder(x, levels=2)  # starts two threads
    torch.set_num_threads(1)  # torch's thread pool does not survive a fork
    queue.put(torch.equal(z, expected))


def test_after_a_fork():
    """The kernel ran threads in the parent before the fork; the child must not wait for them."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    x = torch.rand(8, 64, 32, 32)
    child = context.Process(target=_child, args=(queue, x, patch_reorder(x, levels=2)), daemon=True)
    try:
        child.start()
        assert queue.get(timeout=30)
        child.join(10)
        assert child.exitcode == 0
    finally:
        child.kill()
        torch.set_num_threads(before)


def test_the_environment_chooses_the_build():
    choice = "x86_64" if "x86_64" in RUNNABLE else "off"
    code = (
        "import torch, patchreorder as p; from patchreorder.operator import native; "
        "p.patch_reorder(torch.rand(1, 1, 4, 4)); print(native.KERNEL.build)"
    )
    env = {**os.environ, "PATCHREORDER_NATIVE": choice}
    out = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True).stdout
    assert out.strip() == {"off": "none"}.get(choice, choice)


def test_it_can_be_switched_off():
    assert native.choose(native.builds(), "off")[:2] == (None, "none")


def test_a_missing_or_broken_kernel_is_no_error(monkeypatch, tmp_path):
    assert native.choose({}).library is None
    assert "not compiled" in native.choose({}).reason
    broken = tmp_path / "_kernel_generic.so"
    broken.write_bytes(b"not a library")
    chosen = native.choose({"generic": broken})
    assert chosen.library is None
    assert "cannot be loaded" in chosen.reason
    monkeypatch.setattr(native, "KERNEL", chosen)
    assert patch_reorder(torch.arange(4.0).reshape(1, 1, 2, 2)).flatten().tolist() == [3, 2, 1, 0]


def test_an_unknown_build_is_refused():
    with pytest.raises(ValueError, match="avx1024"):
        native.choose({}, wanted="avx1024")


def test_a_build_that_the_processor_cannot_run_is_refused(monkeypatch):
    monkeypatch.setattr(native, "_processor", lambda found: 0)
    with pytest.raises(ValueError, match="needs more than this processor supports"):
        native.choose({"avx512": Path("nowhere")}, wanted="avx512")


@pytest.mark.skipif(shutil.which("objdump") is None, reason="needs objdump, which comes with GCC")
@pytest.mark.parametrize(("build", "registers"), [("x86_64", set()), ("avx2", {"ymm"}), ("avx512", {"ymm", "zmm"})])
def test_a_build_keeps_to_its_instruction_set(build, registers):
    """A wheel runs on every x86-64 only if its plain build has no instructions that some of them lack."""
    if build not in native.builds():
        pytest.skip(f"no build {build} on this architecture")
    listing = subprocess.run(
        ["objdump", "-d", "--no-show-raw-insn", native.builds()[build]], capture_output=True, text=True, check=True
    ).stdout
    assert {name for name in ("ymm", "zmm") if f"%{name}" in listing} == registers


@pytest.mark.parametrize("name", RUNNABLE)
def test_a_result_larger_than_the_caches(use_form, name):
    """AMD's processors write it past the caches, in whole lines, where these maps do not begin or end."""
    x = torch.randn(1, 2800, 55, 55)
    assert x.nbytes > 32 * 2**20
    use_form("torch")
    expected, order = patch_reorder(x, levels=2, return_order=True)
    use_form(name)
    z, own = patch_reorder(x, levels=2, return_order=True)
    assert torch.equal(own, order)
    assert torch.equal(z, expected)
    assert torch.equal(undo_reorder(z, own), x)


@pytest.mark.parametrize("name", RUNNABLE)
@pytest.mark.parametrize("descending", [True, False])
def test_energies_that_differ_in_their_lowest_bits_only(use_form, name, descending):
    """Up to 64 patches are sorted by the highest bits of their energies first, with zeros among them."""
    bits = torch.randint(0, 2**31, (64, 33, 6, 6), dtype=torch.int32)
    near = torch.tensor(
        [0, 0, 1, 63, 64, 127, 128, 8191, 8192, 2**30, 2**30 + 1, 0x7F800000, 0x7F800001], dtype=torch.int32
    )
    close = near[torch.randint(0, len(near), bits.shape)]
    bits[::2] = close[::2]
    bits[1::4] = bits[1::4] % 2**8 + 2**30
    bits[3::8] *= torch.rand(bits[3::8].shape) < 0.3
    x = bits.view(torch.float32)
    expected = torch_form.patch_order(x, 6, 6, 1, "l1", True, descending)
    use_form(name)
    _, order = patch_reorder(x, grid="pixels", energy="l1", descending=descending, return_order=True)
    assert torch.equal(order.long(), expected.long())


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="Pillow may round otherwise elsewhere")
@pytest.mark.parametrize("name", RUNNABLE)
@pytest.mark.parametrize("kind", ["whole pixels", "quarter turns", "any"])
def test_a_pose_is_that_of_pillow_to_the_bit(monkeypatch, name, kind):
    monkeypatch.setattr(native, "KERNEL", native.choose(native.builds(), name))
    random = np.random.default_rng(0)
    for _ in range(200):
        height, width, rows, columns = random.integers(1, 150, 4).tolist()
        image = Image.fromarray(random.integers(0, 256, (height, width, 3), dtype=np.uint8))
        angle, scale, right, down = random.uniform((-7, 0.1, -50, -50), (7, 3, 150, 150)).tolist()
        if kind == "whole pixels":
            angle, scale, right, down = 0.0, 1.0, round(right), round(down)
        elif kind == "quarter turns":
            angle, scale = math.radians(90 * round(angle)), 1.0
        cos, sin = (round(value, 15) / scale for value in (math.cos(angle), math.sin(angle)))
        matrix = cos, -sin, right, sin, cos, down
        fill = tuple(random.integers(0, 256, 3).tolist())
        posed = native.pose(image.tobytes("raw", "RGBX"), image.size, (columns, rows), matrix, (*fill, 255))
        expected = image.transform(
            (columns, rows), Image.Transform.AFFINE, matrix, Image.Resampling.BILINEAR, fillcolor=fill
        )
        assert Image.frombytes("RGB", (columns, rows), posed, "raw", "RGBX").tobytes() == expected.tobytes(), matrix


@pytest.mark.skipif(not RUNNABLE, reason="no kernel was compiled")
@pytest.mark.parametrize("wrong", [math.nan, math.inf, 1e300])
def test_a_pose_that_leads_nowhere_is_refused(wrong):
    with pytest.raises(RuntimeError, match="refused"):
        native.pose(bytes(16), (2, 2), (2, 2), (1.0, 0.0, wrong, 0.0, 1.0, 0.0), (0, 0, 0, 0))
