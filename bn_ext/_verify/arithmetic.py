"""What each kernel must give, bit for bit: any formula, in the order in which src_c/kernels adds.

Columns never meet in a kernel, except in `sum_columns`, so one reference of many columns serves
every number of columns and every alignment.
"""

from collections.abc import Callable
from types import SimpleNamespace

import numpy as np

from bn_ext import _core
from bn_ext._verify.dtypes import Array
from bn_ext._verify.formulas import COEFS, FORMULAS, SUMS, Kernel, needs, plain
from bn_ext._verify.values import Case

__all__ = ["ROWS", "SUMS_KERNELS", "expand", "expected", "ring", "sums_expected"]

#: Rows of a block, at most.
ROWS: int = _core._kernel_interface()["rows"]
#: `sum_columns` keeps as many subsums, each of every eighth column, then adds them as a tree.
SUBSUMS = 8


def two_sum(total: Array, lost: Array, term: Array) -> tuple[Array, Array]:
    """The sum, rounded, and what all roundings took from it so far."""
    new = total + term
    added = new - total
    return new, lost + ((total - (new - added)) + (term - added))


def _add(case: Case, planes: Array, s: int, term: Array) -> None:
    """A term joins sum `s`; what rounding takes from it, the plane behind the sums."""
    if case.dtype.summing == "LOSES":
        planes[s], planes[SUMS + s] = two_sum(planes[s], planes[SUMS + s], term)
    else:
        planes[s] += term


# ---- a pass over a block ----------------------------------------------------


def _tree(terms: Array) -> Array:
    """The sum of up to eight rows, as the tree of loops.inc adds them."""
    n = len(terms)
    zero = np.zeros_like(terms[0])

    def two(k: int) -> Array:
        pair: Array = terms[k] + terms[k + 1]
        return pair

    def four(k: int) -> Array:
        return two(k) + two(k + 2)

    left = four(0) if n >= 4 else zero
    if n == ROWS:
        return left + four(4)
    k = n & 4
    right = two(k) if n & 2 else zero
    if n & 1:
        right = right + terms[k + (n & 2)]
    return left + right


def _given(kernel: Kernel, case: Case, rows: int) -> tuple[SimpleNamespace, SimpleNamespace]:
    """Operands and coefficients by role; none that the C table does not name for this kernel."""
    reads, _, takes = needs(kernel)
    coefs = dict(zip(COEFS, case.coefs, strict=True))
    x = {name: case.dtype.widen(case.operands[name])[:rows] for name in reads}
    return SimpleNamespace(**x), SimpleNamespace(**{name: coefs[name] for name in takes})


def expected(kernel: Kernel, case: Case, rows: int) -> dict[str, Array]:
    """What one block of the first `rows` rows gives: bits of the operands written, or sums."""
    pass_, name = kernel
    with np.errstate(all="ignore"):
        x, c = _given(kernel, case, rows)
        if pass_ == "write":
            results = FORMULAS[name].results(x, c)
            return {operand: case.dtype.narrow(values) for operand, values in results.items()}
        terms = FORMULAS[name].terms
        assert terms is not None
        planes, float_sums = case.planes.copy(), case.float_sums.copy()
        for s, term in enumerate(terms(x, c)):
            if case.dtype.summing == "IN_FLOATS":
                float_sums[s] += _tree(term)
            else:
                for addend in term if s == 0 and plain(name) else [_tree(term)]:
                    _add(case, planes, s, addend)
        return {"sums": planes, "float_sums": float_sums}


# ---- kernels that know no formula -------------------------------------------


def _flush(case: Case, planes: Array, float_sums: Array, other: Array) -> None:
    if case.dtype.summing == "IN_FLOATS":
        planes[:SUMS] += float_sums
        float_sums[:] = 0


def _add_sums(case: Case, planes: Array, float_sums: Array, other: Array) -> None:
    for s in range(SUMS):
        _add(case, planes, s, other[s])
        if case.dtype.summing == "LOSES":
            planes[SUMS + s] += other[SUMS + s]


def _sum_columns(case: Case, planes: Array, float_sums: Array, other: Array) -> None:
    """Into column 0."""
    columns = planes.shape[1]
    padded = np.pad(planes, ((0, 0), (0, -columns % SUBSUMS)))
    subsums = np.zeros((len(planes), SUBSUMS))
    for at in range(0, columns, SUBSUMS):
        _add_sums(case, subsums, float_sums, padded[:, at : at + SUBSUMS])
    while subsums.shape[1] > 1:
        subsums, other_half = np.hsplit(subsums, 2)
        # What was lost before counts first.
        subsums[SUMS:] += other_half[SUMS:]
        for s in range(SUMS):
            _add(case, subsums, s, other_half[s])
    kept = len(planes) if case.dtype.summing == "LOSES" else SUMS
    planes[:kept, 0] = subsums[:kept, 0]


#: What each leaves in its first two arguments, (planes, float_sums), given them and other sums.
SUMS_KERNELS: dict[str, Callable[[Case, Array, Array, Array], None]] = {
    "flush": _flush,
    "add": _add_sums,
    "sum_columns": _sum_columns,
}


def sums_expected(kernel: str, case: Case, other: Array) -> dict[str, Array]:
    """What a kernel of SUMS_KERNELS leaves; sum_columns' sums are its column 0."""
    planes, float_sums = case.planes.copy(), case.float_sums.copy()
    with np.errstate(all="ignore"):
        SUMS_KERNELS[kernel](case, planes, float_sums, other)
    return {"sums": planes, "float_sums": float_sums}


def expand(channel: Array, each: int, n: int) -> Array:
    """N columns: each channel's value `each` times in a row, after the last the first again."""
    return channel[np.arange(n) // each % len(channel)]


def ring(channel: Array, each: int, n: int, paired: bool) -> Array:
    """The same, even columns before odd ones where the dtype is paired."""
    columns = expand(channel, each, n)
    return np.concatenate([columns[::2], columns[1::2]]) if paired else columns
