"""Numbers with more digits than doubles and a wider range: what float64 results are judged by.

Where data is narrower, doubles have digits and range enough. Long doubles would do for float64, but
they are doubles on Windows, on macOS on Arm, and under valgrind.

An array of `Wide` is of pairs of doubles: hi + lo, where hi is this sum as a double, times 2 to the
power of `exponent`, which there is only where some number is far from 1. A *size*, which abs()
gives, has no lo: that of a bound needs few digits.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

#: Without exponents, numbers are below this and, but for 0, above its inverse: so neither products
#: nor their rounding errors leave the range of doubles.
FAR = 2.0**400
#: The exponent of 0.
NONE = -(2**20)


class Wide(np.lib.mixins.NDArrayOperatorsMixin):
    """An array of numbers with 106 bits, for NumPy's functions in FUNCTIONS."""

    __slots__ = ("exponent", "hi", "lo")
    hi: Any
    #: None: a size.
    lo: Any
    #: None, or integers in the shape of hi, which is then below 1 and, but for 0, 1/2 or more.
    exponent: Any

    def __init__(self, values: Any) -> None:
        if isinstance(values, Wide):
            self.hi, self.lo, self.exponent = values.hi, values.lo, values.exponent
            return
        array, exponent = np.asarray(values), None
        lo: Any = 0.0
        with np.errstate(all="ignore"):
            if array.dtype.itemsize > 8:  # a long double, on some systems
                array, exponent = np.frexp(array)
                lo = np.asarray(array - np.asarray(array, np.float64), np.float64)
            made = _made(np.asarray(array, np.float64), lo, exponent)
        self.hi, self.lo, self.exponent = made.hi, made.lo, made.exponent

    shape = property(lambda self: self.hi.shape)
    ndim = property(lambda self: self.hi.ndim)
    size = property(lambda self: self.hi.size)
    T = property(lambda self: self._each(np.transpose))

    #: Arrays are not changed in place: a += b makes another.
    __iadd__ = np.lib.mixins.NDArrayOperatorsMixin.__add__
    __isub__ = np.lib.mixins.NDArrayOperatorsMixin.__sub__
    __imul__ = np.lib.mixins.NDArrayOperatorsMixin.__mul__

    def __len__(self) -> int:
        return len(self.hi)

    def __getitem__(self, place: Any) -> "Wide":
        return self._each(lambda a: a[place])

    def __bool__(self) -> bool:
        return bool(self.hi != 0)

    def __float__(self) -> float:
        return float(self.astype(np.float64))

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return self.astype(np.float64 if dtype is None else dtype)

    def __repr__(self) -> str:
        return f"Wide({self.astype(np.float64)!r})"

    def astype(self, dtype: Any) -> Any:
        """Rounded to a dtype of NumPy."""
        number = self.hi
        if np.dtype(dtype).itemsize > 8:
            number = number.astype(dtype) + (0 if self.lo is None else self.lo)
        if self.exponent is not None:
            with np.errstate(over="ignore", under="ignore"):
                number = np.ldexp(number, self.exponent)
        return number.astype(dtype)

    def reshape(self, *shape: Any) -> "Wide":
        return self._each(lambda a: a.reshape(*shape))

    def ravel(self) -> "Wide":
        return self.reshape(-1)

    def copy(self) -> "Wide":
        return self._each(np.copy)

    def sum(self, axis: Any = None, keepdims: bool = False) -> "Wide":
        whole = self.reshape(-1) if axis is None else _each_of(np.moveaxis, self, axis, -1)
        total = _sum(whole)
        if not keepdims:
            return total
        if axis is None:
            return total.reshape((1,) * self.ndim)
        return _each_of(np.expand_dims, total, axis)

    def mean(self, axis: Any = None, keepdims: bool = False) -> "Wide":
        total = self.sum(axis, keepdims)
        mean: Wide = total / (self.size / max(1, total.size))
        return mean

    def var(self, axis: int) -> "Wide":
        centered = self - self.mean(axis, keepdims=True)
        return Wide(centered * centered).mean(axis)

    def max(self, axis: Any = None, initial: float = -np.inf) -> "Wide":
        if axis is None:
            return self.reshape(-1).max(0, initial)
        if not self.shape[axis]:
            return Wide(np.full(np.delete(self.shape, axis), initial))
        hi = self.hi
        if self.exponent is not None:
            hi = np.ldexp(hi, self.exponent - self.exponent.max(axis=axis, keepdims=True))
        at = np.expand_dims(hi.argmax(axis), axis)
        return _maximum(
            self._each(lambda a: np.take_along_axis(a, at, axis).squeeze(axis)), initial
        )

    def _each(self, change: Callable[[Any], Any]) -> "Wide":
        """With all parts, which are arrays of one shape, changed so."""
        lo = self.lo
        if lo is not None and np.ndim(lo) == 0 < self.hi.ndim:
            lo = np.broadcast_to(lo, self.hi.shape)
        return _of(
            *(None if part is None else change(part) for part in (self.hi, lo, self.exponent))
        )

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        if method != "__call__" or options or ufunc not in UFUNCS:
            return NotImplemented
        with np.errstate(all="ignore"):
            return UFUNCS[ufunc](*inputs)

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if function not in FUNCTIONS:
            return NotImplemented
        return FUNCTIONS[function](*args, **kwargs)


