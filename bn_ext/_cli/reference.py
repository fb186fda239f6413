"""`bn-ext cases` and `bn-ext check`: cases for kernels of your own, and what their results are."""

import argparse
import importlib
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from bn_ext import testing
from bn_ext._bench.problems import DTYPES, LAYOUTS, dtype_of
from bn_ext._cli.usage import UsageError, writing
from bn_ext._reference import files
from bn_ext._reference.cases import Case, Kind, standard_cases
from bn_ext._reference.report import run

__all__ = ["CASES", "CHECK", "add_kinds", "cases", "check"]

CASES = """Write the standard cases as .npy files: inputs, right results, the largest errors that
pass, and manifest.json, which lists them. A program in any language writes its results beside them;
`bn-ext check DIR` then judges these."""

CHECK = """Judge results that a program wrote into DIR beside the files of `bn-ext cases`, each as
the .npy file that the manifest names; or call a Python function with the standard cases, as
bn_ext.testing.check_backward does. A table shows each case's error in units of its limit."""

KINDS = {
    "training": Kind("training"),
    "inference": Kind("inference", is_training=False),
    "backward": Kind("backward"),
    "backward-frozen": Kind("backward", is_training=False),
    "double-backward": Kind("double_backward"),
    "double-backward-frozen": Kind("double_backward", is_training=False),
}


def add_kinds(add: Callable[..., Any], *, several: bool) -> None:
    """The options that choose cases."""
    if several:
        add("--op", nargs="+", choices=KINDS, default=list(KINDS)[:5], metavar="OP",
            help=f"any of {', '.join(KINDS)} (default: all but the last)")  # fmt: skip
    else:
        add("--op", nargs=1, choices=KINDS, default=["backward"], metavar="OP",
            help=f"what a function computes: {', '.join(KINDS)} (default: backward)")  # fmt: skip
    add("--dtypes", nargs="+", choices=DTYPES, default=["float32"], metavar="DTYPE",
        help=f"any of {', '.join(DTYPES)} (default: float32)")  # fmt: skip
    add("--layout", choices=LAYOUTS, default="NXC", help="(default: NXC, channels last)")
    add("--relu", action="store_true", help="a ReLU follows (all but double-backward)")
    add("--quick", action="store_true", help="without the cases of many rows")
    add("--skip", nargs="+", default=[], metavar="WORD",
        help="leave out cases whose names contain a word, such as NaN")  # fmt: skip


def chosen(options: argparse.Namespace) -> Iterator[Case]:
    for name in options.op:
        kind = replace(KINDS[name], data_format=options.layout)
        kind = replace(kind, relu=options.relu and kind.operation != "double_backward")
        for dtype in options.dtypes:
            try:
                dtype_of(dtype)
                testing.demand_long_doubles(dtype)
            except ImportError:
                message = f"--dtypes: {dtype} needs ml_dtypes: python -m pip install ml_dtypes"
                raise UsageError(message) from None
            except NotImplementedError as error:
                raise UsageError(f"--dtypes: {error}") from None
            yield from standard_cases(kind, dtype, quick=options.quick, skip=options.skip)


def cases(options: argparse.Namespace) -> int:
    folder = Path(options.folder)
    with writing("DIR", folder):
        count = files.write(folder, chosen(options))
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    print(f"{count} cases, {size / 1e6:.2f} MB: {folder / files.MANIFEST}")
    return 0


def check(options: argparse.Namespace) -> int:
    absent: list[str] = []
    if os.path.isdir(options.what):
        try:
            report, absent = files.check(
                Path(options.what), narrow=options.narrow, limit=options.limit
            )
        except files.ManifestError as error:
            raise UsageError(str(error)) from None
    else:
        function = imported(options.what)
        report = run(function, chosen(options), narrow=options.narrow, limit=options.limit)
    print(report)
    if absent:
        print(f"\nnot checked, since no case has a result: {', '.join(absent)}")
    return 0 if report.passed else 1


def imported(what: str) -> Callable[..., Any]:
    """The function of MODULE:FUNCTION."""
    module, colon, names = what.partition(":")
    if not (module and colon and names):
        raise UsageError(f"{what}: expected a folder that exists, or module:function")
    sys.path.insert(0, os.getcwd())
    try:
        found: Any = importlib.import_module(module)
        for name in names.split("."):
            found = getattr(found, name)
    except Exception as error:  # a module may fail in any way
        text = f"{type(error).__name__}: {error}".splitlines()[0]
        raise UsageError(f"{what}: cannot be imported ({text})") from None
    finally:
        sys.path.remove(os.getcwd())
    if not callable(found):
        raise UsageError(f"{what}: expected a function, got {type(found).__name__}")
    return found  # type: ignore[no-any-return]
