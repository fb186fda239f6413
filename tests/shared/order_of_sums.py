"""The order of every sum, in NumPy: from a shape and a dtype to the bits of a call's two sums.

For dense arrays, it repeats src_c/call/order.c and sum.c, in order.c's terms. The order depends on
shape and dtype alone. The arithmetic of one block is in oracle/arithmetic.py.
"""

import numpy as np
from oracle import formulas
from oracle.arithmetic import add_sums, expected, folded, stretch_of, sum_columns
from oracle.formulas import COEFS
from oracle.values import Case

SUMS = formulas.SUMS["gradients"]
PLANES = 2 * SUMS  # sums, and what each of them lost
ROWS = 4  # of a block, and strands of a chunk
SHORTEST_STRAND, LONGEST_STRAND, STRAND_BYTES = 33, 129, 128 << 10
TASKS = 64
SHORTEST_CHUNK, LONGEST_CHUNK, CHUNK_UNIT = 4096, 16384, 1024


def blocks_of_strands(n):
    """For n rows, yield (how many rows a block has, the rows of all such blocks in order)."""
    if n == 0:  # no full row; the caller adds the incomplete one
        return
    length = -(-n // ROWS)
    strands = -(-n // length)
    last = n - (strands - 1) * length
    for from_, end, rows in ((0, last, strands), (last, length, strands - 1)):
        yield rows, [k * length + g for g in range(from_, end) for k in range(rows)]


class Columns:
    """A chunk's sums, column by column."""

    def __init__(self, dtype, mean):
        """`mean`: the mean of each column."""
        self.dtype, self.coefs = dtype, np.zeros((len(COEFS), len(mean)), dtype.number)
        self.coefs[COEFS.index("mean")] = mean
        self.planes = np.zeros((PLANES, len(mean)))

    def case(self, columns, operands):
        return Case(self.dtype, operands, self.coefs[:, :columns], self.planes[:, :columns])

    def blocks(self, rows, src, diff_dst):
        """Add the operands' rows, in blocks of `rows`, to the sums of the first columns."""
        if len(src):
            columns = src.shape[1]
            case = self.case(columns, {"src": src, "diff_dst": diff_dst})
            terms = expected(("sum", "gradients"), case, rows)
            self.planes[:, :columns] = terms["sums"]

    def strands(self, *operands):
        """Add (rows, columns) operands: block g has row g of each of up to four strands."""
        for rows, order in blocks_of_strands(len(operands[0])):
            self.blocks(rows, *(a[order] for a in operands))

    def fold(self, rows, src, diff_dst):
        """Fold blocks of `rows` rows each; rows have any number of elements."""
        if src.size:
            operands = {"src": src, "diff_dst": diff_dst}
            case = Case(self.dtype, operands, self.coefs[:, :1], self.planes)
            self.planes = folded("gradients", case, rows)["sums"]

    def add(self, columns, other):
        with np.errstate(all="ignore"):
            add_sums(self.case(columns, {}), self.planes[:, :columns], other)

    def channels(self, columns):
        """Add up the columns of each channel, which are neighbors: (PLANES, channels)."""
        sums = []
        for own in np.split(self.planes, self.planes.shape[1] // columns, axis=1):
            case = Case(self.dtype, {}, self.coefs, own)
            with np.errstate(all="ignore"):
                sums.append(sum_columns(case, own))
        return np.array(sums).T


def channels_last(dtype, mean, *operands):
    """Operands are (positions, channels)."""
    positions, channels = operands[0].shape
    together = 1  # positions per row
    if channels < 128:
        unit = 32 // np.gcd(channels, 32)
        together = min(unit * -(-256 // (unit * channels)), positions)
    rows, whole = -(-positions // together), positions // together
    row_bytes = together * channels * dtype.bits.itemsize
    strand = min(STRAND_BYTES // row_bytes, rows // (TASKS * ROWS), LONGEST_STRAND)
    chunk = ROWS * (max(strand, SHORTEST_STRAND) | 1)
    for first in range(0, rows, chunk):
        sums, end = Columns(dtype, np.tile(mean, together)), min(first + chunk, rows)
        full = [a[first * together : min(end, whole) * together] for a in operands]
        sums.strands(*(a.reshape(-1, together * channels) for a in full))
        if end > whole:
            sums.strands(*(a[whole * together :].reshape(1, -1) for a in operands))
        left = together
        while left > 1:  # add the upper half of the positions to the lower one
            upper, half = left - left // 2, left // 2
            sums.add(half * channels, sums.planes[:, upper * channels : left * channels].copy())
            left = upper
        yield sums.planes[:, :channels]


def short_runs(dtype, mean, *operands):
    """Operands are (positions, channels, run)."""
    positions, _, run = operands[0].shape
    chunk = ROWS * SHORTEST_STRAND
    for first in range(0, positions, chunk):
        sums = Columns(dtype, np.repeat(mean, run))
        sums.strands(*(a[first : first + chunk].reshape(-1, len(mean) * run) for a in operands))
        yield sums.channels(run)


def long_runs(dtype, mean, *operands):
    """Operands are (positions, channels, run); runs are folded into stretches."""
    positions, channels, run = operands[0].shape
    length = min(run // -(-TASKS // channels), LONGEST_CHUNK)
    length = max(length, SHORTEST_CHUNK, LONGEST_CHUNK // positions)
    length = -(-length // CHUNK_UNIT) * CHUNK_UNIT
    chunk = ROWS * SHORTEST_STRAND
    for first in range(0, positions, chunk):
        for x in range(0, run, length):
            part = [a[first : first + chunk, :, x : x + length] for a in operands]
            yield of_each_channel(dtype, mean, part)


def of_each_channel(dtype, mean, operands):
    by_channel, walk = [], one_behind_the_other if len(operands[0]) == 1 else abreast
    for c, m in enumerate(mean):
        sums = Columns(dtype, np.full(stretch_of(dtype), m))
        walk(sums, *(a[:, c] for a in operands))
        by_channel.append(sums.channels(stretch_of(dtype)))
    return np.hstack(by_channel)


def one_behind_the_other(sums, *operands):
    """One run: rows are stretches, four to a block; what is left is one row."""
    block = ROWS * stretch_of(sums.dtype)
    whole = operands[0].shape[1] // block * block
    sums.fold(ROWS, *(a[0, :whole].reshape(-1, block // ROWS) for a in operands))
    sums.fold(1, *(a[:, whole:] for a in operands))


def abreast(sums, *operands):
    """A block's rows are runs, one from each strand."""
    for rows, order in blocks_of_strands(len(operands[0])):
        sums.fold(rows, *(a[order] for a in operands))


def merged(positions, channels, run):
    """The shape that is cut into chunks: with a single channel, all axes are its run."""
    return (positions, channels, run) if channels > 1 else (1, 1, positions * run)


def form_of(*shape):
    """The function that cuts a problem of this shape into chunks."""
    positions, _, run = merged(*shape)
    if run == 1:
        return channels_last
    return short_runs if run < max(48, min(16 * positions, 256)) else long_runs


def sums_of(dtype, src, diff_dst, mean):
    """(2, channels): sum(dy), sum(dy * xc), from the operands' bits, (positions, channels, run)."""
    form, channels = form_of(*src.shape), src.shape[1]
    operands = [a.reshape(merged(*a.shape)) for a in (src, diff_dst)]
    if form is channels_last:
        operands = [a[:, :, 0] for a in operands]
    total = Columns(dtype, mean)
    for chunk in form(dtype, mean, *operands):
        total.add(channels, chunk)
    sums, lost = total.planes[:SUMS], total.planes[SUMS:]
    return sums + lost if dtype.loses else sums
