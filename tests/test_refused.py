"""The table of refused calls: functions, what is changed in a call, the error and its message.

Of each row, refusals.py checks more: nothing is written. test_sharing.py has every way to share
memory, test_specs.py what operators of a specification refuse in words of their own.
"""

import array
import re
from importlib.util import find_spec
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest
from cases import DATA_DTYPES, EPSILON, INPUTS, TENSORS, TEXTS, VECTORS, dtype, order_bytes
from members import AFFINE, SECOND
from needs import LONG_DOUBLE
from refusals import OPERANDS, RESULTS, as_out, four, outs, read_only, refused, takes

import bn_ext

pytestmark = [pytest.mark.fast, pytest.mark.results, pytest.mark.any_level]


class Row(NamedTuple):
    names: list[str]
    kind: type | tuple[type, ...]
    message: str
    #: Argument -> value, or a function of the problem that makes it.
    change: dict[str, Any]


def row(names, kind, message, **change):
    return Row([names] if isinstance(names, str) else [*names], kind, message, change)


def rows(names, kind, argument, message, *values, **change):
    """A row for each value of an argument, whose name begins the message."""
    message = f"^{argument}: {message}"
    return [row(names, kind, message, **change, **{argument: value}) for value in values]


def take(name, change=lambda a: a):
    return lambda q: change(getattr(q, name))


def swapped(a):
    return a.astype(a.dtype.newbyteorder())


ANY, ERRORS = [*OPERANDS], (TypeError, ValueError)
TRAINING, FORWARD, BACKWARD = ["training"], ["training", "inference"], ["backward"]
GATED, WITH_WORKSPACE = ["backward", "GradientSums"], ["backward", *FORWARD]
#: Operands of src's shape, src first.
LIKE_SRC = [*TENSORS, "diff_diff_src"]


def ones(*shape):
    return np.ones(shape, np.float32)


class Odd:
    """An object with these attributes; functions become methods."""

    def __new__(cls, **attributes):
        return object.__new__(type("Odd", (), attributes))


def fail(error, text=""):
    def method(self, *_, **__):
        raise error(text)

    return method


class Lying(np.ndarray):
    """Says of itself what `lies` has."""

    lies: dict[str, Any] = {}  # noqa: RUF012

    def __getattribute__(self, name):
        lies = type(self).lies
        return lies[name] if name in lies else super().__getattribute__(name)


def lie(a, **lies):
    """A view of an array in the middle of memory that no call may change."""
    memory = np.full(a.nbytes + 8192, 0xA5, np.uint8)
    inside = memory[4096:-4096].view(a.dtype).reshape(a.shape)
    inside[...] = a
    inside.flags.writeable = a.flags.writeable
    return inside.view(type("Lying", (Lying,), {"lies": lies}))


def endless():
    a = []
    a += [a, a]
    return a


def shared(depth=60):
    """2^60 elements, if they were counted."""
    a = [1.0]
    for _ in range(depth):
        a = [a, a]
    return a


UNTOLD = Odd(__repr__=fail(KeyError))
MASKED = np.ma.masked_equal([1.0, 2.0], 2)
GOT_TEXTS = re.escape(str(TEXTS))
BF16 = np.dtype(ml_dtypes.bfloat16)
MASK_BEHIND = Odd(__array__=lambda self, *_, **__: MASKED)
FALSE_BF16 = np.dtype((type("bfloat16", (np.void,), {}), 2))
SILENT = Odd(__class__=property(fail(KeyError, "none of your business")))
ON_DEVICE = Odd(__cuda_array_interface__=(), __array__=fail(AssertionError))
TORCHS = Odd(dtype="torch.bfloat16", __array__=fail(TypeError, "it does not want to"))
PRETENDER = Odd(__class__=np.ndarray, dtype=np.dtype(np.float32), shape=(5,), ndim=1, nbytes=20)


