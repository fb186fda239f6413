"""The smallest program that shows a mistake: shapes cut, then numbers rounded, while it fails."""

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import bn_ext._core as _core
from bn_ext.testing._case import TENSORS, Case
from bn_ext.testing._cases import as_set, random_case
from bn_ext.testing._exact import exact

#: What a search for a smaller program may take.
SECONDS = 10
#: Does the function still go wrong with these arrays, channels last?
Fails = Callable[[dict[str, Any]], bool]


def program(
    function: Callable[..., Any], case: Case, result: str, is_wrong: Callable[[Case], bool],
    load: str = "",
) -> str:  # fmt: skip
    """A program that needs NumPy and the function alone; `load`: the lines that import it;
    `is_wrong`: is the result wrong in a case?
    """
    end = time.monotonic() + SECONDS
    smallest, stopping = case, ""
    start = {
        name: np.moveaxis(a, case.axis, -1) if name in TENSORS else a
        for name, a in {**case.arrays, **case.by_name}.items()
        if name not in ("dst", "mean", "variance")
    }

    def fails(change: dict[str, Any]) -> bool:
        nonlocal smallest
        if time.monotonic() > end:
            raise TimeoutError
        values = {n: None if a is None else a.astype(np.float64) for n, a in change.items()}
        change_all = as_set(**values, epsilon=case.epsilon)
        with _core.DefaultMode():
            made = random_case(
                case.kind, case.name, change["src"].shape, case.src.dtype, change_all
            )
        # Of one row, there is no variance with a correction.
        rows = made.src.size // max(1, made.src.shape[case.axis])
        if rows <= (case.kind.correction or 0) or not is_wrong(made):
            return False
        smallest = made
        return True

    try:
        if fails(start):  # or given statistics, or exact sums, are what shows it
            _simplified(start, fails)
    except TimeoutError:
        stopping = f", stopped after {SECONDS} s"
    return _text(function, smallest, result, load, stopping)


def _simplified(arrays: dict[str, Any], fails: Fails) -> None:
    """Cut axes, rows and channels; then round numbers."""
    ndim = arrays["src"].ndim
    flat = {n: a.reshape(-1, a.shape[-1]) if n in TENSORS else a for n, a in arrays.items()}
    arrays = flat if ndim > 2 and fails(flat) else arrays
    for axis in (*range(arrays["src"].ndim), 0):
        arrays = _cut(arrays, axis, fails)
    for name in [name for name, array in arrays.items() if array is not None]:
        for change in _simpler(arrays[name]):
            if fails(other := {**arrays, name: change}):
                arrays = other
                break


