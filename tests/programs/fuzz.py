"""Random problems for some time: the bits must be the plainest call's, and memory must stay flat.

    python tests/programs/fuzz.py 600    from one thread, at random levels, with random cache sizes
    python tests/programs/fuzz.py 600 4  from four threads at once

Arrays lie anyhow in memory, vectors have any dtypes, and the caller any floating-point mode. The
plainest call gets dense copies in src's order of axes, at the lowest level, on one thread. No other
byte may change. Run by the jobs fuzz, with sanitizers, and soak, and for a few problems by
test_same_bits.py. Other tests check that the plainest call is right.
"""

import copy
import math
import os
import pickle
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

import bn_ext
from bn_ext import _core

sys.path.append(str(Path(__file__).parent.parent / "shared"))
import members
from cases import DATA_DTYPES, FORMATS, full_order, placed
from fp_modes import FP_MODES, fp_mode
from members import MEMBERS

#: Resident memory may grow by this much after the first tenth: malloc's arenas, not a leak.
SLACK = 48 << 20
CACHES = [1 << 12, 1 << 16, 1 << 20, 1 << 30]
MOST_ELEMENTS, MOST_CHANNELS = 60_000, 600
#: Vectors whose dtype no result has.
WIDENED = ["mean", "variance", "beta", "diff_diff_gamma", "diff_diff_beta"]