SHAPES = {
    "src": [(), (5,), (0,)],
    "tensor": [(6, 4), (6, 4, 5, 1), (6, 4, 6), (5, 4, 5), (6, 20), (0, 4, 5), (), (5,)],
    "vector": [(4,), (6,), (), (1,), (5, 1), (1, 5), (0,)],
}
WIDER = [np.longdouble] * LONG_DOUBLE
WRONG_DTYPES = ["int32", "uint8", "bool", "complex64", "object", *WIDER]
LOST = "masked arrays are not accepted, because the mask would be lost"


@np.errstate(invalid="ignore")  # what a negative number becomes does not matter
def cast(a, kind):
    return a.astype(kind)


def of_operand(name, operand):
    like = "src" if operand == "src" else "tensor" if operand in LIKE_SRC else "vector"
    for dims in SHAPES[like]:
        wrong = take(operand, lambda a, dims=dims: np.ones(dims, a.dtype))
        yield from rows(name, ValueError, operand, f".*got (shape )?{re.escape(str(dims))}", wrong)
    for kind in WRONG_DTYPES:
        wrong = take(operand, lambda a, kind=kind: cast(a, kind))
        yield from rows(name, TypeError, operand, f".*float.*, got {np.dtype(kind)}", wrong)
    strings = np.full(3, "1", TEXTS)
    yield from rows(name, TypeError, operand, rf"expected float.*, got {GOT_TEXTS}$", strings)
    order = rf"expected native byte order, got .f4; pass np.asarray\({operand}, np.float32\)$"
    yield from rows(name, TypeError, operand, order, take(operand, swapped))
    no_array = [np.array("a"), "abc", b"abc", 1.0, np.float32(1), object(), {1: 2}, range(3)]
    no_array += [] if operand in [*AFFINE, *SECOND[1:]] else [None]
    yield from rows(name, TypeError, operand, "expected ", *no_array)
    if operand in LIKE_SRC[1:]:
        wide = take(operand, lambda a: a.astype(np.float64))
        yield from rows(name, TypeError, operand, "expected float32, like src, got float64", wide)
    masked = take(operand, lambda a: np.ma.masked_greater(a, 0))
    named = rf"{LOST}; pass {operand}.filled\(value\)$"
    yield from rows(name, TypeError, operand, named, masked)
    yield from rows(name, TypeError, operand, f"{LOST}$", [MASKED], MASK_BEHIND)
    moved = "this .*Odd cannot be viewed as a NumPy array: it is not in CPU memory; copy it"
    yield from rows(name, TypeError, operand, moved, ON_DEVICE)
    yield from rows(name, TypeError, operand, "expected ", PRETENDER)


def out_with(name, k, change):
    def make(q):
        good = outs(q, name)
        return as_out(name, [*good[:k], change(q, good[k]), *good[k + 1 :]])

    return make


