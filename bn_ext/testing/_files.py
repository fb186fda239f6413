"""The standard cases as .npy files with a manifest, and the results that a program wrote beside.

Each case has a folder. In it are the inputs, such as src.npy; for each output, its right value and
the largest errors that pass for each arithmetic, such as expected.diff_src.npy and
limit.float32.diff_src.npy; and, written by the program, the result: diff_src.npy. Where the right
value is NaN or Inf, so must be the result; where a limit is Inf beside it, NaN will do.
"""

import io
import json
from collections.abc import Iterable
from pathlib import Path, PurePath
from typing import Any

import numpy as np

import bn_ext._core as _core
from bn_ext._version import __version__
from bn_ext.testing._cases import ARITHMETICS, Case
from bn_ext.testing._limits import half_ulp
from bn_ext.testing._report import Finding, Report, as_array, compared, said

MANIFEST = "manifest.json"
VERSION = 2


class ManifestError(Exception):
    """A path, and why it cannot be checked; the message is for the user."""

    def __str__(self) -> str:
        return "{}: {}".format(*self.args)


def save(path: Path, array: Any) -> None:
    """np.save; but an error says what is wrong, such as a full disk."""
    text = io.BytesIO()
    np.save(text, array)
    path.write_bytes(text.getbuffer())


def write(folder: Path, cases: Iterable[Case]) -> int:
    """Write the cases, and remove results of earlier ones; return their number. There is a manifest
    only if all files that it lists are there.
    """
    (folder / MANIFEST).unlink(missing_ok=True)
    entries = []
    for case in cases:
        kind = case.kind
        frozen = "" if kind.is_training or kind.operation == "inference" else "_frozen"
        name, _, dtype = case.name.rpartition(", ")
        relative = Path(kind.operation + frozen, dtype, name.replace(" ", "_"))
        place = folder / relative
        place.mkdir(parents=True, exist_ok=True)
        arrays = {**case.arrays, **case.more}
        for key, array in arrays.items():
            if array is not None:
                save(place / f"{key}.npy", array)
        exact = case.exact()
        outputs = {}
        for key, (right, limits) in exact.items():
            (place / f"{key}.npy").unlink(missing_ok=True)
            kinds = [*ARITHMETICS][: len(limits)]
            files = {kind: f"limit.{kind}.{key}.npy" for kind in kinds}
            with _core.DefaultMode():
                if case.data == "float64":  # the right value is rounded here
                    limits = limits + np.where(np.isfinite(right), half_ulp(right, "float64"), 0)
                save(place / f"expected.{key}.npy", right.astype(np.float64))
                for file, limit in zip(files.values(), limits, strict=True):
                    save(place / file, limit.astype(np.float64))
            outputs[key] = {
                "shape": right.shape, "expected": f"expected.{key}.npy", "limits": files,
                "result": f"{key}.npy",
            }  # fmt: skip
        entries.append({
            "name": case.name,
            "folder": relative.as_posix(),
            "operator": kind.operation,
            "attributes": {
                "epsilon": case.epsilon, "data_format": kind.data_format,
                "is_training": kind.is_training, "relu": kind.relu,
            },
            "dtype": case.data,
            "inputs": {key: a is not None and f"{key}.npy" for key, a in arrays.items()},
            "outputs": outputs,
        })  # fmt: skip
    head = f'{{"format": {VERSION}, "bn_ext": "{__version__}", "cases": [\n'
    part = folder / f"{MANIFEST}.part"
    part.write_text(head + ",\n".join(map(json.dumps, entries)) + "\n]}\n", encoding="utf-8")
    part.replace(folder / MANIFEST)
    return len(entries)


def _loaded(path: Path, data: str) -> Any:
    """The array of a file; bfloat16, which NumPy does not know, is any two bytes."""
    try:
        with path.open("rb") as file:
            array, more = np.load(file, allow_pickle=False), file.read(1)
    except FileNotFoundError:
        raise ManifestError(path, "is missing") from None
    except Exception as error:  # NumPy's parser may fail in any way
        raise ManifestError(path, f"cannot be read as .npy ({said(error)})") from None
    if not isinstance(array, np.ndarray):
        raise ManifestError(path, f"expected one array, got {type(array).__name__}")
    if more:
        raise ManifestError(path, "expected one array, got bytes behind it")
    return as_array(array, data)


def check(
    folder: Path, *, arithmetic: str = "float32", narrow: bool = False
) -> tuple[Report, list[str]]:
    """Judge the results in a folder; also return the outputs that no case has."""
    path = folder / MANIFEST
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        version, entries = manifest["format"], manifest["cases"]
    except FileNotFoundError:
        raise ManifestError(path, f"is missing; bn-ext cases {folder} writes it") from None
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ManifestError(path, f"expected a manifest of bn-ext cases ({said(error)})") from None
    if type(version) is not int or version != VERSION:
        raise ManifestError(path, f"expected format {VERSION}, got {version!r}; write it anew")
    report = Report(arithmetic=arithmetic)

    def below(*parts: str) -> Path:
        for given in parts:
            part = PurePath(given)
            if part.anchor or ".." in part.parts or not part.parts:
                raise ManifestError(path, f"expected a path below {folder}, got {given!r}")
        return folder.joinpath(*parts)

    try:
        #: {(operator, result): its cases, with the paths of results, and of what is known}
        outputs: dict[tuple[str, str], list[tuple[Any, Path, list[Path]]]] = {}
        for case in entries:
            place, group = case["folder"], case["folder"].partition("/")[0]
            if not below(place).is_dir():
                raise ManifestError(folder / place, "is missing")
            for name, files in case["outputs"].items():
                kinds = [k for k in ARITHMETICS if k != "float16" or k in files["limits"]]
                limits = [files["limits"][kind] for kind in kinds]
                known = [below(place, file) for file in (files["expected"], *limits)]
                found = outputs.setdefault((group, name), [])
                found.append((case, below(place, files["result"]), known))
        results = [(of, each[1]) for of, some in outputs.items() for each in some]
        there = {of for of, result in results if result.exists()}
        if not there:
            such = [f", such as {result.relative_to(folder)}" for _, result in results[:1]]
            raise ManifestError(folder, "has no results" + "".join(such))
        for of in filter(there.__contains__, outputs):
            for case, file, known in outputs[of]:
                right, *limits = (_loaded(path, "float64") for path in known)
                for where, limit in zip(known[1:], limits, strict=True):
                    if limit.shape != right.shape or not (limit >= 0).all():
                        text = f"expected numbers >= 0 in shape {right.shape}"
                        raise ManifestError(where, text)
                name, data, layout = of[1], case["dtype"], case["attributes"]["data_format"]
                try:
                    result = _loaded(file, data)
                except ManifestError as error:
                    wrong = {"reason": error.args[1], "verdict": "wrong"}
                    judged = Finding(case["folder"], name, np.inf, **wrong)
                else:
                    judged = compared(
                        case["folder"], name, result, right, np.array(limits), data=data,
                        axis=1 if layout == "NCX" else -1, arithmetic=arithmetic, narrow=narrow,
                    )  # fmt: skip
                report.findings.append(judged)
    except (KeyError, TypeError, AttributeError, ValueError, OSError) as error:
        raise ManifestError(path, f"does not describe these files ({said(error)})") from None
    report.settle()
    return report, [" ".join(of) for of in sorted(outputs.keys() - there)]
