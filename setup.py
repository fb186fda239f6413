"""Builds bn_ext._core from the C that build_c.py names, and from _core.pyx; packs the sources.

setuptools cannot compile one source twice within an extension, nor one with other flags
than the next, so `build_ext` compiles the C itself and links the objects in. Read from the
environment, besides what setuptools reads (CC, CFLAGS, LDFLAGS, ...): see build_c.py.
"""

import gzip
import os
import shutil
import sys
import tarfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.sdist import sdist
from setuptools.modified import newer_group

# A build backend does not put the folder of setup.py on the path.
sys.path.insert(0, str(Path(__file__).resolve().parent))
import build_c

# Relative, as setuptools wants what goes into an archive.
HERE = Path("src_c")
DEPENDS = ["setup.py", "build_c.py", *map(str, sorted(p for p in HERE.rglob("*") if p.is_file()))]
# Symbols would be most of a wheel; who asks for them in CFLAGS gets them.
STRIP = "-g" not in os.environ.get("CFLAGS", "").split()
NO_SYMBOLS = ["-g0"] if STRIP else []
# Sanitizers see more without.
SANITIZED = "-fsanitize" in os.environ.get("CFLAGS", "")
HARDENING, HARD_LINK = ([], []) if SANITIZED else build_c.hardening()
#: What changes what a compiler makes of the same sources.
ENVIRONMENT = ("CC", "CFLAGS", "CPPFLAGS", "LDFLAGS", *build_c.ENVIRONMENT)


class BuildExt(build_ext):
    """Compiles the kernels; compiles all again when flags have changed."""

    def finalize_options(self):
        super().finalize_options()
        if self.editable_mode:
            # Not a folder that goes away: it shares the objects of other builds.
            built_for = f"{self.plat_name}-{sys.implementation.cache_tag}"
            self.build_temp = os.path.join("build", f"temp.{built_for}")

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

        def compile_unit(unit):
            folder = os.path.join(self.build_temp, unit.name)
            objects = self.compiler.object_filenames([str(unit.path)], output_dir=folder)
            # setuptools compiles all again for a change in _core.pyx.
            if not self.force and not newer_group(ext.depends, objects[0], "newer"):
                return objects
            return self.compiler.compile(
                [str(unit.path)],
                output_dir=folder,
                extra_postargs=self.spelled([*unit.flags, *NO_SYMBOLS]),
                depends=ext.depends,
            )

        with ThreadPoolExecutor() as pool:
            for objects in pool.map(compile_unit, build_c.units(HERE, hardened=not SANITIZED)):
                ext.extra_objects += objects
        super().build_extension(ext)


class SDist(sdist):
    """The same bytes from the same files, whoever packs them, and whenever."""

    def make_archive(self, base_name, format, root_dir=None, base_dir=None, **_):
        if format != "gztar":
            raise SystemExit(f"sdist: expected the format gztar, got {format!r}")
        when = int(os.environ.get("SOURCE_DATE_EPOCH", "315532800"))

        def plain(member):
            member.mtime, member.uid, member.gid, member.uname, member.gname = when, 0, 0, "", ""
            member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            return member

        name = f"{base_name}.tar.gz"
        self.mkpath(os.path.dirname(name))
        with (
            open(name, "wb") as file,
            gzip.GzipFile("", "wb", 9, file, when) as packed,
            tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
        ):
            # In sorted order, as tarfile takes a folder.
            archive.add(os.path.join(root_dir or "", base_dir), base_dir, filter=plain)
        return name


# Cython declares a thread state within a block that has one.
CYTHON = [*build_c.warnings(), *(["-Wno-shadow"] if build_c.warnings() else [])]

core = Extension(
    "bn_ext._core",
    ["bn_ext/_core.pyx"],
    include_dirs=[str(HERE)],
    depends=DEPENDS,
    extra_compile_args=[*build_c.FLAGS, *build_c.SERIAL, *HARDENING, *CYTHON, *NO_SYMBOLS],
    extra_link_args=[
        *build_c.openmp(),
        *HARD_LINK,
        *(["-Wl,-s"] if STRIP and sys.platform == "linux" else []),
    ],
)

setup(ext_modules=cythonize([core]), cmdclass={"build_ext": BuildExt, "sdist": SDist})