def of_result(name, k, result):
    like_src = RESULTS[name][result] == "src"
    which = f"{result} in out" if len(RESULTS[name]) > 1 else "out"
    for operand in OPERANDS[name]:
        if (operand in LIKE_SRC) == like_src:
            turned = out_with(name, k, lambda q, _, operand=operand: getattr(q, operand)[::-1])
            allowed = r" \(allowed: exactly the memory of .*\)" if like_src else ""
            message = f"^{which}: shares memory with {operand}{allowed}$"
            yield row(name, ValueError, message, out=turned)
    for message, change in {
        "expected dtype float32.*, got int32": lambda _, a: a.astype(np.int32),
        f"expected dtype float32.*, got {GOT_TEXTS}": lambda _, a: a.astype(TEXTS),
        "expected dtype float32.*, got int16$": lambda _, a: lie(
            a.astype(np.int16), dtype=np.dtype(np.float32), itemsize=4
        ),
        "expected shape": lambda _, a: a[:-1],
        "expected shape .*": lambda _, a: lie(
            a[:2], shape=a.shape, strides=a.strides, ndim=a.ndim, size=a.size
        ),
        "expected a writable array": lambda _, a: read_only(a),
        "expected a writable array, .*": lambda _, a: lie(
            np.frombuffer(bytes(a.nbytes), a.dtype).reshape(a.shape), flags=np.empty(1).flags
        ),
    }.items():
        yield row(name, ValueError, f"^{which}: {message}", out=out_with(name, k, change))
    for kind, change in (
        (TypeError, lambda _, a: a.tolist()),
        (TypeError, lambda _, a: "abc"),
        (ERRORS, lambda _, a: PRETENDER),
        ("masked", lambda _, a: np.ma.masked_array(a)),
    ):
        message = f"^{which}: expected (a numpy.ndarray|dtype float)"
        if kind == "masked":
            kind, message = TypeError, f"^{which}: masked arrays .* pass its data attribute$"
        yield row(name, kind, message, out=out_with(name, k, change))
    message = rf"^out: expected \({', '.join(RESULTS[name])}\), .*, got "
    if len(RESULTS[name]) > 1 and k == 0:
        yield from rows(name, TypeError, "out", message[6:], np.zeros((3, 5)), 1, "abc")
        for n in (0, 1, 2, 4):
            yield row(name, ValueError, f"{message}a sequence of length {n}$", out=(None,) * n)


OF_ARRAYS = []
for name, operands in OPERANDS.items():
    for operand in operands:
        OF_ARRAYS += of_operand(name, operand)
for name, results in RESULTS.items():
    for k, result in enumerate(results):
        OF_ARRAYS += of_result(name, k, result)

NUMBER = [None, "1e-3", b"1", [1.0], 1j, object(), np.complex128(1), np.array(1j), np.ones(1)]
NUMBER += [np.timedelta64(1, "s"), np.array("1e-3", object), np.array("1e-3"), np.ones(2)]
NUMBER += [np.void(b"12"), shared(), UNTOLD]
FLAG = ["False", None, 2, -1, 1.0, np.array(True), np.zeros(2, bool), np.timedelta64(1, "s")]
FLAG += [[], "x" * 10_000, shared()]
FORMAT = ["NWHC", "nxc", "", 3, ["NXC"], np.array(["NXC", "NCX"]), "x" * 10_000, shared()]
FOUR = ["running_mean", "running_variance", "exponential_avg_factor", "correction"]
WITH_EPSILON = [*RESULTS]
OF_OPTIONS = [
    *rows(WITH_EPSILON, TypeError, "epsilon", "expected a real number, got", *NUMBER),
    *rows(WITH_EPSILON, ValueError, "epsilon", "expected a finite number >= 0, got",
          -1e-9, np.inf, -np.inf, np.nan, 10**400, 10**5000),
    *rows(ANY, TypeError, "num_threads", "expected an integer or None, got",
          1.0, "2", [1], 2.5, shared()),
    *rows(ANY, ValueError, "num_threads", "expected at least 1, got",
          0, -1, -(2**70), -(10**400), -(10**5000)),
    *rows(ANY, ValueError, "data_format",
          "expected 'NXC' or 'NCX', or a name .* such as 'NHWC' or 'NCHW', got", *FORMAT),
    *rows(ANY, ValueError, "data_format",
          r".* src has shape \(6, 4, 5\); it is missing and has no default$", None),
    *rows(ANY, ValueError, "data_format",
          r"expected a format for 3 axes, since src has shape .*, got one for [245];",
          "NC", "NHWC", "NCHW", "NDHWC", "NCDHW"),
    *(row for flag in ("is_training", "param_grads", "relu", "diff_src_1", "exact")
      for row in rows(ANY, TypeError, flag, "expected True or False, got", *FLAG)),
    *rows("backward", TypeError, "is_training", "expected True or False", 2, data_format="NHWC"),
]  # fmt: skip


def running(**changed):
    right = {name: lambda q, name=name: four(q)[name] for name in FOUR}
    return {**right, **changed}


