"""Builds the optional native attention; everything else about the package stands in pyproject.toml.

The library has a plain C interface: no headers of torch or Python are needed, and one build serves every
version of both. Where no C++ compiler can build it, the install goes on without it; `maskprior doctor` tells.
"""

import os
import platform
import shlex
import shutil
import subprocess
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

SOURCES = Path("src/maskprior/kernels/native_src")
FLAGS = [
    "-O3",
    "-fPIC",
    "-std=c++17",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-ffp-contract=fast",
    "-Wno-psabi",
]
INSTRUCTION_SETS = {
    "portable": [],
    "avx2": ["-mavx2", "-mfma"],
    "avx512": ["-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mfma"],
}


def compiler() -> list[str]:
    """The C++ compiler: $CXX, which may have arguments, or the first known name on the path."""
    if os.environ.get("CXX"):
        return shlex.split(os.environ["CXX"])
    found = next((path for name in ("g++", "clang++", "c++") if (path := shutil.which(name))), None)
    if found is None:
        raise FileNotFoundError("no C++ compiler (g++, clang++ or c++) on the path, and no $CXX")
    return [found]


def build_library(target: Path, work: Path) -> None:
    """Compile each instruction set's unit and link them into one shared library."""
    is_x86 = platform.machine().lower() in ("x86_64", "amd64")
    sets = INSTRUCTION_SETS if is_x86 else {"portable": []}
    units = {
        name: ["attention.cpp", *flags, f"-DMASKPRIOR_TABLE=maskprior_{name}"] for name, flags in sets.items()
    }
    units["dispatch"] = ["dispatch.cpp", *(["-DMASKPRIOR_X86"] if is_x86 else [])]
    work.mkdir(parents=True, exist_ok=True)
    target.parent.mkdir(parents=True, exist_ok=True)
    objects = []
    for name, (source, *flags) in units.items():
        objects.append(str(work / f"{name}.o"))
        subprocess.run(
            [*compiler(), *FLAGS, *flags, "-c", str(SOURCES / source), "-o", objects[-1]], check=True
        )
    libraries = ["-pthread", *(["-ldl"] if platform.system() == "Linux" else [])]
    subprocess.run([*compiler(), "-shared", *objects, "-o", str(target), *libraries], check=True)


class BuildNative(build_ext):
    """Builds the library without Python's own compiler flags, and never fails the install."""

    def get_ext_filename(self, fullname: str) -> str:
        """No tag of the Python version: the library does not depend on it."""
        return str(Path(*fullname.split("."))) + ".so"

    def build_extension(self, ext: Extension) -> None:
        """Build the one extension, or warn and leave none, as an old one may be of other sources."""
        target = Path(self.get_ext_fullpath(ext.name))
        try:
            build_library(target, Path(self.build_temp))
        except (OSError, subprocess.CalledProcessError) as error:
            target.unlink(missing_ok=True)
            if self.editable_mode:
                (SOURCES.parent / target.name).unlink(missing_ok=True)
            self.warn(f"the native attention is not built, the aten backend will be used: {error}")


class PlatformWheel(bdist_wheel):
    """Tags the wheel by platform only: any Python 3, any torch."""

    def get_tag(self) -> tuple[str, str, str]:
        """(py3, none, platform)."""
        return "py3", "none", super().get_tag()[2]


setup(
    ext_modules=[
        Extension(
            "maskprior.kernels._native",
            sources=[str(SOURCES / name) for name in ("attention.cpp", "dispatch.cpp")],
            depends=[
                str(SOURCES / name) for name in ("ahead.h", "interface.h", "product.h", "scores.h", "simd.h")
            ],
            optional=True,
        )
    ],
    cmdclass={"build_ext": BuildNative, "bdist_wheel": PlatformWheel},
)
