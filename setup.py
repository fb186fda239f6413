"""Builds bn_ext._core: kernels.c once per instruction-set level, the rest once.

setuptools cannot compile one source twice within an extension, so `build_ext`
compiles the kernels itself and links the objects in.
"""

import os
import platform
import sys
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
LEVELS = X86_LEVELS if platform.machine() in ("x86_64", "AMD64") else {"baseline": []}

# After the user's CFLAGS: the promise of equal bits hangs on these.
FLAGS = ["-std=gnu11", "-O3", "-fno-fast-math", "-ffp-contract=off", "-fno-math-errno"]
FLAGS += ["-fvisibility=hidden", "-Wno-psabi", "-g0"]
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
    extra_compile_args=[*FLAGS, *OPENMP],
    extra_link_args=[*OPENMP, "-Wl,-s"] if sys.platform == "linux" else OPENMP,
)

setup(ext_modules=cythonize([core]), cmdclass={"build_ext": BuildExt})