FLOATS = "float32, float64, float16 or bfloat16"
OF_STATISTICS = [
    *(row(TRAINING, kind, message, **running(**changed)) for kind, message, changed in (
        *((ValueError, f"expected all four or none, got no {name}$", {name: None})
          for name in FOUR),
        (ValueError, "^correction: expected 0 or 1, got 2$", {"correction": 2}),
        (TypeError, "^correction: expected 0 or 1, got 0.5$", {"correction": 0.5}),
        (ValueError, "^exponential_avg_factor: expected a finite number, got inf$",
         {"exponential_avg_factor": np.inf}),
        (TypeError, "^exponential_avg_factor: expected a real number, got 'a'$",
         {"exponential_avg_factor": "a"}),
        (TypeError, f"^running_mean: expected {FLOATS}, got int64$",
         {"running_mean": np.zeros(5, np.int64)}),
        (TypeError, rf"^running_mean: expected {FLOATS}, got {GOT_TEXTS}$",
         {"running_mean": np.full(5, "1", TEXTS)}),
        (TypeError, "^running_mean: expected native byte order, got .f4$",
         {"running_mean": take("mean", swapped)}),
        (TypeError, "^running_mean: expected a numpy.ndarray, got list$",
         {"running_mean": [0] * 5}),
        (ValueError, r"^running_variance: expected shape \(5,\), .*, got \(4,\)",
         {"running_variance": np.ones(4)}),
        (ValueError, "^running_mean: expected a writable array",
         {"running_mean": take("mean", read_only)}),
        (ValueError, "^running_mean: shares memory with running_variance$",
         dict.fromkeys(FOUR[:2], take("mean"))),
        (ValueError, "^mean in out: shares memory with running_mean$",
         {"running_mean": take("mean"), "out": lambda q: (None, q.mean, None)}),
        (ValueError, "^src: expected more than one element in each channel with correction=1, "
         "got one; leave", {"src": take("src", lambda a: a[:1, :1]), "out": None}),
        *((ValueError, f"^{name}: shares memory with {argument}$",
           {"src_1": take("src_1"), name: take(argument, lambda a: a.reshape(-1)[:5])})
          for name in FOUR[:2] for argument in ("src", "gamma", "beta", "src_1")),
    )),
]  # fmt: skip

