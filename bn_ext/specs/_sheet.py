"""Makes functions from the rows of _table.py.

A function has the signature and docstring of its row. It converts each argument once, by the rules
of the row's general function, and checks the types. Then it passes all arguments, under their roles
(see _table.py), to the function that computes the row.
"""

import math
from collections.abc import Callable, Sequence
from inspect import Parameter, Signature
from types import SimpleNamespace
from typing import Any, SupportsFloat, TypeAlias

import numpy as np
from numpy.typing import NDArray

from bn_ext._core import (
    _as_array as as_array,
    _as_epsilon as as_epsilon,
    _as_flag as as_flag,
    _as_real as as_real,
    _DefaultMode,
    _shown as shown,
    _Words,
    _wrong_dtype as wrong_dtype,
    batch_norm_backward,
    batch_norm_inference,
    batch_norm_training,
)
from bn_ext._names import VALUES, refuse_unknown
from bn_ext.specs._table import REQUIRED, ROWS, Argument, Row

__all__ = [
    "Given",
    "Result",
    "backward",
    "inference",
    "require_shape",
    "sheet",
    "training",
]

#: The converted arguments of a call, under their roles; vectors that are absent or unused are None.
#: Also `words`, {role: name}; `data_format`, a _Words with these names, for the general function;
#: `axis`, where the channels are; `channels`, their number; `count`, the number of elements in each
#: channel; and `dtype`, the dtype of the vectors or, if there are none, of the data.
Given: TypeAlias = SimpleNamespace
Result: TypeAlias = tuple[NDArray[Any] | None, ...] | NDArray[Any]


def sheet(name: str) -> Callable[[Callable[[Given], Result]], Callable[..., Any]]:
    """Decorates the function that computes the row of this name."""
    row = ROWS[name]
    parameters = {
        name: Parameter(
            name,
            Parameter.POSITIONAL_OR_KEYWORD if argument.is_array else Parameter.KEYWORD_ONLY,
            default=argument.default if argument.is_optional else Parameter.empty,
        )
        for argument, name, _ in row.places
    }
    by_position = [name for argument, name, _ in row.places if argument.is_array]
    defaults = {name: argument.default for argument, name, _ in row.places if argument.is_optional}
    by_role = {role: name for _, name, role in row.places}
    signature = Signature([*parameters.values()])

    def made(compute: Callable[[Given], Result]) -> Callable[..., Any]:
        def operator(*arguments: Any, **options: Any) -> Any:
            # signature.bind takes as long as all the rest, so it is called only to raise errors.
            first = dict(zip(by_position, arguments, strict=False))
            given = {**defaults, **first, **options}
            if (
                given.keys() != parameters.keys()
                or len(arguments) > len(by_position)
                or not first.keys().isdisjoint(options)
            ):
                for name in options:
                    if name not in parameters:
                        refuse_unknown(operator, name, by_role, _values(row))
                try:
                    signature.bind(*arguments, **options)
                except TypeError as error:
                    raise TypeError(f"{row.name}() {error}") from None
            with _DefaultMode():
                found = compute(_converted(row, given))
            return found if row.result is None else row.result(*found)

        operator.__name__ = operator.__qualname__ = row.name
        operator.__module__ = f"bn_ext.specs.{row.spec.module}"
        operator.__doc__ = row.docstring()
        operator.__annotations__ = {}  # types are in the stubs
        operator.__signature__ = signature  # type: ignore[attr-defined]
        operator.result = row.result  # type: ignore[attr-defined]
        return operator

    return made


# ---- conversions ----------------------------------------------------------------------


def _as_positive(value: SupportsFloat, name: str) -> float:
    """The double, if it is positive and finite as a float32."""
    expected = "a number that is positive and finite as a float32"
    number = as_real(value, name, expected)
    as_float32 = np.float32(number)
    if not (np.isfinite(as_float32) and as_float32 > 0):
        raise ValueError(f"{name}: expected {expected}, got {shown(value)}")
    return number


def _as_word(words: dict[str, Any], value: object, name: str) -> Any:
    """The meaning of a word, which may be given as bytes, as in TensorFlow's graphs."""
    word = value.decode(errors="replace") if isinstance(value, bytes) else value
    if not isinstance(word, str) or word not in words:
        raise ValueError(f"{name}: expected one of {', '.join(words)}, got {shown(value)}")
    return words[word]


def _as_at_most_one(value: object, name: str) -> NDArray[Any] | None:
    if not isinstance(value, (list, tuple)) or len(value) > 1:
        hint = f"; pass [{name}]" if hasattr(value, "shape") else ""
        raise TypeError(f"{name}: expected a list of at most one array, got {shown(value)}{hint}")
    return as_array(value[0], f"{name}[0]") if value else None


def _require_dtype(name: str, array: NDArray[Any], allowed: Sequence[str], like: str = "") -> None:
    if array.dtype.name not in allowed or not array.dtype.isnative:
        raise wrong_dtype(name, array, " or ".join(allowed) + like, max(allowed))


