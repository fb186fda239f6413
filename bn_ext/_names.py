"""What other packages call our arguments."""

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from bn_ext import _core

__all__ = ["refuses_other_names"]

_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")


def refuses_other_names(function: Callable[_Given, _Result]) -> Callable[_Given, _Result]:
    """Decorates a function: its errors for unknown keyword arguments are those of compiled ones."""
    code = function.__code__
    names = frozenset(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])

    @wraps(function)
    def checked(*given: _Given.args, **options: _Given.kwargs) -> _Result:
        # Not a comprehension: CPython 3.11 leaks its closure where memory is short.
        for name in options:
            if name not in names:
                _core._refuse_unknown(function, name)
        return function(*given, **options)

    return checked