def _of(hi: Any, lo: Any, exponent: Any) -> Wide:
    """An array of these parts, which are as they should be."""
    array = object.__new__(Wide)
    array.hi, array.lo, array.exponent = np.asarray(hi), lo, exponent
    return array


def _made(hi: Any, lo: Any = None, exponent: Any = None) -> Wide:
    """An array of these parts; lo may be too large by a few bits, any number too far from 1."""
    hi = np.asarray(hi)
    sizes = abs(hi)
    is_near = exponent is None and bool(sizes.max(initial=0) < FAR)  # not if there is a NaN
    if is_near and not (sizes < 1 / FAR).any():
        if lo is not None:
            total = hi + lo
            hi, lo = total, lo - (total - hi)
        return _of(hi, lo, None)
    finite = np.isfinite(hi)
    if lo is not None:
        lo = np.where(finite & np.isfinite(lo), lo, 0.0)
        total = hi + lo
        hi, lo = total, np.where(finite, lo - (total - hi), 0.0)
    counts = finite & (hi != 0)
    if exponent is None and not (counts & ((sizes >= FAR) | (sizes < 1 / FAR))).any():
        return _of(hi, lo, None)
    fraction, shift = np.frexp(hi)
    if lo is not None:
        lo = np.ldexp(lo, -shift)
    exponent = shift if exponent is None else shift + exponent
    if (abs(exponent) < 300)[counts].all():
        hi = np.where(counts, np.ldexp(fraction, np.where(counts, exponent, 0)), hi)
        return _of(hi, lo if lo is None else np.ldexp(lo, np.where(counts, exponent, 0)), None)
    return _of(fraction, lo, np.where(counts, exponent, np.where(hi == 0, NONE, 0)))


def _pair(a: Any, b: Any) -> tuple[Any, ...]:
    """The parts of two arrays, with one exponent for both."""
    a, b = Wide(a), Wide(b)
    if a.exponent is None and b.exponent is None:
        return a.hi, a.lo, b.hi, b.lo, None
    parts = []
    (one, of_one), (other, of_other) = _with_exponents(a), _with_exponents(b)
    exponent = np.maximum(of_one, of_other)
    for number, of_number in ((one, of_one), (other, of_other)):
        shift = np.maximum(of_number - exponent, -4000)
        parts += [np.ldexp(number.hi, shift)]
        parts += [None if number.lo is None else np.ldexp(number.lo, shift)]
    return *parts, exponent


def _with_exponents(a: Wide) -> tuple[Wide, Any]:
    if a.exponent is not None:
        return a, a.exponent
    return a, np.where(a.hi == 0, NONE, 0)


def _two_sum(a: Any, b: Any) -> tuple[Any, Any]:
    total = a + b
    of_b = total - a
    return total, (a - (total - of_b)) + (b - of_b)


def _two_product(a: Any, b: Any) -> tuple[Any, Any]:
    """Of Veltkamp and Dekker."""
    product = a * b
    (high_a, low_a), (high_b, low_b) = _halves(a), _halves(b)
    error = ((high_a * high_b - product) + high_a * low_b + low_a * high_b) + low_a * low_b
    return product, error