def _check_types(row: Row, a: Given, vectors: dict[str, NDArray[Any]]) -> None:
    """Check rank and types by the specification. All vectors must have one type, a.dtype.

    The general function checks that the other data has src's type and shape.
    """
    name, types = a.words["src"], row.spec.types
    _require_dtype(name, a.src, [*types])
    if row.ranks and a.src.ndim not in row.ranks:
        expected = " or ".join(map(str, row.ranks))
        raise ValueError(f"{name}: expected rank {expected}, got shape {a.src.shape}")
    if a.src.ndim < 2:
        raise ValueError(f"{name}: expected at least 2 dimensions, got shape {a.src.shape}")
    allowed, like = types[a.src.dtype.name], ""
    first = next(iter(vectors.values()), a.src)
    for name, array in vectors.items():
        if array is first or array.dtype != first.dtype:
            _require_dtype(name, array, allowed, like)
        if len(allowed) > 1:
            allowed, like = (first.dtype.name,), f", like {name}"
    a.dtype = first.dtype


# ---- a call ---------------------------------------------------------------------------


#: Kind of an argument -> its conversion.
_KINDS: dict[str, Callable[[Any, str], Any]] = {
    "data": as_array,
    "vector": as_array,
    "list": _as_at_most_one,
    "epsilon": as_epsilon,
    "positive": _as_positive,
    "number": lambda value, name: as_real(value, name, "a finite number"),
    "flag": as_flag,
    "data_format": lambda value, name: value,  # _Words converts it
    "ignored": lambda value, name: None,
}


def _convert(argument: Argument, value: Any, name: str) -> Any:
    """Convert an argument; None if it is absent."""
    if value is None and argument.optional:
        value = argument.default
        if value is None or value is REQUIRED:
            return None
    if argument.words is not None:
        return _as_word(argument.words, value, name)
    return _KINDS[argument.kind](value, name)


def _converted(row: Row, given: dict[str, Any]) -> Given:
    """Convert all arguments. Attributes come first, because they decide which arrays are used."""
    a = Given(words={}, data_format=row.spec.data_format, **dict.fromkeys(_VECTORS))
    for argument, name, role in row.places:
        if not argument.is_array:
            a.words[role] = name
            setattr(a, role, _convert(argument, given[name], name))
    vectors: dict[str, NDArray[Any]] = {}
    for argument, name, role in row.places:
        if not argument.is_array or (argument.used and not getattr(a, argument.used)):
            continue
        a.words[role] = name + "[0]" * (argument.kind == "list")
        array = _convert(argument, given[name], name)
        setattr(a, role, array)
        if array is not None and argument.kind == "vector":
            vectors[name] = array
    _check_types(row, a, vectors)
    running = {f"running_{role}": a.words[role] for role in _VECTORS[:2] if role in a.words}
    words = _Words(a.data_format, {**running, **a.words, **_hints(row, a)})
    a.axis = a.src.ndim - 1 if a.data_format == "NXC" else 1
    a.data_format, a.channels = words, a.src.shape[a.axis]
    a.count = math.prod(a.src.shape[: a.axis]) * math.prod(a.src.shape[a.axis + 1 :])
    return a


def _values(row: Row) -> dict[str, str]:
    """{role: the values to be added to a hint}, as in `VALUES`, with the operator's own words."""
    words = {role: argument.words for argument, _, role in row.places if argument.words}
    return VALUES | {role: f": {' or '.join(map(repr, each))}" for role, each in words.items()}


def _hints(row: Row, a: Given) -> dict[str, str]:
    """{data format: hint}; a hint says what to pass if that data format was meant."""
    if row.spec.data_format:
        likewise = f", and {a.words['diff_dst']} likewise" if "diff_dst" in a.words else ""
        moved = f"np.moveaxis(np.asarray({a.words['src']}), -1, 1)"
        return {"NXC": f"pass {moved}{likewise}, which copies nothing"}
    (argument,) = [each for each in row.arguments if each.names == "data_format"]
    words = {word: ours for word, ours in (argument.words or {}).items() if len(word) == a.src.ndim}
    return {ours: f'pass data_format="{word}"' for word, ours in words.items()}


# ---- for the functions that compute a row ------------------------------------------------

#: Roles that are None if they are absent.
_VECTORS = ("mean", "variance", "gamma", "beta")


def inference(a: Given, **options: Any) -> NDArray[Any]:
    """Call `bn_ext.batch_norm_inference`."""
    return batch_norm_inference(a.src, a.mean, a.variance, a.gamma, a.beta, **_shared(a), **options)


def backward(a: Given, **options: Any) -> Any:
    """Call `bn_ext.batch_norm_backward`."""
    return batch_norm_backward(
        a.src, a.diff_dst, a.mean, a.variance, a.gamma, **_shared(a), **options
    )


def training(a: Given, **options: Any) -> Any:
    """Call `bn_ext.batch_norm_training`."""
    return batch_norm_training(a.src, a.gamma, a.beta, **_shared(a), **options)


def _shared(a: Given) -> dict[str, Any]:
    return {"epsilon": a.epsilon, "data_format": a.data_format}


def require_shape(name: str, array: NDArray[Any], shape: tuple[int, ...]) -> None:
    """Raise ValueError unless array has this shape."""
    if array.shape != shape:
        raise ValueError(f"{name}: expected shape {shape}, got {array.shape}")
