"""What kernels must return for any formula, bit for bit: terms are added in src_c/kernels' order.

Columns never meet in a kernel, except in `sum_columns` and where long runs are folded. So elsewhere
one expected result with many columns serves every number of columns and every alignment.
"""

from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace

import numpy as np

from oracle import compiled
from oracle.dtypes import Array, Dtype
from oracle.formulas import COEFS, GATE, RESULTS, SUMS, TERMS, Kernel, needs
from oracle.values import Case

#: The most rows of a block.
ROWS: int = compiled.interface()["rows"]
#: The most blocks that are added up before they join the sums.
GROUP: int = compiled.interface()["group"]
#: Bytes of a stretch, to which long runs are folded.
STRETCH_BYTES: int = compiled.interface()["stretch_bytes"]
#: `sum_columns` keeps this many subsums, each of every eighth column, and adds them as a tree.
SUBSUMS = 8


def two_sum(total: Array, lost: Array, term: Array) -> tuple[Array, Array]:
    """The rounded sum, and the sum of all its rounding errors so far."""
    new = total + term
    added = new - total
    return new, lost + ((total - (new - added)) + (term - added))


def _add(case: Case, planes: Array, s: int, term: Array) -> None:
    """Add a term to sum `s`, and the addition's rounding error to that sum's plane of errors."""
    if case.dtype.loses:
        lost = len(planes) // 2 + s
        planes[s], planes[lost] = two_sum(planes[s], planes[lost], term)
    else:
        planes[s] += term


def _tree(terms: Array) -> Array:
    """The sum of up to four rows, as the tree of loops.inc adds them."""
    if len(terms) == 1:
        return np.array(terms[0])
    left = terms[0] + terms[1]
    if len(terms) > 2:
        left = left + (terms[2] + terms[3] if len(terms) == ROWS else terms[2])
    total: Array = left
    return total


def _groups(term: Array, rows: int) -> Iterator[Array]:
    """Sums of groups of trees; a tree adds up a block of `rows` rows."""
    trees = [_tree(term[first : first + rows]) for first in range(0, len(term), rows)]
    for first in range(0, len(trees), GROUP):
        total = trees[first]
        for tree in trees[first + 1 : first + GROUP]:
            total = total + tree
        yield total


def _given(kernel: Kernel, case: Case) -> tuple[SimpleNamespace, SimpleNamespace]:
    """Operands and coefficients by role, but only those that the C table names for this kernel."""
    reads, _, takes = needs(kernel)
    coefs = dict(zip(COEFS, case.coefs, strict=True))
    x = {name: case.dtype.widen(case.operands[name]) for name in reads if name != GATE}
    if GATE in reads:
        x[GATE] = case.operands[GATE] != 0

    def stored(y: Array) -> Array:
        return case.dtype.widen(case.dtype.narrow(y))

    taken = {name: coefs[name] for name in takes}
    return SimpleNamespace(**x, stored=stored), SimpleNamespace(**taken)


def expected(kernel: Kernel, case: Case, rows: int) -> dict[str, Array]:
    """The results for all rows of the operands: bits of what the kernel writes, or sums of blocks.

    A block has `rows` rows; further rows are its repeats.
    """
    pass_, name = kernel
    with np.errstate(all="ignore"):
        x, c = _given(kernel, case)
        if pass_ == "write":
            results = RESULTS[name](x, c)
            return {operand: case.dtype.narrow(values) for operand, values in results.items()}
        planes = case.planes.copy()
        for s, term in enumerate(TERMS[name](x, c)):
            for total in _groups(term, rows):
                _add(case, planes, s, total)
        return {"sums": planes}


def stretch_of(dtype: Dtype) -> int:
    return STRETCH_BYTES // dtype.bits.itemsize


def _fold(term: Array, rows: int, stretch: int) -> Iterator[Array]:
    """Sums of groups of stretches. A group extends over several repeats of `rows` rows only if each
    row is one whole stretch.
    """
    trees = np.array([_tree(term[first : first + rows]) for first in range(0, len(term), rows)])
    width = trees.shape[1]
    lines = np.pad(trees, ((0, 0), (0, -width % stretch))).reshape(len(trees), -1, stretch)
    for line in [lines[:, 0]] if width == stretch else lines:
        for first in range(0, len(line), GROUP):
            total = np.zeros(stretch, term.dtype)
            for tree in line[first : first + GROUP]:
                total = total + tree
            yield total


def folded(formula: str, case: Case, rows: int) -> dict[str, Array]:
    """The case's sums for a stretch, after all rows of the operands are added."""
    with np.errstate(all="ignore"):
        planes = case.planes.copy()
        for s, term in enumerate(TERMS[formula](*_given(("sum", formula), case))):
            for total in _fold(term, rows, planes.shape[1]):
                _add(case, planes, s, total)
        return {"sums": planes}


def sums_of_runs(formula: str, parts: list[tuple[Case, int]], folds: bool) -> Array:
    """A channel's sums, and the rounding errors of each; parts: [(case, rows of a block)]."""
    case = parts[0][0]
    columns = stretch_of(case.dtype) if folds else case.operands["src"].shape[-1]
    planes = np.zeros((2 * SUMS[formula], columns))
    for case, rows in parts:
        part = replace(case, planes=planes)
        whole = folded(formula, part, rows) if folds else expected(("sum", formula), part, rows)
        planes = whole["sums"]
    with np.errstate(all="ignore"):
        return sum_columns(case, planes)


def add_sums(case: Case, planes: Array, other: Array) -> None:
    """Add the sums of one part to those of another."""
    sums = len(planes) // 2
    for s in range(sums):
        _add(case, planes, s, other[s])
        if case.dtype.loses:
            planes[sums + s] += other[sums + s]


def sum_columns(case: Case, planes: Array) -> Array:
    """A channel's sums, and the rounding errors of each, from those of all its columns."""
    sums, columns = len(planes) // 2, planes.shape[1]
    padded = np.pad(planes, ((0, 0), (0, -columns % SUBSUMS)))
    subsums = np.zeros((len(planes), SUBSUMS))
    for at in range(0, columns, SUBSUMS):
        add_sums(case, subsums, padded[:, at : at + SUBSUMS])
    while subsums.shape[1] > 1:
        subsums, other_half = np.hsplit(subsums, 2)
        # Earlier rounding errors are added first.
        subsums[sums:] += other_half[sums:]
        for s in range(sums):
            _add(case, subsums, s, other_half[s])
    return subsums[:, 0]


def expand(channel: Array, times: int, n: int, paired: bool = False) -> Array:
    """Lay out n columns: each channel's value `each` times, then again from the first channel on.

    In a ring of a paired dtype, all even columns come before the odd ones.
    """
    columns = channel[..., np.arange(n) // times % channel.shape[-1]]
    if not paired:
        return columns
    return np.concatenate([columns[..., ::2], columns[..., 1::2]], axis=-1)