def dims(rng, axis):
    longest = [4, 20, 300, 9000]
    lengths = [1 + int(rng.integers(rng.choice(longest))) for _ in range(rng.integers(2, 7))]
    lengths[axis] = min(lengths[axis], MOST_CHANNELS)
    if rng.random() < 0.3:  # whole cache lines: rows of views may need no copies
        lengths[axis] = max(32, lengths[axis] // 32 * 32)
    while math.prod(lengths) > MOST_ELEMENTS:  # NumPy's product may overflow
        most = np.argmax(lengths)
        lengths[most] = (lengths[most] + 1) // 2
    return tuple(lengths)


def of_some_kind(rng, array, axis):
    """Numbers as they are, few bits, any bits, or each channel with a scale of its own."""
    kind = rng.integers(4)
    with np.errstate(all="ignore"):
        if kind == 1:
            array = np.round(array.astype(float) * 8)
        elif kind == 2:
            bits = rng.integers(0, 2 ** (8 * array.itemsize), array.shape, f"u{array.itemsize}")
            array = np.where(rng.random(array.shape) < 1 / 16, bits.view(array.dtype), array)
        elif kind == 3:
            top = 1023 if array.itemsize == 8 else 15 if array.dtype == np.float16 else 127
            channels = np.moveaxis(np.zeros(array.shape), axis, -1)[..., :1]
            powers = top * rng.choice([0, 0.8, 0.95, -0.8], array.shape[axis])
            wide = np.ldexp(np.moveaxis(array.astype(float), axis, -1), powers.astype(int))
            wide += rng.choice([0, 0, 1000], array.shape[axis]) + 0 * channels
            array = np.moveaxis(wide, -1, axis)
            array.flat[rng.integers(array.size)] = rng.choice([1, np.nan, np.inf])
    return array


def anyhow(rng, array, order, *, read_only=True):
    """(a view of these values, its memory): not aligned, with gaps and flipped axes; if it is only
    read, sometimes with elements in one place.
    """
    if rng.random() < 0.25:
        order = rng.permutation(array.ndim)
    strides, step = [0] * array.ndim, array.itemsize * int(rng.choice([1, 1, 1, 2, 3]))
    for axis in reversed(order):
        strides[axis] = -step if rng.random() < 1 / 6 else step
        step = step * array.shape[axis] + array.itemsize * int(rng.choice([0, 0, rng.integers(6)]))
    before = int(rng.integers(64))
    memory = np.full(before + step + 64 * int(rng.integers(2)), 0xA5, np.uint8)
    before -= sum((n - 1) * s for n, s in zip(array.shape, strides, strict=True) if s < 0)
    dims, dtype = array.shape, array.dtype
    if read_only and rng.random() < 0.1:
        axis = rng.integers(array.ndim)
        strides[axis] = 0
        array = array.take([0], axis)
    view = np.ndarray(dims, dtype, memory, before, strides)
    view[...] = array
    return view, memory


class Case:
    """A member of the family with a random problem, its options, and arrays that lie anyhow."""

    def __init__(self, rng, name):
        data, vector, data_format = map(str, map(rng.choice, (*[DATA_DTYPES] * 2, [*FORMATS])))
        axis = FORMATS[data_format]
        self.member, self.name = MEMBERS[name], name
        p = members.problem(rng, dims(rng, axis), data_format, data, vector)
        order = rng.permutation(p.src.ndim) if rng.random() < 0.5 else np.arange(p.src.ndim)
        self.tensors, self.read, self.out = {}, {}, None
        for n in self.member.reads:
            with np.errstate(all="ignore"):
                values = of_some_kind(rng, getattr(p, n), axis).astype(p.src.dtype)
            self.tensors[n], self.read[n] = anyhow(rng, values, order)
        if rng.random() < 0.2:
            special = getattr(p, rng.choice(["mean", "variance", "gamma"]))
            special[rng.integers(len(special))] = rng.choice([0, np.inf, np.nan])
        self.plain, self.p = p, copy.copy(p)
        for n, a in {**vars(p)}.items():
            if isinstance(a, np.ndarray) and a.shape == p.mean.shape and n != "workspace":
                wide = rng.choice([a.dtype.name, "f4", "f8"]) if n in WIDENED else a.dtype
                wide = a.astype(np.promote_types(a.dtype, wide))
                vector, self.read[n] = anyhow(rng, wide, [0])
                setattr(self.p, n, vector)
                setattr(self.plain, n, vector.astype(a.dtype))
        if rng.random() < 0.7:
            self.out = [self.result(rng, like, order) for like in self.member.like(self.p)]
        self.options = {"is_training": bool(rng.integers(2)), "summed": bool(rng.integers(2))}
        self.threads, self.mode = int(rng.integers(1, 17)), str(rng.choice([*FP_MODES]))

    def result(self, rng, like, order):
        """None, or (an array for a result, its memory): of its own, or an operand's."""
        if rng.random() < 0.2:
            return None
        if like.ndim == 1:
            return anyhow(rng, like, [0], read_only=False)
        place = str(rng.choice(self.member.reads))
        if rng.random() < 0.2 and place in self.read and 0 not in self.tensors[place].strides:
            return self.tensors[place], self.read.pop(place)
        return anyhow(rng, like, order, read_only=False)

    def plainly(self):
        order = full_order(self.tensors["src"])
        dense = {n: placed(a, order=order) for n, a in self.tensors.items()}
        return self.bits(self.plain, dense, num_threads=1)[1]

    def bits(self, p, tensors, **options):
        """The results; and the bits of these, and of the sums as an object, which has the mean."""
        kinds, pickled = {"backward": "GradientSums", "training": "Statistics"}, []
        kind = kinds.get(self.member.function)
        if kind and "workspace" not in self.member.arrays:
            arguments = self.member.arguments(p, **options) | tensors | {"mean": self.plain.mean}
            sums = members.function_of(kind)(**members.taken_by(kind, arguments))
            pickled.append(pickle.dumps(sums))
        with np.errstate(invalid="ignore"):
            results, bits = self.member.run(p, tensors, **self.options, **options)
        return results, [*pickled, *bits]

    def wrong(self, expected):
        before = {n: memory.copy() for n, memory in self.read.items()}
        out = None if self.out is None else [made and made[0] for made in self.out]
        with fp_mode(self.mode):
            results, bits = self.bits(self.p, self.tensors, num_threads=self.threads, out=out)
        if bits != expected:
            return "other bits"
        order = full_order(self.tensors["src"])
        for array, made in zip(results, out or [None] * len(results), strict=True):
            if array.ndim > 1 and made is None and not array.transpose(order).flags.c_contiguous:
                return "another order"
        changed = any((memory != before[n]).any() for n, memory in self.read.items())
        for view, memory in filter(None, self.out or ()):
            view[...] = np.full(view.itemsize, 0xA5, np.uint8).view(view.dtype)[0]
            changed |= (memory != 0xA5).any()
        return "other bytes changed" if changed else ""

    def __str__(self):
        src = self.tensors["src"]
        parts = self.name, src.dtype.name, src.shape, src.strides, self.p.data_format
        return f"{parts} {self.options} {self.threads} threads, {self.mode}"


def check(rng, name, alone):
    if alone:
        _core.use_isa(bn_ext.available_isas()[0])
    case = Case(rng, name)
    expected = case.plainly()
    if alone:
        _core.use_isa(str(rng.choice(bn_ext.available_isas())))
        _core.set_cache_sizes(*rng.choice(CACHES, 2).tolist())
    wrong = case.wrong(expected)
    assert not wrong, f"{wrong}: {bn_ext.get_isa()} {case}"


def call_until(end, seed, alone):
    rng, count = np.random.default_rng(seed), 0
    while time.monotonic() < end:
        check(rng, str(rng.choice([*MEMBERS])), alone)
        count += 1
    return count


def resident():
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE")


def main(seconds, callers):
    end = time.monotonic() + seconds
    with ThreadPoolExecutor(callers) as pool:
        calls = [pool.submit(call_until, end, seed, callers == 1) for seed in range(callers)]
        time.sleep(seconds / 10)
        settled = most = resident()
        while not all(call.done() for call in calls):
            time.sleep(0.5)
            most = max(most, resident())
    problems = sum(call.result() for call in calls)
    print(
        f"{problems} problems in {seconds:.0f} s from {callers} threads; resident "
        f" {settled >> 20} MiB after a tenth of it, {most >> 20} MiB at most"
    )
    grew = callers > 1 and most > settled + SLACK  # alone, it runs with sanitizers
    if grew:
        print("memory grew")
    return int(grew)


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]), int([*sys.argv, 1][2])))
