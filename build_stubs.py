"""Writes the stubs, because type checkers and editors read neither compiled modules nor tables.

    python build_stubs.py       into the tree, as a build in place does

Arguments, defaults and docstrings come from bn_ext/specs/_table.py and from the Cython sources,
which are parsed, because a cross build cannot import what it compiles. Types are in this file.
"""

import ast
import re
import runpy
from inspect import cleandoc
from pathlib import Path
from textwrap import indent

PACKAGE = Path(__file__).resolve().parent / "bn_ext"
HEAD = """\
from collections.abc import Sequence
from typing import (
    Any, Generic, Literal, NamedTuple, SupportsFloat, SupportsIndex, overload
)

import numpy as np
from numpy import float32, float64, int64
from numpy.typing import NDArray
from typing_extensions import TypeVar

from bn_ext._typing import Array, Data, DataFormat, Flag, Out

# The scalar types of src and mean; Any if unknown.
Scalar = TypeVar("Scalar", bound=np.generic, default=Any)
Vector = TypeVar("Vector", bound=np.generic, default=Any)
"""


def stubs():
    """{path in the package: the stub's text}"""
    found = {"_core.pyi": core()}
    rows = runpy.run_path(str(PACKAGE / "specs" / "_table.py"))["ROWS"].values()
    for module in VECTORS:
        found[f"specs/{module}.pyi"] = operators(row for row in rows if row.spec.module == module)
    return found


def write(package):
    """Write the stubs to a package's folder."""
    for name, text in stubs().items():
        Path(package, name).write_text(text, encoding="utf-8", newline="\n")


def stub(definitions, head=""):
    """A stub of definitions, {name: text}."""
    public = [name for name in definitions if not name.startswith("_")]
    return "\n".join([HEAD, head, f"__all__ = {public!r}\n", *definitions.values()])


def named_tuple(name, fields, docstring):
    """A class of results, generic in its fields' type variables; and these variables."""
    used = [
        v for v in ("_Data", "_Vector", "Scalar", "Vector") if re.search(rf"\b{v}\b", str(fields))
    ]
    variables = f"[{', '.join(used)}]" if used else ""
    bases = "NamedTuple" + (f", Generic{variables}" if used else "")
    lines = "".join(f"    {field}: {kind}\n" for field, kind in fields.items())
    return f"class {name}({bases}):\n{quoted(docstring)}\n{lines}", variables


def function(name, arguments, result, docstring=""):
    """The definition of a function; its arguments include types."""
    lines = "".join(f"\n    {each}," for each in arguments) + "\n" * bool(arguments)
    body = f"\n{quoted(docstring)}" if docstring else " ..."
    return f"def {name}({lines}) -> {result}:{body}\n"


def quoted(docstring):
    """A docstring as source text, indented for a definition."""
    text = docstring.replace("\\", "\\\\")
    end = "\n" if "\n" in text else ""
    return indent(f'"""{text}{end}"""', "    ")


# ---- the compiled module -------------------------------------------------------------------

#: def name(arguments): """...""" in the first column, or a cpdef function of C.
FUNCTION = re.compile(
    r'^(?: *cp)?def (?:\w+ )?(\w+)(?: "\w+")?\(([^)]*)\)[^:\n]*:?\n(?: +(""".*?"""))?',
    re.MULTILINE | re.DOTALL,
)
#: name.__doc__ = """..."""
CLASS = re.compile(r'^(\w+)\.__doc__ = (""".*?""")', re.MULTILINE | re.DOTALL)

