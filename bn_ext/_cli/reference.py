"""`bn-ext cases` and `bn-ext check`: cases for kernels of your own, and what their results are."""

import argparse
import importlib
import importlib.machinery
import importlib.util
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from bn_ext._cli import child
from bn_ext._cli.usage import UsageError, as_layout, as_seconds, as_whole
from bn_ext._dtypes import DTYPES
from bn_ext.testing import _files as files
from bn_ext.testing._cases import ARITHMETICS, Case, Kind, standard_cases
from bn_ext.testing._operators import as_operator
from bn_ext.testing._report import said

KINDS = {
    "training": Kind("training"),
    "inference": Kind("inference", is_training=False),
    "backward": Kind("backward"),
    "backward-frozen": Kind("backward", is_training=False),
    "double-backward": Kind("double_backward"),
    "double-backward-frozen": Kind("double_backward", is_training=False),
}
#: Options that choose cases, and that choose how a function is called.
CHOICES = "op", "dtypes", "layout", "relu", "quick", "skip", "own_statistics", "operator"
CALLS = "repeats", "same_bits", "strided", "timeout"


def add_kinds(add: Callable[..., Any], *, several: bool) -> None:
    """The options that choose cases; unless of several operations, those of check as well."""

    def choose(name: str, said: str, **how: Any) -> None:
        add(*name.split(), default=argparse.SUPPRESS, help=said, **how)

    flag = {"action": "store_true"}
    said, rest = ("any of", "all but the last") if several else ("a function computes", "backward")
    choose("--op", f"{said} {', '.join(KINDS)} (default: {rest})", nargs="+" if several else 1,
           choices=KINDS, metavar="OP")  # fmt: skip
    choose("--dtypes", f"any of {', '.join(DTYPES)} (default: float32)", nargs="+", choices=DTYPES,
           metavar="DTYPE")  # fmt: skip
    choose("--layout --data-format", "NXC (default: channels last), NCX, NHWC, NCHW, ...",
           type=as_layout, metavar="FORMAT")  # fmt: skip
    choose("--relu", "a ReLU follows (all but double-backward)", **flag)
    choose("--quick", "without the cases of many elements", **flag)
    choose("--skip", "leave out cases whose names contain a word, such as NaN", nargs="+",
           metavar="WORD")  # fmt: skip
    if several:
        return
    add("--arithmetic", choices=ARITHMETICS, default="float32",
        help="what passes: double (bn_ext's own limits), float32 (sums in the type of the data's "
        "arithmetic, in any order; default), any (src * scale + shift, and the like)")  # fmt: skip
    add(
        "--script", help="write the smallest program that shows the worst mistake", metavar="OUT.py"
    )
    add("--verbose", help="show right cases as well", **flag)
    add("--narrow", help="results may have a narrower dtype than the data", **flag)
    choose("--own-statistics", "a gradient makes its own statistics", **flag)
    choose("--operator", "it is called as this operator of bn_ext.specs, such as "
           "FusedBatchNormV3", metavar="NAME")  # fmt: skip
    choose("--repeats", "call the function N times with each case, and say where bits differ",
           type=as_whole, metavar="N")  # fmt: skip
    choose("--same-bits", "fail where they do", **flag)
    choose("--strided", "pass arrays with gaps between their numbers", **flag)
    choose("--timeout", "seconds that a case may take (default: 60)",
           type=as_seconds, metavar="S")  # fmt: skip


def chosen(given: argparse.Namespace, op: Sequence[str] = ("backward",)) -> Iterator[Case]:
    options = vars(given)
    layout = options.get("layout", "NXC")
    kinds = [replace(KINDS[name], data_format=layout) for name in options.get("op", op)]
    if "own_statistics" in options:
        if not all("backward" in kind.operation and kind.is_training for kind in kinds):
            raise UsageError("--own-statistics: expected --op backward or double-backward")
        kinds = [replace(kind, own_statistics=True) for kind in kinds]
    gated = [kind for kind in kinds if kind.operation != "double_backward"]
    if "relu" in options and not gated:
        raise UsageError("--relu: expected an --op other than double-backward")
    try:
        for kind in kinds:
            each = replace(kind, relu="relu" in options and kind in gated)
            _, each = as_operator(print, options.get("operator"), each)
            how = {name: options[name] for name in ("dtypes", "quick", "skip") if name in options}
            yield from standard_cases(each, **how)
    except ValueError as error:
        raise UsageError(f"--{error}") from None
    except (ImportError, NotImplementedError) as error:
        raise UsageError(f"--dtypes: {error}") from None


