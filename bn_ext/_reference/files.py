"""The standard cases as .npy files with a manifest, and the results that a program wrote beside.

Each case has a folder. In it are the inputs, such as src.npy; for each output, its right value and
the largest error that passes, such as expected.diff_src.npy and limit.diff_src.npy; and, written by
the program, the result: diff_src.npy. Where the right value is NaN or Inf, so must be the result.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from bn_ext import __version__
from bn_ext._bench.problems import dtype_of
from bn_ext._reference.cases import OPERANDS, RESULTS, Case
from bn_ext._reference.report import Finding, Report, allowance, judged

__all__ = ["MANIFEST", "ManifestError", "check", "write"]

MANIFEST = "manifest.json"
VERSION = 1
ATTRIBUTES = ("epsilon", "data_format", "is_training", "relu", "add")


class ManifestError(Exception):
    """A folder that cannot be checked; the message is for the user."""


def write(folder: Path, cases: Iterable[Case]) -> int:
    """Write the cases; return their number."""
    entries = []
    for case in cases:
        mode = "" if case.is_training or case.operation == "inference" else "_frozen"
        name, _, dtype = case.name.rpartition(", ")
        place = Path(case.operation + mode, dtype, name.replace(" ", "_"))
        (folder / place).mkdir(parents=True, exist_ok=True)
        arrays = {**case.arrays, **case.more}
        exact, bounds, good = case.exact()
        for key, array in arrays.items():
            if array is not None:
                np.save(folder / place / f"{key}.npy", array)
        with np.errstate(all="ignore"):
            for key, right in exact.items():
                limit = allowance(case, key, right, bounds[key], good)
                np.save(folder / place / f"expected.{key}.npy", right.astype(np.float64))
                np.save(folder / place / f"limit.{key}.npy", limit)
        entries.append({
            "name": case.name,
            "folder": place.as_posix(),
            "operator": case.operation,
            "attributes": {key: getattr(case, key) for key in ATTRIBUTES},
            "dtype": case.data,
            "inputs": {key: a is not None and f"{key}.npy" for key, a in arrays.items()},
            "outputs": {
                key: {"shape": exact[key].shape, "expected": f"expected.{key}.npy",
                      "limits": f"limit.{key}.npy", "result": f"{key}.npy"}
                for key in exact
            },
        })  # fmt: skip
    head = f'{{"format": {VERSION}, "bn_ext": "{__version__}", "cases": [\n'
    (folder / MANIFEST).write_text(head + ",\n".join(map(json.dumps, entries)) + "\n]}\n")
    return len(entries)


def _loaded(path: Path, data: str) -> Any:
    """The array of a file; bfloat16, which NumPy does not know, is any two bytes."""
    try:
        array = np.load(path, allow_pickle=False)
    except FileNotFoundError:
        raise ManifestError(f"{path}: is missing") from None
    except (OSError, ValueError, EOFError, SyntaxError, MemoryError) as error:
        text = (str(error) or type(error).__name__).splitlines()[0]
        raise ManifestError(f"{path}: cannot be read as .npy ({text})") from None
    if not isinstance(array, np.ndarray):
        raise ManifestError(f"{path}: expected one array, got {type(array).__name__}")
    if data == "bfloat16" and array.dtype.kind in "Vui" and array.dtype.itemsize == 2:
        array = array.view(dtype_of(data))
    return array


def _case(folder: Path, entry: dict[str, Any]) -> Case:
    arrays = {
        name: _loaded(folder / entry["folder"] / file, entry["dtype"]) if file else None
        for name, file in entry["inputs"].items()
    }
    names = OPERANDS[entry["operator"]]
    case = Case(
        entry["folder"], entry["operator"], {name: arrays.pop(name) for name in names},
        more={name: a for name, a in arrays.items() if a is not None},
        **{name: entry["attributes"][name] for name in ATTRIBUTES},
    )  # fmt: skip
    return case


def check(folder: Path, *, narrow: bool = False, limit: float = 1) -> tuple[Report, list[str]]:
    """Judge the results in a folder; also return the outputs that no case has."""
    path = folder / MANIFEST
    try:
        manifest = json.loads(path.read_text())
        version, entries = manifest["format"], manifest["cases"]
    except FileNotFoundError:
        raise ManifestError(f"{path}: is missing; bn-ext cases {folder} writes it") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        text = f"{type(error).__name__}: {error}"
        raise ManifestError(f"{path}: expected a manifest of bn-ext cases ({text})") from None
    if version != VERSION:
        raise ManifestError(f"{path}: expected format {VERSION}, got {version!r}; write it anew")
    report, absent = Report(limit=limit), set()
    try:
        outputs = [(e, key) for e in entries for key in e["outputs"]]
        there = {
            (e["operator"], e["attributes"]["is_training"], key)
            for e, key in outputs
            if (folder / e["folder"] / f"{key}.npy").exists()
        }
        if not there:
            first = RESULTS[entries[0]["operator"]][0] if entries else "diff_src"
            raise ManifestError(f"{folder}: has no results, such as {first}.npy in a case's folder")
        for entry in entries:
            mode = entry["operator"], entry["attributes"]["is_training"]
            wanted = [key for key in entry["outputs"] if (*mode, key) in there]
            absent |= {f"{mode[0]} {key}" for key in {*entry["outputs"]} - {*wanted}}
            if not wanted:
                continue
            case, results = _case(folder, entry), {}
            for key in wanted:
                try:
                    results[key] = _loaded(folder / entry["folder"] / f"{key}.npy", case.data)
                except ManifestError as error:
                    reason = str(error).partition(".npy: ")[2]
                    report.findings.append(Finding(case.name, key, np.inf, reason=reason))
            report.findings.extend(judged(case, results, narrow=narrow, limit=limit))
    except (KeyError, TypeError, AttributeError, ValueError, IndexError) as error:
        text = f"{type(error).__name__}: {error}"
        raise ManifestError(f"{path}: does not describe these files ({text})") from None
    return report, sorted(absent)
