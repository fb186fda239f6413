"""What the functions take and return, and how a call is refused."""

import functools
import inspect
import re
import sys
from types import FunctionType

import ml_dtypes
import numpy as np
import pytest
from cases import EPSILON, all_bits
from members import FUNCTIONS, function_of

from bn_ext import _core
from bn_ext._sums import as_sums

#: The arguments that each function gets here.
OPERANDS = {name: function.operands for name, function in FUNCTIONS.items()}
#: The results of each function that takes `out`, and the argument that each is like.
LIKE = {"tensor": "src", "vector": "mean", "statistics": "mean"}
RESULTS = {
    name: {result: LIKE[kind] for result, kind in function.results.items()}
    for name, function in FUNCTIONS.items()
    if function.results
}


def takes(name):
    return inspect.signature(function_of(name)).parameters.keys()


def dry(name, **operands):
    if "sums" in operands:
        operands["sums"] = as_sums(operands.pop("sums"))
    return getattr(_core, name)(**operands, dry=True)


def arguments(p, name):
    operands = {operand: getattr(p, operand, None) for operand in OPERANDS[name]}
    operands["data_format"] = p.data_format
    return operands | ({"epsilon": EPSILON} if name in RESULTS else {})


def outs(p, name):
    return [np.full_like(getattr(p, like), 7) for like in RESULTS[name].values()]


def as_out(name, out):
    return out[0] if name == "inference" else tuple(out)


def four(p, **changed):
    return {
        "running_mean": p.mean.copy(),
        "running_variance": p.variance.copy(),
        "exponential_avg_factor": 0.1,
        "correction": 1,
        **changed,
    }


def read_only(a):
    a = a.copy()
    a.flags.writeable = False
    return a


def arrays_in(values):
    """All arrays in arguments, as they are, and the memory that they are views of."""
    for value in values:
        if type(value) is tuple:
            yield from arrays_in(value)
        while issubclass(type(value), np.ndarray) and value.dtype.kind != "O":
            yield np.asarray(value)
            value = value.base


def check_refused(kind, message, call, operands, dry_run=None):
    """A call, and its dry run, raise this error, which names an argument; return its text. Nothing
    is written or kept, and to do what the error says helps.
    """
    arrays = list(arrays_in(operands.values()))
    before = all_bits(arrays), [sys.getrefcount(a) for a in arrays]
    for function in (call, dry_run) if dry_run else (call,):
        with pytest.raises(kind, match=message) as caught:
            function(**operands)
        text = str(caught.value)
        del caught
        print(text)
    assert (all_bits(arrays), [sys.getrefcount(a) for a in arrays]) == before
    assert len(text) < 400
    taken = inspect.signature(call).parameters.keys()
    names = re.sub(r"^\w+ in out:", "out:", text).partition(":")[0]
    assert ":" not in text or {*re.findall(r"\w+", names)} <= {"and", *taken}
    follow(text, call, operands)
    return text


def follow(text, call, operands):
    """What an error says to pass must not be refused for the same reason."""
    named = "|".join(operands)
    advised = re.findall(
        rf"(?:pass|if not,|or) ((?:np\.|(?=\w+\.(?:filled|toarray))).*?\b({named})\b.*?\))"
        "(?= for|, which|, and|, or|;|$)",
        text,
    )
    assert advised or not re.search(r"pass (np\.|\w+\.(filled|toarray))", text)
    for advice, name in advised:
        value = eval(advice, {"np": np, "ml_dtypes": ml_dtypes, name: operands[name], "value": 0.0})
        try:
            call(**{**operands, name: value})
        except (TypeError, ValueError) as error:
            assert not str(error).startswith(f"{name}:"), advice  # noqa: PT017


def operands_of(p, name, **changes):
    """The arguments of a function that fit, but for those that are changed; of those, a function
    makes the argument from the problem.
    """
    operands = arguments(p, name)
    if name in RESULTS:
        operands["out"] = as_out(name, outs(p, name))
    for argument, value in changes.items():
        operands[argument] = value(p) if type(value) is FunctionType else value
    if name == "inference" and isinstance(operands["out"], tuple):
        (operands["out"], *_) = operands["out"]
    return operands


def refused(kind, message, p, name, **changes):
    run = functools.partial(dry, name) if name in RESULTS else None
    check_refused(kind, message, function_of(name), operands_of(p, name, **changes), run)
