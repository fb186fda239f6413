"""Builds bn_ext._core from bn_ext/_core_src/ and the C sources that build_c.py lists.

setuptools cannot compile a source twice within an extension, nor sources with different
flags. So build_c.py compiles all of them, and setuptools links. setuptools reads environment
variables (CC, CFLAGS, LDFLAGS, ...); build_c.py lists its own. With SOURCE_DATE_EPOCH, an sdist of
the same files has the same bytes.
"""

import gzip
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.sdist import sdist

# The build backend does not put the folder of setup.py on sys.path.
sys.path.insert(0, str(Path(__file__).resolve().parent))
import build_c

with open("pyproject.toml", "rb") as file:
    PROJECT = tomllib.load(file)
# Relative, so that the same sources make the same objects in every folder.
SOURCE = Path("src_c")


def words(name, default=""):
    """An environment variable, as words."""
    return shlex.split(os.environ.get(name, default).replace(os.sep, "/"))


CFLAGS = words("CFLAGS")
# Symbols would be most of a wheel. They are kept if CFLAGS contains -g.
STRIP = "-g" not in CFLAGS
SYSTEM = build_c.system()
# Without hardening, sanitizers see more.
SANITIZED = any(flag.startswith("-fsanitize") for flag in CFLAGS)
HARDENED, HARDENED_LINK = ([], []) if SANITIZED else SYSTEM[:2]


class BuildExt(build_ext):
    """Compiles what has changed, and links."""

    def finalize_options(self):
        super().finalize_options()
        if self.editable_mode:
            # The default folder would be temporary; this one keeps objects for later builds.
            built_for = f"{self.plat_name}-{sys.implementation.cache_tag}"
            self.build_temp = os.path.join("build", f"temp.{built_for}")

    def run(self):
        super().run()
        for library in Path(self.build_lib, "bn_ext").glob("*.dll") if self.inplace else ():
            self.copy_file(str(library), "bn_ext")
        if self.inplace:  # tests call kernels of the same objects; no wheel has this extension
            path = os.path.join("tests", self.get_ext_filename(kernels.name))
            self.link(*cythonize([kernels]), path, build_c.levels_alone(build_c.units(SOURCE)))

    def build_extension(self, ext):
        path, database = self.get_ext_fullpath(ext.name), Path("compile_commands.json")
        self.link(ext, path, build_c.units(SOURCE), database)

    def link(self, ext, path, units, database=None):
        """Compile units and what Cython has made, and link them to `path`."""
        # Only Cython's unit needs Python's headers.
        unit = build_c.cython_unit(ext.name, ext.sources[0], self.compiler.include_dirs)
        compiler, linker = self.commands()
        # The user's CFLAGS are in both.
        compiler, linker = build_c.usable([*compiler, *HARDENED]), build_c.harmless(linker)
        openmp = build_c.find_openmp(tuple(compiler), linker=tuple(linker))
        flags, made_in = ["-g0"] if STRIP else [], Path(self.build_temp)
        objects = build_c.compile_units([*units, unit], made_in, compiler, flags, openmp, database)
        flags = [*build_c.LINK, *openmp.linker, *ext.extra_link_args]
        if build_c.SYSTEM == "win":
            # Not beside the package, because linkers leave more files beside what they make.
            made = made_in / Path(path).name
            subprocess.run([*linker, *objects, "-o", made, *flags], check=True)
            self.mkpath(os.path.dirname(path))
            self.copy_file(str(made), path)
            if openmp.linker and ext.name == core.name:
                self.copy_openmp(Path(shutil.which(compiler[0])).parent, os.path.dirname(path))
            return
        self.compiler.linker_so = linker
        self.compiler.force = True  # flags may have changed; linking takes a moment
        self.compiler.link_shared_object(
            [str(made) for made in objects],
            path,
            export_symbols=self.get_export_symbols(ext),
            extra_postargs=flags,
            build_temp=self.build_temp,
        )

    def copy_openmp(self, clang, folder):
        """Put the library beside the extension. Windows looks for it there, but not on PATH."""
        for name in ("libomp.dll", "libiomp5md.dll"):  # LLVM's, Intel's
            if (clang / name).exists():
                self.copy_file(str(clang / name), folder)

    def commands(self):
        """The compiler and the linker. On Windows, both are clang: MSVC has no vector types, and
        gcc does not align those of AVX on the stack (bug 54412).
        """
        if build_c.SYSTEM != "win":
            return self.compiler.compiler_so, self.compiler.linker_so
        compiler = [*words("CC", "clang"), *CFLAGS]
        free_threaded = "t" if sysconfig.get_config_var("Py_GIL_DISABLED") else ""
        python = f"python{sys.version_info.major}{sys.version_info.minor}{free_threaded}"
        folders = [f"-L{folder}" for folder in self.library_dirs]
        return compiler, [*compiler, "-shared", *words("LDFLAGS"), *folders, f"-l{python}"]


class Sdist(sdist):
    """An archive that tells nothing of when, where and by whom it was made."""

    def make_archive(self, base_name, format, root_dir=None, base_dir=None, **owner):
        epoch = os.environ.get("SOURCE_DATE_EPOCH")
        if not epoch or format != "gztar":
            return super().make_archive(base_name, format, root_dir, base_dir, **owner)

        def anonymous(entry):
            entry.mtime, entry.uid, entry.gid, entry.uname, entry.gname = int(epoch), 0, 0, "", ""
            entry.mode = 0o755 if entry.mode & 0o100 else 0o644
            return entry

        path = Path(f"{base_name}.tar.gz")
        path.parent.mkdir(parents=True, exist_ok=True)
        with (
            path.open("wb") as file,
            gzip.GzipFile("", "wb", 9, file, int(epoch)) as packed,
            tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
        ):
            archive.add(base_dir, filter=anonymous)  # names are sorted
        return str(path)


def readme():
    """README.md for PyPI, which shows it alone: links and pictures lead to the repository."""
    url = PROJECT["project"]["urls"]["Repository"]
    text = Path("README.md").read_text(encoding="utf-8")
    text = re.sub(r"(!\[[^]]*\]\()(?!https?:|#)", rf"\1{url}/raw/HEAD/", text)
    return re.sub(r"(?<=\]\()(?!https?:|#)", f"{url}/blob/HEAD/", text)


LINK = [*HARDENED_LINK, *(SYSTEM.strip if STRIP else [])]
core = Extension("bn_ext._core", ["bn_ext/_core_src/core.pyx"], extra_link_args=LINK)
kernels = Extension("oracle.compiled", ["tests/oracle/compiled.pyx"], extra_link_args=LINK)

# Builds of one tree share files, even if their options differ.
with build_c.alone(Path("build")):
    setup(
        ext_modules=cythonize([core]),
        long_description=readme(),
        long_description_content_type="text/markdown",
        cmdclass={"build_ext": BuildExt, "sdist": Sdist},
    )
