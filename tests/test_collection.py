"""The tests themselves: each room of the sources has its own, and all are collected everywhere.

Tests of a room are found by its name: those of src_c/plan.c are in test_plan.py. All others
are named for a promise, which docs/promises.md states.
"""

import re
from pathlib import Path

import mutate
import pytest
from processes import printed_by
from tree import ROOT, TESTS

#: Tests in a file of another name: of which sources, each by itself, so that a new one has to be
#: given a place.
ELSEWHERE = {
    "test_formulas.py": ["examples/plain_loop.py"],
    "test_kernels.py": [
        "src_c/kernels/loops.inc",
        "src_c/kernels/passed.inc",
        "src_c/kernels/rings.inc",
        "src_c/kernels/runs.inc",
        "src_c/kernels/spans.inc",
        "src_c/kernels/sums.inc",
        "src_c/kernels/vec.h",
        "src_c/kernels/vec_avx2.h",
        "src_c/kernels/vec_avx512.h",
        "src_c/kernels/vec_generic.h",
        "src_c/kernels/vec_neon.h",
        "src_c/kernels/vec_portable.h",
        "src_c/kernels/vec_sse2.h",
    ],
    "test_layer.py": ["bn_ext/_layer_arguments.py"],
    "test_layouts.py": ["src_c/copies.c", "src_c/copies.h"],
    "test_plan.py": ["src_c/sizes.h"],
    "test_schedule.py": ["src_c/relax.h"],
    "test_workers.py": ["bn_ext/_threadpoolctl.py"],
    "test_walks.py": [
        "src_c/walk.c",
        "src_c/walk.h",
        "src_c/walk_rows.c",
        "src_c/walk_runs.c",
    ],
    "test_engine.py": ["src_c/operations/coefs.h", "src_c/operations/operation.h"],
    "test_dtypes.py": ["src_c/channel.h"],
    "test_calls.py": [
        "src_c/bn.h",
        "src_c/entries.c",
        "bn_ext/_call.pxi",
        "bn_ext/_core.pxd",
        "bn_ext/_core.pyx",
        "bn_ext/_results.pxi",
        "bn_ext/_roles.pxi",
    ],
    "test_exact.py": [
        "src_c/exact_rows.c",
        "src_c/exact_runs.c",
        "src_c/exact_walk.c",
        "src_c/exact_walk.h",
        "src_c/kernels/anchored.inc",
        "src_c/kernels/quiet.inc",
        "src_c/kernels/terms.inc",
    ],
    "test_state.py": ["src_c/kernels/digits.inc"],
    "test_typing.py": ["bn_ext/__init__.pyi", "bn_ext/_core.pyi"],
    "test_arguments.py": ["bn_ext/_inputs.pxi"],
    "test_bad_input.py": ["bn_ext/_messages.pxi"],
    "test_runtime.py": ["bn_ext/_process.pxi"],
    "test_verify.py": ["bn_ext/_raw_kernels.pxi"],
    "test_cli.py": ["bn_ext/__main__.py"],
    "test_import.py": ["bn_ext/__init__.py", "bn_ext/_version.py"],
    "test_example.py": ["examples/fold.py", "examples/train_digits.py"],
    "test_mpi.py": ["examples/train_digits_mpi.py"],
}
FILE_OF_TESTS = {source: test for test, some in ELSEWHERE.items() for source in some}
whole_tree = pytest.mark.skipif(
    not (ROOT / "bn_ext" / "_core.pyx").is_file(), reason="needs the whole source tree"
)
FOLDERS = ["src_c", "bn_ext", "examples"]
#: What is written by hand there.
WRITTEN = {".c", ".h", ".inc", ".py", ".pyi", ".pyx", ".pxd", ".pxi"}


def sources():
    """Paths from the root; not what Cython made of a .pyx."""
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            made = path.suffix == ".c" and path.with_suffix(".pyx").exists()
            if path.suffix in WRITTEN and not made:
                yield path.relative_to(ROOT)


def file_of_tests(source):
    """The name of the file that has them; a subpackage is one room."""
    if source.as_posix() in FILE_OF_TESTS:
        return FILE_OF_TESTS[source.as_posix()]
    return by_its_name(source)


def by_its_name(source):
    room = source.parts[1] if source.parts[0] == "bn_ext" else source.name
    return f"test_{room.partition('.')[0].strip('_')}.py"


@pytest.mark.quick
def test_every_room_has_its_tests():
    assert [
        (source.as_posix(), file_of_tests(source))
        for source in sources()
        if not (TESTS / file_of_tests(source)).is_file()
    ] == []


@pytest.mark.quick
@whole_tree
def test_the_table_names_what_is_there():
    """Each file once, and none whose name would do."""
    listed = [source for some in ELSEWHERE.values() for source in some]
    assert len(listed) == len(FILE_OF_TESTS)
    assert {*listed} - {source.as_posix() for source in sources()} == set()
    assert [source for source in listed if by_its_name(Path(source)) == FILE_OF_TESTS[source]] == []


@pytest.mark.quick
@whole_tree
def test_all_other_tests_are_a_promises():
    promises = (ROOT / "docs" / "promises.md").read_text(encoding="utf-8")
    promised = set(re.findall(r"\.\./tests/(test_\w+\.py)", promises))
    of_rooms = {*map(file_of_tests, sources()), *ELSEWHERE}
    there = {path.name for path in TESTS.glob("test_*.py")}
    assert promised - there == set()
    assert there - of_rooms - promised == set()


# As on Windows: no global library to look into, none of these modules and functions.
PROGRAM = f"""
import ctypes, os, sys
import numpy, pytest, multiprocessing.context

class CDLL(ctypes.CDLL):
    def __init__(self, name, *args, **kwargs):
        if name is None:
            raise TypeError("argument 1 must be str, not None")
        super().__init__(name, *args, **kwargs)

class Plugin:
    @pytest.hookimpl(wrapper=True)
    def pytest_collection(self):
        import contextlib, hypothesis
        with contextlib.suppress(ImportError):
            import dask.array
        platform = sys.platform
        ctypes.CDLL = CDLL
        for name in ("fork", "sched_getaffinity", "sched_setaffinity"):
            if hasattr(os, name):
                delattr(os, name)
        for name in ("fcntl", "resource", "termios", "pwd"):
            sys.modules[name] = None
        sys.platform = "win32"
        try:
            return (yield)
        finally:
            sys.platform = platform

options = ["--collect-only", "-qq", "-p", "no:cacheprovider", "-p", "no:randomly", {str(TESTS)!r}]
raise SystemExit(pytest.main(options, [Plugin()]))
"""


def test_collected_as_on_windows():
    printed = printed_by(PROGRAM, cwd=ROOT, PYTEST_ADDOPTS="", timeout=300)
    assert "test_same_bits.py: " in printed


@whole_tree
def test_every_mutant_still_has_its_place():
    """mutate.py finds what it breaks by its text."""
    paths = {
        path.name: path for path in [*(ROOT / "src_c").rglob("*"), *(ROOT / "bn_ext").rglob("*")]
    }
    for name, old, new, *_ in mutate.MUTANTS:
        assert paths[name].read_text().count(old) == 1, (name, old)
        assert old != new
