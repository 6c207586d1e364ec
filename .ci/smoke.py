"""Check an installed patchreorder in a few seconds, with nothing but its core dependencies.

python .ci/smoke.py            # whatever form of the operator is there
python .ci/smoke.py --kernel   # fail without the native kernel
python .ci/smoke.py --no-kernel
"""

import argparse
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import torch

import patchreorder
from patchreorder.operator import native

parser = argparse.ArgumentParser()
parser.add_argument("--kernel", action=argparse.BooleanOptionalAction)
wanted = parser.parse_args().kernel

here = Path(patchreorder.__file__).parent
assert version("patchreorder") == patchreorder.__version__, (version("patchreorder"), patchreorder.__version__)
if wanted is not None:
    assert (native.KERNEL.library is not None) is wanted, native.KERNEL

# Energies of the four quarters are 1 to 4; the largest comes first.
x = torch.tensor([[1.0, 2.0], [3.0, 4.0]]).repeat_interleave(2, 0).repeat_interleave(2, 1)[None, None]
z, order = patchreorder.patch_reorder(x, grid=2, return_order=True)
assert z[0, 0, ::2, ::2].flatten().tolist() == [4, 3, 2, 1], z
assert torch.equal(patchreorder.undo_reorder(z, order), x)

network = patchreorder.create_model("pr_cnn", pretrained=True, dataset="mnist-r").eval()
assert network(torch.rand(2, 1, 28, 28)).shape == (2, 10)

for command in (["-m", "patchreorder", "info"], ["-m", "patchreorder", "run", "--help"]):
    subprocess.run([sys.executable, *command], check=True, capture_output=True)
print(f"patchreorder {patchreorder.__version__} in {here}: works; kernel: {native.KERNEL.build}")
