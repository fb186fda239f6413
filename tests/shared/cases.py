"""Problems for the tests: one dtype table, operands by name, arrays of any layout and place."""

import copy
import pickle
from concurrent.futures import ThreadPoolExecutor

import ml_dtypes
import numpy as np

import bn_ext
from bn_ext import _core
from bn_ext.testing._limits import arithmetic

DATA_DTYPES = list(_core.DTYPES)


#: (data dtype, vector dtype), as published operators pair them.
DTYPES = [(data, vector) for data in DATA_DTYPES for vector in {arithmetic(data): 0, data: 0}]
#: data_format -> channel axis
FORMATS = {"NXC": -1, "NCX": 1}
#: Names of array arguments, and of the results, of the general function, batch_norm_backward.
TENSORS = ["src", "diff_dst"]
VECTORS = ["mean", "variance", "gamma"]
INPUTS = [*TENSORS, *VECTORS]
OUTPUTS = list(bn_ext.BatchNormGradients._fields)
EPSILON = 0.037  # matters next to a variance of about 1


def dtype(name):
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


#: A dtype of texts; in NumPy 2, one of those that have no byte order.
TEXTS = getattr(np.dtypes, "StringDType", lambda: np.dtype("U1"))()
SHORT = [name for name in DATA_DTYPES if dtype(name).itemsize == 2]


#: Ways to copy an object.
COPIES = {"copy": copy.copy, "deepcopy": copy.deepcopy}
for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
    COPIES[f"pickle {protocol}"] = lambda x, n=protocol: pickle.loads(pickle.dumps(x, n))


def bits(array):
    return np.ascontiguousarray(array).tobytes()


def all_bits(grads):
    return [None if a is None else (a.dtype, a.shape, bits(a)) for a in grads]


def shapes(text, data_format=None):
    """Shapes such as "6x5 2x3x4", or such pairs as ((6, 5), data_format)."""
    dims = [tuple(map(int, word.split("x"))) for word in text.split()]
    return [(shape, data_format) for shape in dims] if data_format else dims


def shape(n, c, x, data_format):
    return (n, x, c) if data_format == "NXC" else (n, c, x)


class Problem:
    """Arguments of the general function, by name."""

    def __init__(
        self, rng, shape, data_format, data="float32", vector=None, *, ratio=1.0, statistics="given"
    ):
        """Random data with |mean|/std = ratio; the batch's own statistics or arbitrary ones."""
        self.data_format, self.axis = data_format, FORMATS[data_format]
        channels = shape[self.axis]
        vector = dtype(vector or arithmetic(data))
        self.src = (rng.standard_normal(shape, np.float32) + np.float32(ratio)).astype(dtype(data))
        self.diff_dst = rng.standard_normal(shape, np.float32).astype(dtype(data))
        if statistics == "batch":
            axes = tuple(i for i in range(len(shape)) if i != self.axis % len(shape))
            self.mean = self.src.mean(axis=axes, dtype=np.float64).astype(vector)
            self.variance = self.src.var(axis=axes, dtype=np.float64).astype(vector)
        else:
            self.mean = (rng.standard_normal(channels) + ratio).astype(vector)
            self.variance = rng.uniform(0.3, 2, channels).astype(vector)
        self.gamma = (rng.uniform(0.5, 2, channels) * rng.choice([-1, 1], channels)).astype(vector)

    def vectors(self):
        return self.mean, self.variance, self.gamma

    def arguments(self):
        return {name: getattr(self, name) for name in INPUTS}

    def run(self, function, *tensors, **options):
        """Call the general function or the reference, with some arguments changed."""
        arguments = self.arguments() | dict(zip(TENSORS, tensors, strict=False))
        arguments |= {name: options.pop(name) for name in options.keys() & {*INPUTS}}
        return function(*arguments.values(), **self.options(options))

    def options(self, changed):
        """Options of a call: epsilon, and the layout; the reference is given an axis instead."""
        layout = {} if "axis" in changed else {"data_format": self.data_format}
        return {"epsilon": EPSILON, **layout, **changed}


class Family(Problem):
    """A problem for all members of the family: gradient, forward passes, double backward."""

    def __init__(self, rng, shape, data_format, data="float32", vector=None, **options):
        super().__init__(rng, shape, data_format, data, vector, **options)
        kind, channels = self.mean.dtype, len(self.mean)
        self.beta = rng.standard_normal(channels).astype(kind)
        self.src_1 = rng.standard_normal(shape, np.float32).astype(self.src.dtype)
        self.diff_diff_src = rng.standard_normal(shape, np.float32).astype(self.src.dtype)
        self.diff_diff_gamma = rng.standard_normal(channels).astype(kind)
        self.diff_diff_beta = rng.standard_normal(channels).astype(kind)
        self.running_mean = rng.standard_normal(channels).astype(np.float32)
        self.running_variance = rng.uniform(0.3, 2, channels).astype(np.float32)

    @property
    def count(self):
        return self.src.size // max(1, len(self.mean))

    def take(self, function, *names, **options):
        arguments = (getattr(self, name) for name in names)
        return function(*arguments, **self.options(options))