DST, BETA, WORKSPACE = ({"relu": True, name: take(name)} for name in ("dst", "beta", "workspace"))
EXACTLY = "^beta, dst and workspace: expected exactly one of them with relu=True, got "
OF_GATES = [
    row(FORWARD, TypeError, "^src_1: expected float32, like src, got float64; pass np.asarray",
        src_1=take("src_1", lambda a: a.astype(float))),
    row(FORWARD, ValueError, r"^src_1: expected shape \(6, 4, 5\), like src, got \(5, 4, 6\)$",
        src_1=take("src_1", np.transpose)),
    row(WITH_WORKSPACE, TypeError, rf"^workspace: expected uint8, got {GOT_TEXTS}$", relu=True,
        workspace=np.full(15, "1", TEXTS)),
    row(FORWARD, ValueError, "^relu: expected True with workspace, got False; pass .* no worksp",
        workspace=take("workspace")),
    *(row(BACKWARD, ValueError, "^out: expected None for diff_gamma and diff_beta",
          param_grads=False, out=lambda q, k=k: (None, *((q.mean, None)[::k])))
      for k in (1, -1)),
    row(BACKWARD, ValueError, r"^out: expected \(diff_src, diff_gamma, diff_beta, diff_src_1\), "
        ".*, got a sequence of length 3$", diff_src_1=True, out=(None,) * 3, **DST),
    # Arguments that do not go together ...
    row(GATED, ValueError, EXACTLY + "none$", relu=True),
    row(GATED, ValueError, EXACTLY + "beta and dst$", **{**BETA, **DST}),
    row(GATED, ValueError, EXACTLY + "beta and dst and workspace$", **{**BETA, **DST, **WORKSPACE}),
    *(row(GATED, ValueError, f"^relu: expected True with {gate}, got False; pass .* no {gate}$",
          **{gate: take(gate)}) for gate in ("beta", "dst", "workspace")),
    row(BACKWARD, ValueError, "^diff_src_1: expected relu=True with dst or workspace, got relu=F",
        diff_src_1=True, out=None),
    row(BACKWARD, ValueError, "^diff_src_1: expected .* got beta, which says nothing of src_1$",
        diff_src_1=True, out=None, **BETA),
    row("GradientSums", ValueError, "^variance: expected an array, .*beta is given; got None$",
        epsilon=EPSILON, **BETA),
    row("GradientSums", ValueError, "^epsilon: expected a number, .*beta is given; got None$",
        variance=take("variance"), **BETA),
    row("GradientSums", ValueError, r"^gamma: expected shape \(5,\)",
        gamma=take("gamma", lambda a: a[1:])),
    # ... and arguments that do not fit.
    *(row(names, kind, f"^{name}: expected {message}", relu=True, **{name: take(name, change)})
      for names, kind, name, message, change in (
        (BACKWARD, TypeError, "dst", "float32, like src, got float64", lambda a: a.astype(float)),
        (BACKWARD, ValueError, "dst", r"shape \(6, 4, 5\), like src, got", lambda a: a[1:]),
        (BACKWARD, ValueError, "beta", r"shape \(5,\)", lambda a: a[1:]),
        (BACKWARD, TypeError, "workspace", "an array, got int$", lambda a: 1),
        (WITH_WORKSPACE, TypeError, "workspace", "uint8, got bool", lambda a: a.astype(bool)),
        (WITH_WORKSPACE, ValueError, "workspace",
         r"shape \(26,\), a bit for each element of src, a byte for each axis and eight more, got",
         lambda a: a[1:]),
        (WITH_WORKSPACE, ValueError, "workspace",
         r"a contiguous array, got one with strides \(-1,\)", lambda a: a[::-1]),
        *((GATED, ValueError, "workspace", r"what a forward pass wrote for src of shape "
           r"\(6, 4, 5\) with the channels on axis 2, got one that ends in b'",
           lambda a, end=end: np.append(a[:-11], np.array(end, np.uint8))) for end in (
            (0,) * 11, (255,) * 11,  # never written
            *(order_bytes(*written) for written in (
                ((6, 4, 5), (0, 0, 2), 2), ((6, 4, 5), (0, 3, 2), 2),  # no order of three axes
                ((6, 4, 5), (0, 1, 2), 1),  # other channels
                ((4, 6, 5), (0, 1, 2), 2), ((6 + 256, 4, 5), (0, 1, 2), 2),  # other shapes
                ((6, 4, 2**32 + 5), (0, 1, 2), 2))))),
        (FORWARD, ValueError, "workspace", "a writable array, got a read-only", read_only),
        (FORWARD, TypeError, "workspace", "a numpy.ndarray, got bytes", bytes))),
    row(FORWARD, ValueError, r"^workspace: expected a contiguous array, got one with strides \(2,",
        relu=True, workspace=np.zeros(26, np.uint8)[::2], src=take("src", lambda a: a[:1, :2]),
        out=None),
]  # fmt: skip


def sums(q, rows=slice(None), channels=slice(None), kind="float32", mean=None, **options):
    data = (a[rows, :, channels].astype(kind) for a in (q.src, q.diff_dst))
    mean = (mean(q) if mean else q.mean)[channels]
    return bn_ext.GradientSums(*data, mean, data_format=q.data_format, **options)


def of_other_channels(q, **options):
    total = sums(q, channels=slice(4), **options)
    total._mean = q.mean
    return total