CORE_HEAD = """\
_Data = TypeVar("_Data", covariant=True)
_Vector = TypeVar("_Vector", covariant=True)
_TABLE: dict[str, tuple[str, ...]]

class _DefaultMode:
    def __enter__(self) -> None: ...
    def __exit__(self, *error: object) -> None: ...

class _Words:
    def __init__(self, data_format: str, words: dict[str, str]) -> None: ...
"""
_GRADIENT = {"diff_src": "_Data", "diff_gamma": "_Vector", "diff_beta": "_Vector"}
#: {class of results: its fields}
CLASSES = {
    "BatchNormTraining": {"dst": "_Data", "mean": "NDArray[Any]", "variance": "NDArray[Any]"},
    "BatchNormGradients": _GRADIENT,
    "BatchNormAddGradients": {**_GRADIENT, "diff_src_1": "_Data"},
    "BatchNormDoubleBackward": {
        "diff_src": "_Data", "diff_diff_dst": "_Data", "diff_gamma": "_Vector",
    },
}  # fmt: skip
#: {argument of public functions: its type}; all others are Array. If an argument's default is None,
#: None is added to its type. Arguments of private functions are Any.
ARGUMENTS = {
    "src": "Data[Scalar]",
    "mean": "Data[Vector]",
    "gamma": "Array | None",
    "sums": "Array | Literal[0]",
    "data_format": "DataFormat",
    "running_mean": "NDArray[Any]",
    "running_variance": "NDArray[Any]",
    "out": "Out",
    **dict.fromkeys(["epsilon", "exponential_avg_factor"], "SupportsFloat"),
    **dict.fromkeys(["correction", "num_threads"], "SupportsIndex"),
    **dict.fromkeys(["is_training", "param_grads", "relu", "diff_src_1", "exact"], "Flag"),
}
_WORKSPACE = {"workspace": "NDArray[np.uint8] | None = None"}
_TRAINING = {"BatchNormTraining[NDArray[Scalar]]": _WORKSPACE}
_GRADIENTS = {
    "BatchNormGradients[NDArray[Scalar], NDArray[Vector]]": {
        "param_grads": "Literal[True] = True", "diff_src_1": "Literal[False] = False",
    },
    "BatchNormAddGradients[NDArray[Scalar], NDArray[Vector] | Any]": {
        "diff_src_1": "Literal[True]",
    },
    "BatchNormGradients[NDArray[Scalar], NDArray[Vector] | Any]": {
        "param_grads": "Flag", "diff_src_1": "Literal[False] = False",
    },
}  # fmt: skip
_PLAIN = {"exact": "Literal[False] = False"}
_EXACT = {"NDArray[int64]": {"exact": "Literal[True]"}, "NDArray[Any]": {"exact": "Flag"}}
#: {function: {result: arguments that then have another type}}; several results become overloads
OVERLOADS = {
    "batch_norm_training": _TRAINING,
    "batch_norm_training_apply": _TRAINING,
    "batch_norm_training_reduce": {"NDArray[float64]": {**_PLAIN, "mean": "None = None"}, **_EXACT},
    "batch_norm_inference": {
        "NDArray[Scalar]": {"out": "NDArray[Any] | None = None", **_WORKSPACE},
    },
    "batch_norm_backward": _GRADIENTS,
    "batch_norm_backward_apply": _GRADIENTS,
    "batch_norm_backward_reduce": {"NDArray[float64]": _PLAIN, **_EXACT},
}  # fmt: skip
#: {what functions return: functions}; a function that is in neither table returns None
RESULTS = {
    "NDArray[Any]": ["_as_array"],
    "NDArray[float64]": [
        "batch_norm_sums", "batch_norm_training_merge", "batch_norm_training_stats",
    ],
    "NDArray[int64]": ["batch_norm_canonical"],
    "BatchNormDoubleBackward[NDArray[Scalar], NDArray[Vector]]": ["batch_norm_double_backward"],
    "int": [
        "batch_norm_count", "_as_index", "_default_threads", "_parked_bytes", "_parked_limit",
    ],
    "float": ["_as_epsilon", "_as_real"],
    "bool": ["_as_channels_last", "_as_flag", "_forked", "_has_openmp"],
    "str": ["_get_isa", "_or", "_shown"],
    "tuple[str, ...]": ["_available_isas", "_formulas"],
    "tuple[int, int]": ["_cache_sizes"],
    "dict[str, Any]": ["_kernel_interface", "_last_call"],
    "Any": ["_committed"],
    "TypeError": ["_wrong_dtype"],
}  # fmt: skip


