"""The native kernel, compiled once per instruction set; everything else about the package is in pyproject.toml.

Each build is an ordinary shared library with a C interface (no torch, no Python headers) and is optional: where it
cannot be compiled the installation goes on without it and the plain torch form answers.
"""

import copy
import os
import platform
from glob import glob

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

X86 = {
    "x86_64": [],  # runs everywhere, and says what the processor can do
    "avx2": ["-mavx2", "-mbmi2"],
    "avx512": ["-mavx512f", "-mavx512vl", "-mavx512bw", "-mavx512dq", "-mbmi2", "-mprefer-vector-width=512"],
}
BUILDS = X86 if platform.machine() in ("x86_64", "AMD64") else {"generic": []}

# Contraction is off because rounding decides near-ties: a fused multiply-add would rank them differently.
# -O2 and what is worth having of -O3: as fast here, and a fraction of the time to compile.
FLAGS = ["-std=c++17", "-O2", "-ftree-vectorize", "-funswitch-loops", "-fpeel-loops", "-ffp-contract=off"]
FLAGS += ["-fno-math-errno", "-fvisibility=hidden", "-pthread", "-g0"]
LINK_FLAGS = ["-pthread"]
if platform.system() == "Linux":  # options of GCC, the usual compiler there
    FLAGS += ["-fvect-cost-model=dynamic", "-fsplit-loops"]
    LINK_FLAGS += ["-Wl,-s"]  # without symbols: nine tenths of the size


class BuildApart(build_ext):
    """Give every build a folder for its object file: they come from one source, at the same time."""

    def build_extension(self, ext: Extension) -> None:
        own = copy.copy(self)
        own.build_temp = os.path.join(self.build_temp, ext.name)
        build_ext.build_extension(own, ext)


setup(
    cmdclass={"build_ext": BuildApart},
    options={"build_ext": {"parallel": True}, "bdist_wheel": {"py_limited_api": "cp310"}},
    ext_modules=[
        Extension(
            f"patchreorder.operator.native._kernel_{name}",
            ["src/patchreorder/operator/native/kernel.cpp"],
            depends=sorted(glob("src/patchreorder/operator/native/*.hpp")),
            language="c++",
            extra_compile_args=FLAGS + flags,
            extra_link_args=LINK_FLAGS,
            optional=True,
            py_limited_api=True,  # no header of Python is used, so any version will do
        )
        for name, flags in BUILDS.items()
    ],
)