OF_SUMS = [
    *rows("backward", TypeError, "sums", "expected GradientSums, the sum of those of all parts, ",
          np.zeros((2, 5)), lambda q: [sums(q)], 0, lambda q: sums(q, exact=True).array,
          lambda q: bn_ext.Statistics(q.src, data_format="NXC")),
    *(row("backward", ValueError, f"^sums: expected {message}",
          sums=lambda q, part=part, exact=exact: sums(q, exact=exact, **part))
      for exact in (False, True) for message, part in (
          ("sums of float32 data, like src, got sums of float64 data$", {"kind": "float64"}),
          ("5 channels, got 4$", {"channels": slice(4)}),
          ("sums about this mean, .* got sums about ",
           {"mean": take("mean", lambda a: np.nextafter(a, np.float32(9)))}),
          ("at least 24 elements per channel, as many as this part has, got 20$",
           {"rows": slice(5)}),
          ("at least 24 elements per channel, as many as this part has, got 0$",
           {"rows": slice(0)}))),
    row("backward", ValueError, "^sums: expected 5 channels, got 4$", sums=of_other_channels),
]  # fmt: skip


def kept(q, exact):
    q.total = sums(q, exact=exact)
    return q.total


def first_bits(q):
    q.memory = np.zeros(q.src.nbytes, np.uint8)
    q.memory[:26] = q.workspace
    return q.memory[:26]


def over_bits(q, result):
    return q.memory.view(result.dtype).reshape(result.shape)


OF_SHARING = [
    row(TRAINING, ValueError, "^dst in out: shares memory with src_1", src_1=take("src_1"),
        out=lambda q: (q.src_1[::-1], None, None)),
    row(BACKWARD, ValueError, r"^diff_src in out: shares memory with diff_src_1 in out \(allowed: "
        r"exactly the memory of src, diff_dst or dst\)$", diff_src_1=True,
        out=lambda q: (q.src_1, None, None, q.src_1), **DST),
    row(BACKWARD, ValueError, "^diff_src in out: shares memory with dst",
        relu=True, dst=take("dst", lambda a: a[::-1]), out=lambda q: (q.dst, None, None)),
    *(row(name, ValueError, r"^(\w+ in )?out: shares memory with workspace|^workspace: shares mem",
          relu=True, workspace=first_bits, out=out_with(name, 0, over_bits))
      for name in WITH_WORKSPACE),
    row(FORWARD, ValueError, "^workspace: shares memory with src", relu=True, out=None,
        workspace=take("src", lambda a: a.view(np.uint8).reshape(-1)[:26])),
    row("double_backward", ValueError, "^diff_src in out: shares memory with diff_diff_dst in out",
        out=lambda q: (q.src, q.src, None)),
    *(row("backward", ValueError, "^diff_gamma in out: shares memory with sums",
          sums=lambda q, exact=exact: kept(q, exact),
          out=lambda q: (None, q.total._sums.reshape(-1).view(np.float32)[:5], None))
      for exact in (False, True)),
]  # fmt: skip

