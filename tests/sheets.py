"""The operators of bn_ext.specs as tests call them, and everything that may bring an array."""

import numpy as np
import pytest
from cases import EPSILON, Family
from refusals import check_passes, raising


class Sheet:
    """An operator, and what its arguments are called in the general function.

    `fixed` are its other arguments; `updated` are changed in place. Arrays are copies: an operator
    may change what it is given.
    """

    def __init__(self, operator, data_format, fixed=None, epsilon="epsilon", updated=(), **roles):
        self.operator, self.data_format, self.roles = operator, data_format, roles
        self.updated = updated
        self.fixed = {**(fixed or {}), **({epsilon: EPSILON} if epsilon else {})}

    def problem(self, rng, data="float32", vector=None):
        dims = (2, 3, 4, 5) if self.data_format == "NXC" else (2, 5, 3, 4)
        return Family(rng, dims, self.data_format, data, vector)

    def arguments(self, p, carry=lambda array: array):
        """What is updated in place must not come as what may be a copy."""
        arrays = {name: np.array(getattr(p, role)) for name, role in self.roles.items()}
        kept = self.updated if carry is WithArray else ()
        return {name: array if name in kept else carry(array) for name, array in arrays.items()}

    def __call__(self, p, carry=lambda array: array, **changed):
        return self.operator(**{**self.arguments(p, carry), **self.fixed, **changed})

    def asked(self, p):
        """How often each argument was asked for its array."""
        arguments = self.arguments(p, WithArray)
        self.operator(**arguments, **self.fixed)
        return {name: arguments[name].asked for name in self.roles if name not in self.updated}

    def check_what_is_no_array(self, p, is_optional):
        """Everything else is refused by name."""
        masked = WithArray(np.ma.masked_greater(p.src, 0))
        for name in self.roles:
            refused = [
                *[(thing, "expected an array, got ") for thing in ("abc", 1.0, object(), range(3))],
                ([[1.0], [2.0, 3.0]], "expected an array of numbers|.* in place, got a list"),
                (np.array(["a", "b", "c", "d", "e"]), "expected .*float32.*, got <U1$"),
                (masked, "masked arrays are not accepted|.* in place, got a WithArray"),
                *([] if is_optional(name) else [(None, "expected an array, got None")]),
            ]
            for thing, message in refused:
                with pytest.raises(TypeError, match=f"^{name}: ({message})"):
                    self(p, **{name: thing})

    def check_errors_of_the_callers(self, p, kind):
        """What an argument's own code raises passes, whatever words are in it."""
        error = kind("my src has no epsilon, its gamma is not 'mean'")
        things = {
            name: raising(error, "__dlpack__" if name in self.updated else "__array__")
            for name in self.roles
        }
        things |= {
            name: raising(error, "__float__")
            for name, value in self.fixed.items()
            if isinstance(value, float)
        }
        for name, thing in things.items():
            check_passes(error, lambda: self(p, **{name: thing}))  # noqa: B023

    def of(self, *roles):
        """What these are called here."""
        return [name for name, role in self.roles.items() if role in roles]


# ---- whatever brings the array ----------------------------------------------------------


class WithArray:
    def __init__(self, array):
        self.array, self.asked = array, 0

    def __array__(self, *_, **__):
        self.asked += 1
        return self.array


class WithInterface:
    def __init__(self, array):
        self.array, self.__array_interface__ = array, array.__array_interface__


class WithDLPack:
    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


class Subclass(np.ndarray):
    """Claims that it fits."""

    dtype = property(lambda self: np.dtype(np.float32))
    shape = property(lambda self: (2, 3, 4, 5))
    ndim = 4


CARRIERS = {
    "array": lambda array: array,
    "memoryview": memoryview,
    "__array__": WithArray,
    "__array_interface__": WithInterface,
    "DLPack": WithDLPack,
    "subclass": lambda array: array.view(Subclass),
}


class Untouchable:
    def __getattribute__(self, name):
        raise AssertionError("looked at")
