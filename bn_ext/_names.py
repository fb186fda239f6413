"""What other packages call our arguments."""

from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from bn_ext import _core

__all__ = ["refuse_other_names", "refuses_other_names"]

_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")


def refuse_other_names(function: Callable[..., Any], options: dict[str, Any]) -> None:
    """Raise a TypeError for keyword arguments that a function does not take, as in _core."""
    code = function.__code__
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    for name in options:
        if name not in names:
            _core._refuse_unknown(function, {name: options[name]})


def refuses_other_names(function: Callable[_Given, _Result]) -> Callable[_Given, _Result]:
    """Decorates a function. Python would first say that the argument under our name is missing."""

    @wraps(function)
    def checked(*given: _Given.args, **options: _Given.kwargs) -> _Result:
        refuse_other_names(function, options)
        return function(*given, **options)

    return checked