CANNOT = "this .*Odd cannot be viewed as a NumPy array"
NUMBERS = "expected an array of numbers"
OF_OBJECTS = [
    *rows("backward", TypeError, "src", f"{CANNOT}: ", *(
        Odd(__dlpack_device__=lambda self, device=device: device)
        for device in (None, (), (1,), "ab", (None, 0), ([], 0), {}, 1, (1, 2, 3)))),
    *(row("backward", TypeError, f"^{name}: {CANNOT}: it is not in CPU memory; copy it",
          **{name: Odd(__dlpack_device__=lambda self, device=device: (device, 0))})
      for name in INPUTS for device in (2, 4, 10, 12, 14)),
    *rows("backward", TypeError, "src", f"{CANNOT}: ", *(
        Odd(__array_interface__=odd)
        for odd in ({"version": 3}, {"shape": None, "typestr": "f4", "version": 3}))),
    *rows("backward", TypeError, "src", NUMBERS, [[Odd(__array_interface__={"version": 3})]]),
    row("backward", TypeError, r"^it does not want to\nsrc: this .*Odd cannot be .*; pass "
        r"src.detach\(\).view\(torch.int16\).numpy\(\).view\(ml_dtypes.bfloat16\)", src=TORCHS),
    *(row("training", TypeError, f"^dst in out: expected .*got Odd; pass {re.escape(hint)}, which",
          out=(Odd(numpy=fail(AssertionError), **extra), None, None)) for hint, extra in (
        ("its numpy()", {}), ("its detach().numpy()", {"detach": None}),
        ("it.detach().view(torch.int16).numpy().view(ml_dtypes.bfloat16)",
         {"detach": None, "dtype": "torch.bfloat16"}))),
    *rows("backward", TypeError, "src", NUMBERS, [[1.0], [2.0, 3.0]]),
    *rows("backward", TypeError, "src", "expected float32, .*, got <U1$", ["a", "b"]),
    *rows("backward", TypeError, "diff_dst", f"{NUMBERS}: ", ([1.0], 2.0)),
    *rows("backward", TypeError, "diff_dst", "expected float64, like src, got float32",
          take("diff_dst"), src=take("src", np.ndarray.tolist)),
    *rows("backward", TypeError, "gamma", ".* got lists nested more than 64 deep$", endless()),
    *rows("backward", TypeError, "src", "expected float32, .* or bfloat16, got",
          np.zeros((6, 5), FALSE_BF16)),
    *(row("backward", (KeyError, TypeError), f"none of your business|^{name}: ", **{name: SILENT})
      for name in ("is_training", "epsilon", "src", "mean", "out")),
    *(row("backward", ERRORS, f"^{name}: ", **{name: UNTOLD})
      for name in ("src", "mean", "is_training", "num_threads", "data_format")),
    *(row("backward", TypeError, f"^diff_dst: expected {data}, like src, got {wrong}",
          src=take("src", lambda a, data=data: a.astype(dtype(data))),
          diff_dst=take("diff_dst", lambda a, wrong=wrong: a.astype(dtype(wrong))))
      for data in DATA_DTYPES for wrong in DATA_DTYPES if wrong != data),
    # Other dtypes and numbers: what to pass instead.
    *(row("backward", TypeError, rf"; pass np.asarray\({name}, np.float64\)$",
          **{name: take(name, lambda a, kind=kind: a.astype(kind))})
      for name in VECTORS for kind in (bool, np.int8, np.int64, *WIDER)),
    *(row("backward", TypeError, f"^{name}: expected an array, got .*; np.full makes an array of",
          **{name: number}) for name in VECTORS for number in (1, 1.0, np.float32(1))),
    *rows("GradientSums", TypeError, "mean", r".*; pass np.asarray\(mean, np.float64\)$",
          np.arange(5), *(np.ones(5, kind) for kind in WIDER)),
    # What no conversion helps gets no advice.
    *(row("training", TypeError, r"^(?!.*pass )src: ", src=value) for value in (
        np.array([["a", 1.0]], object), np.array([["a", "b"]]), np.array([[1j, 2.0]], object),
        [[object(), 1.0]])),
]  # fmt: skip