def _halves(a: Any) -> tuple[Any, Any]:
    shifted = a * 134217729.0  # 2**27 + 1
    high = shifted - (shifted - a)
    return high, a - high


def _add(a: Any, b: Any) -> Wide:
    hi_a, lo_a, hi_b, lo_b, exponent = _pair(a, b)
    if lo_a is None or lo_b is None:
        return _made(hi_a + hi_b, None, exponent)
    hi, lo = _two_sum(hi_a, hi_b)
    return _made(hi, lo + (lo_a + lo_b), exponent)


def _negative(a: Wide) -> Wide:
    return _of(-a.hi, None if a.lo is None else -a.lo, a.exponent)


def _subtract(a: Any, b: Any) -> Wide:
    return _add(a, _negative(Wide(b)))


def _exponents(a: Wide, b: Wide, sign: int) -> Any:
    """Those of a product, sign 1, or a quotient, -1."""
    if a.exponent is None and b.exponent is None:
        return None
    first, second = (0 if n.exponent is None else n.exponent for n in (a, b))
    return np.maximum(first + sign * second, 2 * NONE)


def _multiply(a: Any, b: Any) -> Wide:
    a, b = Wide(a), Wide(b)
    exponent = _exponents(a, b, 1)
    if a.lo is None or b.lo is None:
        return _made(a.hi * b.hi, None, exponent)
    hi, lo = _two_product(a.hi, b.hi)
    return _made(hi, lo + (a.hi * b.lo + a.lo * b.hi), exponent)


def _divide(a: Any, b: Any) -> Wide:
    a, b = Wide(a), Wide(b)
    exponent, quotient = _exponents(a, b, -1), a.hi / b.hi
    if a.lo is None or b.lo is None:
        return _made(quotient, None, exponent)
    product, error = _two_product(quotient, b.hi)
    rest = ((a.hi - product) - error + a.lo - quotient * b.lo) / b.hi
    return _made(quotient, np.where(b.hi == 0, 0.0, rest), exponent)


def _sqrt(a: Wide) -> Wide:
    hi, lo, exponent = a.hi, a.lo, a.exponent
    if exponent is not None:
        odd = exponent % 2
        hi, lo, exponent = np.ldexp(hi, odd), lo if lo is None else np.ldexp(lo, odd), exponent // 2
    root = np.sqrt(hi)
    if lo is None:
        return _made(root, None, exponent)
    square, error = _two_product(root, root)
    rest = np.where(root > 0, ((hi - square) - error + lo) / (2 * root), 0.0)
    return _made(root, rest, exponent)


def _power(a: Wide, power: int) -> Wide:
    product = Wide(1.0)
    for _ in range(abs(power)):
        product = product * a
    return product if power >= 0 else 1 / product


def _absolute(a: Wide) -> Wide:
    return _of(abs(a.hi), None, a.exponent)


def _copysign(a: Any, b: Any) -> Wide:
    a, b = Wide(a), Wide(b)
    return _of(np.copysign(a.hi, b.hi), None, a.exponent)


def _sum(a: Wide) -> Wide:
    """Of the last axis, in pairs."""
    hi, lo, exponent = a.hi, a.lo, a.exponent
    if exponent is not None:
        most = exponent.max(axis=-1, initial=NONE, keepdims=True)
        shift = np.maximum(exponent - most, -4000)
        hi, lo = np.ldexp(hi, shift), lo if lo is None else np.ldexp(lo, shift)
        exponent = most[..., 0]
    if lo is None:
        return _made(np.ascontiguousarray(hi).sum(axis=-1), None, exponent)
    finite, of_others = np.isfinite(hi), None
    if not finite.all():
        of_others = np.where(finite.all(axis=-1), 0.0, hi.sum(axis=-1))
        hi = np.where(finite, hi, 0.0)
    lo = np.broadcast_to(lo, hi.shape)
    while hi.shape[-1] > 1:
        half = hi.shape[-1] // 2
        rest = hi[..., 2 * half :], lo[..., 2 * half :]
        total, error = _two_sum(hi[..., :half], hi[..., half : 2 * half])
        error += lo[..., :half] + lo[..., half : 2 * half]
        hi, lo = (np.concatenate(both, axis=-1) for both in zip((total, error), rest, strict=True))
    if not hi.shape[-1]:
        hi = lo = np.zeros((*hi.shape[:-1], 1))
    hi = hi[..., 0] if of_others is None else hi[..., 0] + of_others
    return _made(hi, lo[..., 0], exponent)


