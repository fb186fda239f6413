"""The standard cases as .npy files with a manifest, and the results that a program wrote beside.

Each case has a folder. In it are the inputs, such as src.npy, which must stay as they are; for each
output, its right value and the largest error that passes, such as expected.diff_src.npy and
limit.diff_src.npy; and, written by the program, the result: diff_src.npy. Where the right value is
NaN or Inf, so must be the result.
"""

import json
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from bn_ext import __version__, _core
from bn_ext._bench.problems import dtype_of
from bn_ext._reference.cases import OPERANDS, RESULTS, Case, Kind
from bn_ext._reference.report import Finding, Report, allowance, judged

__all__ = ["MANIFEST", "ManifestError", "check", "write"]

MANIFEST = "manifest.json"
VERSION = 1
#: Besides epsilon.
ATTRIBUTES = ("data_format", "is_training", "relu")


class ManifestError(Exception):
    """A folder that cannot be checked; the message is for the user."""


def _digest(path: Path) -> int:
    return zlib.crc32(path.read_bytes())


def write(folder: Path, cases: Iterable[Case]) -> int:
    """Write the cases, and remove results of earlier ones; return their number."""
    entries = []
    for case in cases:
        operation = case.kind.operation
        mode = "" if case.kind.is_training or operation == "inference" else "_frozen"
        name, _, dtype = case.name.rpartition(", ")
        relative = Path(operation + mode, dtype, name.replace(" ", "_"))
        place = folder / relative
        place.mkdir(parents=True, exist_ok=True)
        arrays = {**case.arrays, **case.more}
        files = {key: a is not None and f"{key}.npy" for key, a in arrays.items()}
        exact, bounds, good = case.exact()
        with _core.DefaultMode():
            for key, right in exact.items():
                (place / f"{key}.npy").unlink(missing_ok=True)
                limit = allowance(case, key, right, bounds[key], good)
                np.save(place / f"expected.{key}.npy", right.astype(np.float64))
                np.save(place / f"limit.{key}.npy", limit)
        for key, array in arrays.items():
            if array is not None:
                np.save(place / f"{key}.npy", array)
        entries.append({
            "name": case.name,
            "folder": relative.as_posix(),
            "operator": operation,
            "attributes": {"epsilon": case.epsilon}
            | {key: getattr(case.kind, key) for key in ATTRIBUTES},
            "dtype": case.data,
            "inputs": files,
            "crc32": {key: _digest(place / file) for key, file in files.items() if file},
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


def _case(folder: Path, entry: dict[str, Any]) -> Case | Finding:
    """The case of an entry; or which inputs were changed."""
    place, inputs, attributes = folder / entry["folder"], entry["inputs"], entry["attributes"]
    kind = Kind(entry["operator"], **{name: attributes[name] for name in ATTRIBUTES})
    names = OPERANDS[kind.operation]
    more = ("dst",) * (kind.relu and kind.operation == "backward")
    if {*inputs} != {*names, *more} or not inputs["src"]:
        raise ValueError(f"inputs: expected {', '.join(names + more)}, got {', '.join(inputs)}")
    files = {name: place / file for name, file in inputs.items() if file}
    for path in files.values():
        if not path.exists():
            raise ManifestError(f"{path}: is missing")
    changed = [name for name, path in files.items() if _digest(path) != entry["crc32"][name]]
    if changed:
        reason = f"wrote to {', '.join(changed)}"
        return Finding(entry["folder"], "function", np.inf, reason=reason)
    arrays = {name: _loaded(path, entry["dtype"]) for name, path in files.items()}
    case = Case(
        entry["folder"], kind, {name: arrays.get(name) for name in names}, attributes["epsilon"],
        {name: arrays[name] for name in more},
    )  # fmt: skip
    if case.data != entry["dtype"]:
        raise ValueError(f"dtype: expected {case.data}, like src, got {entry['dtype']}")
    case.refuse_wrong_arrays()
    return case


def check(folder: Path, *, narrow: bool = False, limit: float = 1) -> tuple[Report, list[str]]:
    """Judge the results in a folder; also return the outputs that no case has."""
    path = folder / MANIFEST
    try:
        manifest = json.loads(path.read_text())
        version, entries = manifest["format"], manifest["cases"]
    except FileNotFoundError:
        raise ManifestError(f"{path}: is missing; bn-ext cases {folder} writes it") from None
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        text = f"{type(error).__name__}: {error}"
        raise ManifestError(f"{path}: expected a manifest of bn-ext cases ({text})") from None
    if version != VERSION:
        raise ManifestError(f"{path}: expected format {VERSION}, got {version!r}; write it anew")
    report, absent = Report(limit=limit), set()
    try:
        outputs = [(e, key) for e in entries for key in e["outputs"]]
        for entry, key in outputs:
            if key not in RESULTS[entry["operator"]]:
                raise ValueError(f"outputs: {entry['operator']} has no {key}")
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
            case = _case(folder, entry)
            if isinstance(case, Finding):
                report.findings.append(case)
                continue
            results = {}
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