ROW = np.array([1.0, 2.0, 4.0])
TABLE = np.array([[1, 2], [3, 4], [5, 7]])
BITS = TABLE.astype(np.uint16) + np.uint16(0x3F80)
#: What to pass instead, which refusals.py does: the beginning of the advice, arrays that get it.
ADVICE = {
    "np.asarray(src).reshape(-1, 1) for one channel": [
        ROW.tolist(), tuple(ROW), ROW, memoryview(ROW), array.array("f", ROW)],
    "np.asarray(src, np.float64)": [
        TABLE.tolist(), memoryview(TABLE), TABLE.astype(np.int32), TABLE.astype(np.uint64),
        TABLE.astype(object), [[1, 2.5], [10**40, 1]], np.array([[2**53 - 1], [2**53 - 2]]),
        *(TABLE.astype(kind) for kind in WIDER)],
    "np.asarray(src, np.float32)": [TABLE.astype(bool), TABLE.astype(np.int8)],
    "np.asarray(src, np.float16)": [swapped(TABLE.astype(np.float16))],
    "np.asarray(src, ml_dtypes.bfloat16)": [TABLE.astype(BF16).view(BF16.newbyteorder())],
    "np.asarray(src).view(ml_dtypes.bfloat16)": [
        BITS, BITS.view(np.int16), memoryview(BITS), list(BITS), BITS.view("V2")],
    "src.filled(value)": [np.ma.masked_equal(TABLE.astype(float), 4)],
}  # fmt: skip
if find_spec("pandas"):
    from pandas import DataFrame

    ADVICE["np.asarray(src).reshape(-1, 1) for one channel"].append(DataFrame({"a": ROW})["a"])
    ADVICE["np.asarray(src, np.float64)"] += [DataFrame(TABLE), DataFrame(TABLE).astype(object)]
    ADVICE["np.asarray(src).view(ml_dtypes.bfloat16)"].append(DataFrame(BITS))
if find_spec("scipy"):
    from scipy.sparse import csr_array

    ADVICE["src.toarray()"] = [csr_array(TABLE.astype(float))]
SRC_ALONE = dict.fromkeys(["out", "gamma", "beta", "data_format"])
OF_ADVICE = []
for advice, values in ADVICE.items():
    message = f"pass {re.escape(advice)}"
    OF_ADVICE += rows("training", ERRORS, "src", f".*{message}", *values, **SRC_ALONE)

OF_SHAPES = [
    *(row("inference", ValueError, rf"^{name}: expected shape \(3,\), one value for each channel "
          rf"on {where} of src, got {got}; src has shape {re.escape(str(dims))}$", src=ones(*dims),
          out=None, data_format=data_format, **{n: ones(3) for n in (*VECTORS, "beta")}
          | {name: ones(*shape)})
      for dims, data_format, where in (((8, 5, 7, 3), "NXC", "the last axis"),
                                       ((8, 3, 7, 5), "NCX", "axis 1"))
      for name in (*VECTORS, "beta")
      for shape, got in (((5,), r"\(5,\)"), ((1, 3), r"\(1, 3\)"))),
    row("training", ValueError, r"^src: expected at least 2 dimensions, got shape \(4,\); pass "
        r"np.asarray\(src\).reshape\(-1, 1\) for one channel, or ", src=ones(4)),
]  # fmt: skip

REFUSED = OF_ARRAYS + OF_OPTIONS + OF_STATISTICS + OF_GATES + OF_SUMS + OF_SHARING + OF_OBJECTS
REFUSED += OF_ADVICE + OF_SHAPES
CALLS = [
    pytest.param(name, refusal, id=f"{name}-{','.join(refusal.change)}-{refusal.message[:40]}")
    for refusal in REFUSED
    for name in refusal.names
    if refusal.change.keys() <= takes(name)
]


@pytest.mark.parametrize(("name", "refusal"), CALLS)
def test_refused(p, name, refusal):
    refused(refusal.kind, refusal.message, p, name, **refusal.change)


def test_every_row_is_called():
    called = {id(call.values[1]) for call in CALLS}
    assert [refusal for refusal in REFUSED if id(refusal) not in called] == []


class Hostile:
    def __repr__(self):
        return "\x1b[31m\x00ü"


def test_control_characters_of_foreign_text_are_escaped():
    """They would move a terminal's cursor; letters of other alphabets stay."""
    with pytest.raises(TypeError, match=r"got \\x1b\[31m\\x00ü$"):
        bn_ext.batch_norm_training(np.ones((4, 2)), epsilon=Hostile())
    layer = bn_ext.BatchNorm(2)
    with pytest.raises(ValueError, match=r"unexpected: \\x1b\[2J$"):
        layer.load_state_dict({**layer.state_dict(), "\x1b[2J": 1})