def _cut(arrays: dict[str, Any], axis: int, fails: Fails) -> dict[str, Any]:
    """Leave out as many slices of an axis as can be: halves first, one by one at last."""
    size = length = arrays["src"].shape[axis]
    channels = axis == arrays["src"].ndim - 1
    shorter = [n for n, a in arrays.items() if n in TENSORS or (channels and a is not None)]
    while size > 1:
        size, place = -(-size // 2), 0
        while place < length > 1:
            gone = slice(place, place + size)
            cut = {n: np.delete(arrays[n], gone, -1 if channels else axis) for n in shorter}
            other = {**arrays, **cut}
            if other["src"].shape[axis] and fails(other):
                arrays, length = other, other["src"].shape[axis]
            else:
                place += size
    return arrays


def _simpler(array: Any) -> Iterator[Any]:
    """The same with fewer digits, the fewest first."""
    wide = array.astype(np.float64)
    yield np.ones_like(wide)
    with np.errstate(all="ignore"):
        digits = np.floor(np.log10(abs(np.where(np.isfinite(wide) & (wide != 0), wide, 1))))
    for count in (0, 1, 2):
        yield np.round(wide / 10.0**digits, count) * 10.0**digits


def _text(function: Any, case: Case, result: str, load: str, stopped: str) -> str:
    """The program."""
    right, bounds = (np.asarray(a, np.float64) for a in exact(case)[result])
    number = "float64" if case.data == "float64" else "float32"
    name = _shown_name(function) or "function"
    others = "import ml_dtypes\n" * (case.data == "bfloat16") + "import numpy as np"
    passed = [*case.arrays, f"epsilon={case.epsilon!r}", *(f"{n}={n}" for n in case.by_name)]
    place = case.results.index(result)
    if result in case.kind.running:  # the last, with or without the batch's statistics before
        place -= len(case.results)
    values = ""
    for argument, array in {**case.arrays, **case.by_name}.items():
        data = "" if array is None else array.dtype.name
        dtype = "ml_dtypes.bfloat16" if data == "bfloat16" else f'"{data}"'
        values += f"{argument} = {f'{_literal(array)}.astype({dtype})' if data else None}\n"
    return f'''"""{name}: {result} is wrong, as in the case "{case.name}"{stopped}."""

import sys

{others}

{load or _loading(function)}

inf, nan = np.inf, np.nan
{values}got = function({", ".join(passed)})
got = got[{place}] if isinstance(got, (tuple, list)) else got
got = np.asarray(got, "{number}")
right = {_literal(right.astype(number))}
limit = {_literal(np.where(np.isinf(right), 0, 1.01 * bounds[1]), ".3g")}
print("{result}, got:", got, "right:", right, sep="\\n")
with np.errstate(all="ignore"):
    near = (got == right) | (abs(got - right) <= limit)
good = near | ({_allowed(case, result)})
if good.all():
    print("right: it was mended, or is wrong only after other calls (does it keep a state?)")
sys.exit(int(not good.all()))
'''


def _allowed(case: Case, result: str) -> str:
    """What is as good as NaN or Inf that is right, as an expression."""
    if result in ("mean", "running_mean"):
        return "~np.isfinite(got) & ~np.isfinite(right)"
    text = "np.isnan(got) & ~np.isfinite(right)"
    # Where src has Inf, Inf of either sign.
    either = result == "diff_src" and np.isinf(np.asarray(case.src, np.float64)).any()
    return text + " | np.isinf(right) & (got == -right)" * bool(either)


def _literal(array: Any, digits: str = "") -> str:
    """An array of the shortest numbers, or of so many digits, as an expression."""
    if not array.size:
        return f"np.zeros({array.shape})"
    numbers = np.array([float(format(number, digits)) for number in array.ravel()])
    if numbers.size > 1 and (numbers == numbers[0]).all():
        return f"np.full({array.shape}, {float(numbers[0])})"
    return f"np.array({numbers.reshape(array.shape).tolist()})"


def _shown_name(function: Any) -> str:
    """A function's name, as it may stand in a comment or a string; "" if it has none."""
    name = str(getattr(function, "__qualname__", ""))
    if name.isidentifier():
        return name
    return name.encode("unicode_escape").decode().replace('"', '\\"')


def _loading(function: Any) -> str:
    """Lines that import a function, as `function`."""
    name, module = getattr(function, "__qualname__", ""), getattr(function, "__module__", "")
    words = [*f"{name}".split("."), *f"{module}".split(".")]
    place = sys.modules.get(module) if all(map(str.isidentifier, words)) else None
    path = Path(getattr(place, "__file__", None) or "").resolve()
    if getattr(place, name, None) is not function or (module == "__main__" and path.is_dir()):
        shown = _shown_name(function) or "the function"
        return (
            f"function = ...  # {shown} goes here\n"
            "if function is ...:\n"
            '    print("function = ...: put the function in place of ...", file=sys.stderr)\n'
            "    sys.exit(2)"
        )
    if module == "__main__":
        return loading(name, path)
    return loading(name, path.parents[module.count(".") + (path.stem == "__init__")], module)


def loading(name: str, path: Path, module: str = "") -> str:
    """Lines that import, as `function`, what a module below the path, or a file there, calls so."""
    if module:
        first = name.partition(".")[0]
        lines = f"sys.path.insert(0, {str(path)!r})\nfrom {module} import {first}\n"
        return f"{lines}function = {name}"
    return (
        "import importlib.util\n"
        f"spec = importlib.util.spec_from_file_location('kernel', {str(path)!r})\n"
        "kernel = sys.modules['kernel'] = importlib.util.module_from_spec(spec)\n"
        f"sys.path.insert(0, {str(path.parent)!r})\n"
        f"spec.loader.exec_module(kernel)\nfunction = kernel.{name}"
    )