def cases(options: argparse.Namespace) -> int:
    """Write the standard cases as .npy files: inputs, right results, the largest errors that pass,
    and manifest.json, which lists them. A program in any language writes its results beside them;
    `bn-ext check DIR` then judges these.
    """
    folder = Path(options.folder)
    try:
        count = files.write(folder, chosen(options, op=list(KINDS)[:5]))
    except OSError as error:
        raise UsageError(f"DIR {folder}: cannot be written ({error.strerror or error})") from None
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    print(f"{count} cases, {size / 1e6:.2f} MB: {folder / files.MANIFEST}")
    return 0


def check(options: argparse.Namespace) -> int:
    """Judge results that a program wrote into DIR beside the files of `bn-ext cases`, each as the
    .npy file that the manifest names; or call a Python function with the standard cases, as
    bn_ext.testing.check_backward does, in a process of its own, which it may crash. A table shows
    each case's error in units of its limit.
    """
    absent: list[str] = []
    how = {"narrow": options.narrow, "arithmetic": options.arithmetic}
    if os.path.isdir(options.what):
        given = [name for name in (*CHOICES, *CALLS) if name in options]
        if given:
            name = given[0].replace("_", "-")
            raise UsageError(f"--{name}: expected only with module:function; DIR has its cases")
        try:
            report, absent = files.check(Path(options.what), **how)
        except (files.ManifestError, ImportError) as error:  # ml_dtypes may be missing
            raise UsageError(str(error)) from None
    else:
        how |= {name: vars(options)[name] for name in CALLS if name in options}
        how["script"] = loading(options.what) if options.script else ""
        report = child.run(partial(function_of, options), partial(chosen, options), **how)
    print("\n".join(report.lines(verbose=options.verbose)))
    if options.script:
        try:
            text = report.script()
        except ValueError:
            raise UsageError("--script: expected wrong numbers of a function") from None
        Path(options.script).write_text(text, encoding="utf-8")
    if absent:
        print(f"\nnot checked, since no case has a result: {', '.join(absent)}")
    return 0 if report.passed else 1


def function_of(options: argparse.Namespace) -> Callable[..., Any]:
    """The function, or what calls it as an operator."""
    function, given = imported(options.what), vars(options)
    kind = KINDS[given.get("op", ["backward"])[0]]
    kind = replace(kind, data_format=given.get("layout", "NXC"))
    try:
        return as_operator(function, given.get("operator"), kind)[0]
    except ValueError as error:
        raise UsageError(f"--{error}") from None


def imported(what: str) -> Callable[..., Any]:
    """The function of MODULE:FUNCTION or FILE.py:FUNCTION."""
    module, colon, names = what.rpartition(":")
    if not (module and colon and names):
        raise UsageError(f"{what}: expected a folder that exists, or module:function")
    path = Path(module)
    by_path = path.suffix == ".py"
    sys.path.insert(0, str(path.parent.resolve()) if by_path else os.getcwd())
    try:
        found: Any = _loaded(path) if by_path else importlib.import_module(module)
        for name in names.split("."):
            found = getattr(found, name)
    except (Exception, SystemExit) as error:  # a module may fail in any way
        raise UsageError(f"{what}: cannot be imported ({said(error)})") from None
    if not callable(found):
        raise UsageError(f"{what}: expected a function, got {type(found).__name__}")
    return found  # type: ignore[no-any-return]


def loading(what: str) -> str:
    """The lines of a program that load this function."""
    module, _, names = what.rpartition(":")
    path = Path(module)
    if path.suffix != ".py":
        first, *rest = names.split(".")
        lines = f"sys.path.insert(0, {os.getcwd()!r})\nfrom {module} import {first}\n"
        return f"{lines}function = {'.'.join([first, *rest])}"
    return (
        "import importlib.util\n"
        f"spec = importlib.util.spec_from_file_location('kernel', {str(path.resolve())!r})\n"
        "kernel = sys.modules['kernel'] = importlib.util.module_from_spec(spec)\n"
        f"sys.path.insert(0, {str(path.parent.resolve())!r})\n"
        f"spec.loader.exec_module(kernel)\nfunction = kernel.{names}"
    )


def _loaded(path: Path) -> ModuleType:
    """The module of this file: by its name, so that processes which the function starts can import
    it; by a name of its own if Python finds another module by that name.
    """
    if not path.is_file():
        raise FileNotFoundError(f"no file {path}")
    name = path.stem
    if name.isidentifier() and name not in sys.modules:
        spec = importlib.util.find_spec(name)
        if spec and spec.origin and os.path.realpath(spec.origin) == os.path.realpath(path):
            return importlib.import_module(name)
    name = "bn_ext_check_" + re.sub(r"\W", "_", name)
    loader = importlib.machinery.SourceFileLoader(name, str(path.resolve()))
    spec = importlib.util.spec_from_loader(name, loader)
    module = importlib.util.module_from_spec(spec)  # type: ignore[arg-type]
    sys.modules[name] = module  # dataclasses look for it there
    loader.exec_module(module)
    return module