def packed(gate, like, data_format):
    """A gate as the workspace has it: a bit per element in like's memory order, low bits first;
    then that order, a byte for each axis, and what tells the shape.
    """
    order, channels = full_order(like), 1 if data_format == "NCX" else like.ndim - 1
    passes = np.packbits(gate.transpose(order).ravel(), bitorder="little")
    return np.append(passes, order_bytes(like.shape, order, channels))


def order_bytes(shape, order, channels):
    """What is behind the bits of a workspace: the order, in a byte for each axis, then a hash."""
    mark, low = 0, 2**64 - 1
    for number in (channels, *shape):
        mark = (mark ^ number) + 0x9E3779B97F4A7C15 & low
        mark = (mark ^ mark >> 30) * 0xBF58476D1CE4E5B9 & low
        mark = (mark ^ mark >> 27) * 0x94D049BB133111EB & low
        mark ^= mark >> 31
    return np.array([*order, *mark.to_bytes(8, "little")], np.uint8)


def placed(array, memory="contiguous", offset=0, order=None):
    """A copy of array whose axes lie in `order` (slowest first; None: 0, 1, ...), starting `offset`
    bytes past a cache line.

    memory: "contiguous"; "gaps" after every axis; "backwards" along the slowest axis; "spread" over
    every other element. None of these changes the order of axes.
    """
    order = range(array.ndim) if order is None else order
    source = array.transpose(order)
    pad = {"gaps": 3}.get(memory, 0)
    step = {"spread": 2}.get(memory, 1)
    room = [n + pad for n in source.shape]
    room[-1] *= step
    raw = np.zeros(int(np.prod(room)) * array.itemsize + offset + 64, np.uint8)
    start = -raw.ctypes.data % 64 + offset
    whole = raw[start : start + int(np.prod(room)) * array.itemsize]
    whole = whole.view(array.dtype).reshape(room)
    if memory == "backwards":
        whole = whole[::-1]
    view = whole[(*(slice(n) for n in source.shape[:-1]), slice(0, step * source.shape[-1], step))]
    view[...] = source
    return view.transpose(np.argsort(order))


def axis_order(array):
    """As in axes.c: no axis of length 1; |stride| descending, ties as given; stride 0 stays put."""
    axes = [axis for axis in range(array.ndim) if array.shape[axis] > 1]
    moving = [axis for axis in axes if array.strides[axis] != 0]
    order = iter(sorted(moving, key=lambda axis: -abs(array.strides[axis])))
    return [axis if array.strides[axis] == 0 else next(order) for axis in axes]


def full_order(array):
    """axis_order, then the axes of length 1, whose place does not matter."""
    order = axis_order(array)
    return [*order, *(axis for axis in range(array.ndim) if axis not in order)]


LARGE = (5000, 4, 64)  # 1.3 M elements: worth 26 threads


def in_thread(function):
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(function).result()


def threads_used(p, **options):
    def used():
        p.run(bn_ext.batch_norm_backward, **options)
        return _core.last_call()["threads"]

    return used() if "num_threads" in options else in_thread(used)


def are_expected(threads, asked, tasks):
    """Does a call that asks for `asked` threads use `threads`?"""
    return threads == (min(asked, tasks) if _core.has_openmp() else 1)


def team_of(asked):
    """The number of threads of this thread's last call, which asked for so many: a test of teams
    collects them, and is worth nothing below two. Without OpenMP, what it asked for.
    """
    threads, tasks, _ = _core.last_call().values()
    assert are_expected(threads, asked, tasks)
    return threads if _core.has_openmp() else asked


def mixed_bits(seed, num_threads=None):
    """Bits of a small gradient; the seed sets form, dtype and mode. Other processes import this."""
    data_format = list(FORMATS)[seed % 2]
    shape = [(300, 70), (40, 9, 50), (9, 3, 700), (2, 3, 2000), (200, 3, 5, 7)][seed % 5]
    p = Problem(np.random.default_rng(seed), shape, data_format, DTYPES[seed % len(DTYPES)][0])
    options = {"data_format": data_format, "is_training": seed % 3 != 0}
    return all_bits(p.run(bn_ext.batch_norm_backward, num_threads=num_threads, **options))
