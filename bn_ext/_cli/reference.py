"""`bn-ext check`: the standard cases for a Python function, in a process that it may crash."""

import argparse
import importlib
import importlib.util
import os
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from bn_ext._cli import child
from bn_ext._cli.usage import UsageError, as_layout, as_seconds, as_whole
from bn_ext._dtypes import DTYPES
from bn_ext.testing._cases import ARITHMETICS, Case, Kind, standard_cases
from bn_ext.testing._operators import as_operator
from bn_ext.testing._report import message

KINDS = {
    "training": Kind("training"),
    "inference": Kind("inference", is_training=False),
    "backward": Kind("backward"),
    "backward-frozen": Kind("backward", is_training=False),
    "double-backward": Kind("double_backward"),
    "double-backward-frozen": Kind("double_backward", is_training=False),
}


def add_options(add: Callable[..., Any]) -> None:
    """The function, and the options: those of bn_ext.testing, and some more."""
    add("function", metavar="MODULE:FUNCTION|FILE.py:FUNCTION", help="what is checked")
    add("--op", choices=KINDS, default="backward", metavar="OP",
        help=f"what it computes: {', '.join(KINDS)} (default: backward)")  # fmt: skip
    add("--dtypes", nargs="+", choices=DTYPES, default=["float32"], metavar="DTYPE",
        help=f"any of {', '.join(DTYPES)} (default: float32)")  # fmt: skip
    add("--layout", "--data-format", dest="data_format", type=as_layout, default="NXC",
        metavar="FORMAT", help="NXC (default: channels last), NCX, NHWC, NCHW, ...")  # fmt: skip
    add("--operator", metavar="NAME",
        help="it is called as this operator of bn_ext.specs, such as FusedBatchNormV3")  # fmt: skip
    add("--skip", nargs="+", default=(), metavar="WORD",
        help="leave out cases whose names contain a word, such as NaN")  # fmt: skip
    add("--arithmetic", choices=ARITHMETICS, default="float32",
        help="what passes: double (bn_ext's own limits), float32 (sums in the type of the data's "
        "arithmetic, in any order; default), any (src * scale + shift, and the like)")  # fmt: skip
    add("--repeats", type=as_whole, default=1, metavar="N",
        help="call it N times with each case, and say where bits differ")  # fmt: skip
    add("--timeout", type=as_seconds, default=60.0, metavar="S",
        help="seconds that a case may take (default: 60)")  # fmt: skip
    add("--script", metavar="OUT.py", type=Path,
        help="write the smallest program that shows the worst mistake")  # fmt: skip
    for name, text in {
        "--relu": "a ReLU follows (all but double-backward)",
        "--own-statistics": "a gradient makes its own statistics",
        "--quick": "without the cases of many elements",
        "--strided": "pass arrays with gaps between their numbers",
        "--verbose": "show right cases as well",
    }.items():
        add(name, action="store_true", help=text)


def check(options: argparse.Namespace) -> int:
    """Call a Python function with the standard cases, as bn_ext.testing.check_backward does, in a
    process of its own, which it may crash. A table shows each case's error in units of its limit.
    """
    script = options.script
    if script and not script.absolute().parent.is_dir():
        raise UsageError(f"--script {script}: expected a file in a folder that exists")
    report = child.run(
        partial(function_of, options), partial(cases_of, options), timeout=options.timeout,
        script=loading(options.function) if script else "", arithmetic=options.arithmetic,
        repeats=options.repeats, strided=options.strided,
    )  # fmt: skip
    print("\n".join(report.lines(verbose=options.verbose)))
    if script:
        try:
            script.write_text(report.script(), encoding="utf-8")
        except ValueError:
            print(f"no number is wrong: {script} is not written", file=sys.stderr)
    return 0 if report.passed else 1


def operated(options: argparse.Namespace, function: Callable[..., Any]) -> Any:
    """The function, or what calls it as an operator; and the Kind of its cases."""
    names = "data_format", "relu", "own_statistics"
    try:
        kind = replace(KINDS[options.op], **{name: getattr(options, name) for name in names})
        return as_operator(function, options.operator, kind)
    except (TypeError, ValueError) as error:
        name, _, reason = str(error).partition(": ")
        raise UsageError(f"--{name.replace('_', '-')}: {reason}") from None


def function_of(options: argparse.Namespace) -> Callable[..., Any]:
    function: Callable[..., Any] = operated(options, imported(options.function))[0]
    return function


def cases_of(options: argparse.Namespace) -> Iterator[Case]:
    _, kind = operated(options, print)
    try:
        return standard_cases(kind, options.dtypes, quick=options.quick, skip=options.skip)
    except ValueError as error:
        raise UsageError(f"--{error}") from None
    except (ImportError, NotImplementedError) as error:
        raise UsageError(f"--dtypes: {error}") from None


def imported(place: str) -> Callable[..., Any]:
    """The function of MODULE:FUNCTION or FILE.py:FUNCTION."""
    module, colon, names = place.rpartition(":")
    if not (module and colon and names):
        raise UsageError(f"{place}: expected module:function")
    path = Path(module)
    by_path = path.suffix == ".py"
    sys.path.insert(0, str(path.parent.resolve()) if by_path else os.getcwd())
    try:
        function: Any = _loaded(path) if by_path else importlib.import_module(module)
        for name in names.split("."):
            function = getattr(function, name)
    except (Exception, SystemExit) as error:  # a module may fail in any way
        raise UsageError(f"{place}: cannot be imported ({message(error)})") from None
    if not callable(function):
        raise UsageError(f"{place}: expected a function, got {type(function).__name__}")
    return function  # type: ignore[no-any-return]


def loading(place: str) -> str:
    """The lines of a program that load this function."""
    module, _, names = place.rpartition(":")
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
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    module = importlib.util.module_from_spec(spec)  # type: ignore[arg-type]
    sys.modules[name] = module  # dataclasses look for it there
    spec.loader.exec_module(module)  # type: ignore[union-attr]
    return module
