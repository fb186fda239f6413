"""`bn-ext check`: the standard cases for a Python function, in a process that it may crash."""

import argparse
import importlib
import importlib.util
import os
import re
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from bn_ext._cli import child
from bn_ext._cli.usage import UsageError, as_layout, as_timeout, as_whole
from bn_ext._dtypes import DTYPES
from bn_ext.testing._case import Case, Kind
from bn_ext.testing._cases import standard_cases
from bn_ext.testing._exact import ARITHMETICS
from bn_ext.testing._report import message
from bn_ext.testing._script import loading

#: What begins a program of --script: it says which result is wrong, in which case.
PROGRAM = re.compile(rb'""".*: \w+ is wrong, as in the case ".*"""\r?\n\r?\nimport sys\r?\n')
_GRADIENTS = "backward", "double-backward"
OPERATIONS = "training", "inference", *_GRADIENTS, *(f"{name}-frozen" for name in _GRADIENTS)
HELP = {
    "function": "what is checked",
    "--op": f"what it computes: {', '.join(OPERATIONS)} (default: backward)",
    "--dtypes": f"any of {', '.join(DTYPES)} (default: float32)",
    "--layout": "NXC (default: channels last), NCX, NHWC, NCHW, ...",
    "--skip": "leave out cases whose names contain a word, such as NaN",
    "--arithmetic": "what passes: double (bn_ext's own limits), float32 (sums in the type of the "
    "data's arithmetic, in any order; default), any (src * scale + shift, and the like), "
    "float16 or bfloat16 (of such data)",
    "--repeats": "call it N times with each case, and say where bits differ",
    "--timeout": "seconds that a case may take (default: 60)",
    "--script": "write the smallest program that shows the worst mistake, over no other file",
    "--relu": "a ReLU follows (all but double-backward)",
    "--own-statistics": "a gradient makes its own statistics",
    "--quick": "without the cases of many elements",
    "--verbose": "show right cases as well",
}


def add_options(add: Callable[..., Any]) -> None:
    """The function, and the options: those of bn_ext.testing, and some more."""

    def option(name: str, *names: str, **options: Any) -> None:
        add(name, *names, help=HELP[name], **options)

    option("function", metavar="MODULE:FUNCTION|FILE.py:FUNCTION")
    option("--op", choices=OPERATIONS, default="backward", metavar="OP")
    option("--dtypes", nargs="+", choices=DTYPES, default=["float32"], metavar="DTYPE")
    option("--layout", "--data-format", dest="data_format", type=as_layout, default="NXC")
    option("--skip", nargs="+", default=(), metavar="WORD")
    option("--arithmetic", choices=ARITHMETICS, default="float32")
    option("--repeats", type=as_whole, default=1, metavar="N")
    option("--timeout", type=as_timeout, default=60.0, metavar="S")
    option("--script", type=Path, metavar="OUT.py")
    for name in ("--relu", "--own-statistics", "--quick", "--verbose"):
        option(name, action="store_true")


def check(options: argparse.Namespace) -> int:
    """Call a Python function with the standard cases, as bn_ext.testing.check_backward does, in a
    process of its own, which it may crash. A table shows each case's error in units of its limit.
    """
    script = options.script
    if script:
        require_free(script, Path(options.function.rpartition(":")[0]))
    load, cases = partial(imported, options.function), partial(cases_of, options)
    lines = loading_of(options.function) if script else ""
    judged = {"arithmetic": options.arithmetic, "repeats": options.repeats}
    report = child.run(load, cases, timeout=options.timeout, script=lines, **judged)
    print("\n".join(report.lines(verbose=options.verbose)))
    if script:
        try:
            script.write_text(report.script(), encoding="utf-8", newline="\n")
        except ValueError:
            print(f"no number is wrong: {script} is not written", file=sys.stderr)
    return 0 if report.passed else 1


def require_free(script: Path, function: Path) -> None:
    """Refuse to overwrite anything but a program of an earlier check."""
    if not script.absolute().parent.is_dir():
        raise UsageError(f"--script {script}: expected a file in a folder that exists")
    got = ""
    if script.is_dir():
        got = "a folder"
    elif script.is_file():  # neither a terminal nor a pipe
        with script.open("rb") as file:
            got = "" if PROGRAM.match(file.read(4096)) else "another file"
        if function.exists() and script.samefile(function):
            got = "the function's own file"
    if got:
        expected = "expected a new file, or a program of an earlier check"
        raise UsageError(f"--script {script}: {expected}, got {got}")


def cases_of(options: argparse.Namespace) -> Iterator[Case]:
    operation = options.op.removesuffix("-frozen")
    is_training = operation == options.op != "inference"
    flags = {"relu": options.relu, "own_statistics": options.own_statistics}
    try:
        kind = Kind(operation.replace("-", "_"), options.data_format, is_training, **flags)
        return standard_cases(kind, options.dtypes, quick=options.quick, skip=options.skip)
    except ImportError as error:
        raise UsageError(f"--dtypes: {error}") from None
    except (TypeError, ValueError) as error:
        name, _, reason = str(error).partition(": ")
        raise UsageError(f"--{name.replace('_', '-')}: {reason}") from None


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


def loading_of(place: str) -> str:
    """The lines of a program that load this function."""
    module, _, names = place.rpartition(":")
    path = Path(module)
    by_path = path.suffix == ".py"
    return loading(names, path.resolve()) if by_path else loading(names, Path.cwd(), module)


def _loaded(path: Path) -> ModuleType:
    """The module of this file, by a name that no other has."""
    if not path.is_file():
        raise FileNotFoundError(f"no file {path}")
    name = "bn_ext_check_" + re.sub(r"\W", "_", path.stem)
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    module = importlib.util.module_from_spec(spec)  # type: ignore[arg-type]
    sys.modules[name] = module  # dataclasses look for it there
    spec.loader.exec_module(module)  # type: ignore[union-attr]
    return module