def core():
    """The stub of bn_ext._core."""
    paths = sorted([*PACKAGE.glob("*.pyx"), *PACKAGE.glob("*.px[di]")])
    text = "\n".join(path.read_text(encoding="utf-8") for path in paths)
    plain = {name: {result: {}} for result, names in RESULTS.items() for name in names}
    found = {}
    for name, doc in CLASS.findall(text):
        found[name], _ = named_tuple(name, CLASSES[name], cleandoc(ast.literal_eval(doc)))
    for name, arguments, doc in FUNCTION.findall(text):
        # The shapes of C arrays are dropped.
        declared = re.sub(r"\[[^]]*\]", "", " ".join(arguments.split())).split(", ")
        overloads = {**plain, **OVERLOADS}.get(name, {"None": {}})
        parts = []
        for result, others in overloads.items():
            typed = [
                core_argument(name, each, result, others)
                for each in declared
                if each and each != "**refused"
            ]
            # The last overload has the docstring, because jedi shows that one.
            shown = len(parts) == len(overloads) - 1 and not name.startswith("_")
            docstring = cleandoc(ast.literal_eval(doc)) if shown else ""
            parts.append(function(name, typed, result, docstring))
        found[name] = "".join("@overload\n" * (len(parts) > 1) + part for part in parts)
    return stub(found, CORE_HEAD)


def core_argument(of, declared, result, others):
    """An argument of a function, with its type and its default."""
    before, _, default = declared.removesuffix("=...").partition("=")
    name = before.split()[-1]
    if name == "*":
        return name
    if name in others:
        return f"{name}: {others[name]}"
    if of.startswith("_"):
        return f"{name}: Any" + " = ..." * bool(default)
    kind = ARGUMENTS.get(name, "Array")
    if (follows := re.match(r"Data\[(\w+)\]", kind)) and follows[1] not in result:
        kind = "Array"
    if default == "None" and "None" not in kind:
        kind += " | None"
    return f"{name}: {kind}" + (f" = {default}" if default else "")


# ---- the operators -------------------------------------------------------------------------

#: {kind of an argument: its type}
KINDS = {
    "data": "Array",
    "vector": "Array",
    "list": "Sequence[Any]",
    "flag": "Flag",
    "data_format": "DataFormat",
    "ignored": "str",
    **dict.fromkeys(["epsilon", "positive", "number"], "SupportsFloat"),
}
#: {specification: dtype of the vectors that come back}
VECTORS = {"ngraph": "Scalar", "onednn_graph": "Vector", "tensorflow": "float32"}


def operators(rows):
    """The stub of one of bn_ext.specs."""
    found = {}
    for row in rows:
        result = "NDArray[Scalar]"
        if row.result is not None:
            name = row.result.__name__
            found[name], variables = named_tuple(name, outputs(row), row.result.__doc__)
            result = name + variables
        typed = operator_arguments(row, result)
        found[row.name] = function(row.name, typed, result, cleandoc(row.docstring()))
    return stub(found)


def outputs(row):
    """{output: its type}. The first output is data, the others are vectors."""
    wanted = {name for argument, name, _ in row.places if argument.kind == "flag"}
    found = {}
    for name in row.result._fields:
        kind = f"NDArray[{VECTORS[row.spec.module] if found else 'Scalar'}]"
        found[name] = f"{kind} | Any" if name in wanted else kind
    return found


def operator_arguments(row, result):
    """Arguments with types and defaults. Attributes, and what follows them, are keyword-only."""
    first = next(role for argument, _, role in row.places if argument.kind == "vector")
    follows, found = {"src": "Scalar", first: "Vector"}, []
    for argument, name, role in row.places:
        if not argument.is_array and "*" not in found:
            found.append("*")
        if argument.words is not None:
            kind = f"Literal{[*argument.words]} | bytes"
        elif follows.get(role, "no other") in result:
            kind = f"Data[{follows[role]}]"
        else:
            kind = KINDS[argument.kind]
        kind += " | None" * argument.optional
        found.append(f"{name}: {kind}" + f" = {argument.default!r}" * argument.is_optional)
    return found


if __name__ == "__main__":
    write(PACKAGE)
