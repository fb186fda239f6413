"""Builds bn_ext._core: kernels.c once per instruction-set level, the rest once.

setuptools cannot compile one source twice within an extension, so `build_ext`
compiles the kernels itself and links the objects in.
"""

import os
import sys
import sysconfig
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

# Levels by machine, worst first: name -> compiler flags.
X86_LEVELS = {
    "baseline": ["-march=x86-64", "-mtune=generic"],
    "v3": ["-march=x86-64-v3", "-mtune=generic"],
    "v4": ["-march=x86-64-v4", "-mtune=generic", "-mprefer-vector-width=512"],
}
# Of the machine built for, which _PYTHON_HOST_PLATFORM names in a cross build.
TARGET = sysconfig.get_platform().rpartition("-")[2]
LEVELS = X86_LEVELS if TARGET in ("x86_64", "amd64") else {"baseline": []}

# After the user's CFLAGS: the promise of equal bits hangs on these.
FLAGS = ["-std=gnu11", "-O3", "-fno-fast-math", "-ffp-contract=off", "-fno-math-errno"]
FLAGS += ["-fvisibility=hidden", "-Wno-psabi"]
# Symbols would be most of a wheel; who asks for them in CFLAGS gets them.
STRIP = "-g" not in os.environ.get("CFLAGS", "").split()
FLAGS += ["-g0"] if STRIP else []
# The C around the kernels fills small structures field by field and reads them back;
# vectors over neighbouring fields wait for the stores (a fifth of a short row's reduce).
SERIAL = ["-fno-tree-slp-vectorize"]
# macOS's compiler has no OpenMP of its own: there the kernels run on one thread.
OPENMP = [] if sys.platform == "darwin" else ["-fopenmp"]

SOURCES = ["backward.c", "dispatch.c", "schedule.c"]
HEADERS = ["bn.h", "vec.h", "fp_mode.h", "scalar.h", "schedule.h", "backward.inc"]
HERE = Path("src_c")


class BuildExt(build_ext):
    def build_extension(self, ext):
        for level, flags in LEVELS.items():
            folder = os.path.join(self.build_temp, level)
            ext.extra_objects += self.compiler.compile(
                [str(HERE / "kernels.c")],
                output_dir=folder,
                macros=[("BN_LEVEL", level)],
                include_dirs=[str(HERE)],
                extra_postargs=[*FLAGS, *flags],
                depends=ext.depends,
            )
        super().build_extension(ext)


core = Extension(
    "bn_ext._core",
    ["bn_ext/_core.pyx", *(str(HERE / name) for name in SOURCES)],
    include_dirs=[str(HERE)],
    depends=[str(HERE / name) for name in (*HEADERS, "kernels.c")],
    define_macros=[("BN_LEVELS(X)", " ".join(f"X({level})" for level in LEVELS))],
    extra_compile_args=[*FLAGS, *SERIAL, *OPENMP],
    extra_link_args=[*OPENMP, "-Wl,-s"] if STRIP and sys.platform == "linux" else OPENMP,
)

setup(ext_modules=cythonize([core]), cmdclass={"build_ext": BuildExt})
