"""Builds bn_ext._core: kernels.c once per instruction-set level, the rest once.

setuptools cannot compile one source twice within an extension, so `build_ext`
compiles the kernels itself and links the objects in. Read from the environment,
besides what setuptools reads (CC, CFLAGS, LDFLAGS, ...):

    BN_EXT_BUILD_ISAS   levels to build, as "baseline,v3"; default: all of the machine
    BN_EXT_OPENMP       0: one thread; 1: OpenMP; default: 1 on Linux, 0 elsewhere
"""

import os
import shutil
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.modified import newer_group

# Levels by machine, worst first: name -> compiler flags.
X86_LEVELS = {
    "baseline": ["-march=x86-64", "-mtune=generic"],
    "v3": ["-march=x86-64-v3", "-mtune=generic"],
    "v4": ["-march=x86-64-v4", "-mtune=generic", "-mprefer-vector-width=512"],
}
# Of the machine built for, which _PYTHON_HOST_PLATFORM names in a cross build.
TARGET = sysconfig.get_platform().rpartition("-")[2]
MACHINE_LEVELS = X86_LEVELS if TARGET in ("x86_64", "amd64") else {"baseline": []}

# After the user's CFLAGS: the promise of equal bits hangs on these.
FLAGS = ["-std=gnu11", "-O3", "-fno-fast-math", "-ffp-contract=off", "-fno-math-errno"]
FLAGS += ["-fvisibility=hidden", "-Wno-psabi"]
# The C around the kernels fills small structures field by field and reads them back;
# vectors over neighbouring fields wait for the stores (a fifth of a short row's reduce).
SERIAL = ["-fno-tree-slp-vectorize"]
# Symbols would be most of a wheel; who asks for them in CFLAGS gets them.
STRIP = "-g" not in os.environ.get("CFLAGS", "").split()
FLAGS += ["-g0"] if STRIP else []
#: What changes what a compiler makes of the same sources.
ENVIRONMENT = ("CC", "CFLAGS", "CPPFLAGS", "LDFLAGS", "BN_EXT_BUILD_ISAS", "BN_EXT_OPENMP")

SOURCES = ["backward.c", "dispatch.c", "schedule.c"]
HERE = Path("src_c")
DEPENDS = [str(path) for path in sorted(HERE.iterdir()) if path.suffix in (".c", ".h", ".inc")]


def levels():
    """{name: flags} of the levels to build."""
    asked = os.environ.get("BN_EXT_BUILD_ISAS")
    if asked is None:
        return MACHINE_LEVELS
    names = [name.strip() for name in asked.split(",")]
    unknown = [name for name in names if name not in MACHINE_LEVELS]
    if unknown or "baseline" not in names:
        raise SystemExit(
            f"BN_EXT_BUILD_ISAS: expected baseline, which every CPU can run, and others of "
            f"{', '.join(MACHINE_LEVELS)}, got {asked!r}"
        )
    return {name: flags for name, flags in MACHINE_LEVELS.items() if name in names}


def openmp():
    """Whether to build with OpenMP; macOS's and Windows's compilers come without it."""
    asked = os.environ.get("BN_EXT_OPENMP", "1" if sys.platform == "linux" else "0")
    if asked not in ("0", "1"):
        raise SystemExit(f"BN_EXT_OPENMP: expected 0 or 1, got {asked!r}")
    return asked == "1"


LEVELS = levels()
OPENMP = ["-fopenmp"] if openmp() else []


class BuildExt(build_ext):
    """Compiles the kernels; compiles all again when flags have changed."""

    def run(self):
        stamp = Path(self.build_temp) / "flags"
        now = repr([(name, os.environ.get(name)) for name in ENVIRONMENT])
        if not stamp.is_file() or stamp.read_text() != now:
            self.force = True
        super().run()
        stamp.parent.mkdir(parents=True, exist_ok=True)
        stamp.write_text(now)

    def build_extensions(self):
        if self.compiler.compiler_type == "msvc":
            self.use_clang_cl()
        for extension in self.extensions:
            extension.extra_compile_args = self.spelled(extension.extra_compile_args)
        super().build_extensions()

    def use_clang_cl(self):
        """MSVC has no vector types; clang-cl does, and takes clang's flags as /clang:flag."""
        clang = shutil.which("clang-cl")
        if clang is None:
            raise SystemExit("bn_ext: on Windows the compiler is clang-cl (LLVM); it is not found")
        self.compiler.initialize()
        self.compiler.cc = clang

    def spelled(self, flags):
        """As the compiler wants them."""
        msvc = self.compiler.compiler_type == "msvc"
        return [f"/clang:{flag}" for flag in flags] if msvc else flags

    def build_extension(self, ext):
        built = self.get_ext_fullpath(ext.name)
        if not (self.force or newer_group([*ext.sources, *ext.depends], built, "newer")):
            return

        def compile_level(level):
            return self.compiler.compile(
                [str(HERE / "kernels.c")],
                output_dir=os.path.join(self.build_temp, level),
                macros=[("BN_LEVEL", level)],
                include_dirs=[str(HERE)],
                extra_postargs=self.spelled([*FLAGS, *LEVELS[level]]),
                depends=ext.depends,
            )

        with ThreadPoolExecutor() as pool:
            for objects in pool.map(compile_level, LEVELS):
                ext.extra_objects += objects
        super().build_extension(ext)


core = Extension(
    "bn_ext._core",
    ["bn_ext/_core.pyx", *(str(HERE / name) for name in SOURCES)],
    include_dirs=[str(HERE)],
    depends=DEPENDS,
    define_macros=[("BN_LEVELS(X)", " ".join(f"X({level})" for level in LEVELS))],
    extra_compile_args=[*FLAGS, *SERIAL, *OPENMP],
    extra_link_args=[*OPENMP, *(["-Wl,-s"] if STRIP and sys.platform == "linux" else [])],
)

setup(ext_modules=cythonize([core]), cmdclass={"build_ext": BuildExt})