def _compared(compare: Any, of_equals: bool) -> Callable[[Any, Any], Any]:
    def compared(a: Any, b: Any) -> Any:
        hi_a, lo_a, hi_b, lo_b, _ = _pair(a, b)
        lows = (0.0 if lo is None else lo for lo in (lo_a, lo_b))
        if of_equals:
            return compare(hi_a, hi_b) & compare(*lows)
        return compare(hi_a, hi_b) & (hi_a != hi_b) | (hi_a == hi_b) & compare(*lows)

    return compared


def _where(condition: Any, a: Any, b: Any) -> Wide:
    a, b = Wide(a), Wide(b)
    lo = None if a.lo is None or b.lo is None else np.where(condition, a.lo, b.lo)
    exponent = None
    if not (a.exponent is None and b.exponent is None):
        exponent = np.where(condition, _with_exponents(a)[1], _with_exponents(b)[1])
    return _made(np.where(condition, a.hi, b.hi), lo, exponent)


def _maximum(a: Any, b: Any) -> Wide:
    a, b = Wide(a), Wide(b)
    return _where((a >= b) | np.isnan(a), a, b)


def _joined(join: Any) -> Callable[..., Wide]:
    """np.stack, np.concatenate."""

    def joined(arrays: Any, axis: int = 0) -> Wide:
        arrays, lo, exponent = [*map(Wide, arrays)], None, None
        if not any(a.lo is None for a in arrays):
            lo = join([np.broadcast_to(a.lo, a.shape) for a in arrays], axis=axis)
        if not all(a.exponent is None for a in arrays):
            exponent = join([_with_exponents(a)[1] for a in arrays], axis=axis)
        return _made(join([a.hi for a in arrays], axis=axis), lo, exponent)

    return joined


def _each_of(function: Any, a: Wide, *options: Any, **named: Any) -> Wide:
    return a._each(lambda part: function(part, *options, **named))


def _of_hi(ufunc: Any) -> Callable[[Wide], Any]:
    return lambda a: ufunc(a.hi)


UFUNCS: dict[Any, Callable[..., Any]] = {
    np.add: _add, np.subtract: _subtract, np.multiply: _multiply, np.divide: _divide,
    np.negative: _negative, np.absolute: _absolute, np.sqrt: _sqrt, np.power: _power,
    np.copysign: _copysign, np.maximum: _maximum,
    np.minimum: lambda a, b: -_maximum(-Wide(a), -Wide(b)),
    np.isfinite: _of_hi(np.isfinite), np.isnan: _of_hi(np.isnan), np.isinf: _of_hi(np.isinf),
    np.equal: _compared(np.equal, True), np.not_equal: lambda a, b: ~(Wide(a) == Wide(b)),
    np.less: _compared(np.less, False), np.less_equal: _compared(np.less_equal, False),
    np.greater: _compared(np.greater, False),
    np.greater_equal: _compared(np.greater_equal, False),
}  # fmt: skip
FUNCTIONS: dict[Any, Callable[..., Any]] = {
    np.where: _where, np.stack: _joined(np.stack), np.concatenate: _joined(np.concatenate),
    **{f: lambda a, *options, _f=f, **named: _each_of(_f, a, *options, **named)
       for f in (np.moveaxis, np.broadcast_to, np.expand_dims)},
    np.zeros_like: lambda a: _of(np.zeros(a.shape), None, None),
    np.shape: lambda a: a.shape, np.ndim: lambda a: a.ndim, np.size: lambda a: a.size,
}  # fmt: skip


def wide_of(data: str) -> Any:
    """The type for what is right of data of this dtype."""
    return Wide if data == "float64" else np.float64


def widened(values: Any, wide: Any) -> Any:
    """An array as one of this type: Wide, or a dtype of NumPy."""
    return Wide(values) if wide is Wide else np.asarray(values).astype(wide)
