"""What each function refuses, in which words, and that it then writes nothing.

test_bad_input.py has what may come in an array's place, test_sharing.py every way to share memory.
"""

import copy
import inspect

import numpy as np
import pytest
import refusals
from cases import EPSILON, TENSORS, VECTORS
from refusals import OPERANDS, RESULTS, arguments, as_out, four, function_of, outs, refused

import bn_ext

pytestmark = pytest.mark.quick

BATCH = ["training"]
FORWARD = [*BATCH, "inference"]
BACKWARD = ["backward"]
GATED = [*BACKWARD, "GradientSums"]
#: Operands of src's shape, src first.
LIKE_SRC = [*TENSORS, "diff_diff_src"]

every_function = pytest.mark.parametrize("name", OPERANDS)


def read_only(array):
    copy = array.copy()
    copy.flags.writeable = False
    return copy


# ---- arrays, whatever they are for --------------------------------------------------------

SHAPES = {
    "src": [(), (5,), (0,)],
    "vector": [(4,), (6,), (), (1,), (5, 1), (1, 5), (0,)],
    "tensor": [(6, 4), (6, 4, 5, 1), (6, 4, 6), (5, 4, 5), (6, 20), (0, 4, 5), (), (5,)],
}


def wrong_arrays(operand, array):
    """(error, message after the operand's name, wrong value) for an operand."""
    like = "src" if operand == "src" else "tensor" if operand in LIKE_SRC else "vector"
    for dims in SHAPES[like]:
        got = f"{dims}".replace("(", r"\(").replace(")", r"\)")
        yield ValueError, f".*got (shape )?{got}", np.ones(dims, array.dtype)
    for kind in ("int32", "uint8", "bool", "complex64", "longdouble", "object"):
        with np.errstate(invalid="ignore"):  # what a negative number becomes does not matter
            other = array.astype(kind)
        yield TypeError, f"expected .*float.*, got {other.dtype}", other
    for thing in ("abc", b"abc", 1.0, np.float32(1), object(), {1: 2}, range(3)):
        yield TypeError, "expected an array", thing
    if operand not in refusals.OPTIONAL:
        yield TypeError, "expected an array, got None", None
    if operand in LIKE_SRC[1:]:
        yield TypeError, "expected float32, like src, got float64", array.astype(np.float64)
    swapped = array.astype(array.dtype.newbyteorder())
    yield (
        TypeError,
        rf"expected native byte order, got .f\d(; pass np.asarray\({operand}, |$)",
        swapped,
    )
    masked = np.ma.masked_greater(array, 0)
    lost = "masked arrays .* because the mask would be lost"
    yield TypeError, rf"{lost}; pass {operand}.filled\(value\)$", masked
    yield TypeError, f"{lost}$", [masked]
    yield TypeError, f"{lost}$", type("Masked", (), {"__array__": lambda self, *_, **__: masked})()


@every_function
def test_arrays_that_do_not_fit(p, name):
    """Operands of another shape or dtype, or None."""
    for operand in OPERANDS[name]:
        for kind, message, thing in wrong_arrays(operand, arguments(p, name)[operand]):
            refused(kind, f"^{operand}: {message}", p, name, **{operand: thing})


@pytest.mark.parametrize("name", RESULTS)
def test_outputs_that_do_not_fit(p, name):
    good = outs(p, name)
    for k, result in enumerate(RESULTS[name]):
        for kind, wrong, what in (
            (ValueError, good[k].astype(np.int32), "expected dtype float32.*, got int32"),
            (ValueError, good[k][:-1], "expected shape"),
            (ValueError, read_only(good[k]), "expected a writable array"),
            (TypeError, good[k].tolist(), "expected a numpy.ndarray"),
            (TypeError, np.ma.masked_array(good[k]), "expected a numpy.ndarray"),
            (TypeError, "abc", "expected a numpy.ndarray"),
        ):
            out = as_out(name, [*good[:k], wrong, *good[k + 1 :]])
            refused(kind, f"^out: {result}: {what}", p, name, out=out)
    if len(good) > 1:
        expected = rf"^out: expected \({', '.join(RESULTS[name])}\), .*, got "
        for thing in (np.zeros((3, 5)), 1, "abc"):
            refused(TypeError, expected, p, name, out=thing)
        for length in (0, 1, 2, 4):
            message = f"{expected}a sequence of length {length}$"
            refused(ValueError, message, p, name, out=(None,) * length)


# ---- one thing wrong ----------------------------------------------------------------------


def sums(q, rows=slice(None), channels=slice(None), **changed):
    """Sums of a part of the problem's samples and channels."""
    given = {"mean": q.mean, "data_format": q.data_format, **changed}
    given["mean"] = given["mean"][channels]
    return bn_ext.GradientSums(q.src[rows, :, channels], q.diff_dst[rows, :, channels], **given)


def given(total, mean):
    """Sums whose mean somebody has changed."""
    total._mean = mean
    return total


def cast(q, dtype):
    """The problem with data of another dtype."""
    other = copy.copy(q)
    other.src, other.diff_dst = q.src.astype(dtype), q.diff_dst.astype(dtype)
    return other


#: (option, error, what it expects, values that are refused)
OPTIONS = [
    ("epsilon", TypeError, "a real number, got",
     [None, "1e-3", b"1", [1.0], 1j, object(), np.complex128(1), np.array(1j),
      np.timedelta64(1, "s"), np.array("1e-3", object), np.array("1e-3"), np.ones(1), np.ones(2)]),
    ("epsilon", ValueError, "a finite number >= 0, got", [-1e-9, np.inf, -np.inf, np.nan]),
    ("num_threads", TypeError, "an integer or None, got", [1.0, "2", [1], 2.5]),
    ("num_threads", ValueError, "at least 1, got", [0, -1, -(2**70)]),
    ("data_format", ValueError, "'NXC' or 'NCX', or a name .* such as 'NHWC' or 'NCHW', got",
     ["NWHC", "nxc", "", 3, ["NXC"], np.array(["NXC", "NCX"])]),
    ("data_format", ValueError, r".* src has shape \(6, 4, 5\); it is missing and has no default$",
     [None]),
    ("data_format", ValueError, r"a format for 3 axes, since src has shape .*, got one for [245];",
     ["NC", "NHWC", "NCHW", "NDHWC", "NCDHW"]),
    *((flag, TypeError, "True or False, got",
       ["False", None, 2, -1, 1.0, np.array(True), np.zeros(2, bool), [], np.timedelta64(1, "s")])
      for flag in ("is_training", "param_grads", "relu", "diff_src_1", "exact")),
]  # fmt: skip
FOUR = ["running_mean", "running_variance", "exponential_avg_factor", "correction"]
EXACTLY = "^beta, dst and workspace: expected exactly one of them with relu=True, got "
ONE_ALONE = "^src: expected more than one element in each channel with correction=1, got one; leave"
#: (functions, error, message, changed arguments); only functions that take these are called.
REFUSED = [
    *((list(RESULTS) if option == "epsilon" else OPERANDS, kind, f"^{option}: expected {expected}",
       lambda q, option=option, value=value: {option: value})
      for option, kind, expected, values in OPTIONS for value in values),
    # Running statistics.
    *((BATCH, ValueError, f"expected all four or none, got no {name}$",
       lambda q, name=name: four(q, **{name: None})) for name in FOUR),
    (BATCH, ValueError, "^correction: expected 0 or 1, got 2$", lambda q: four(q, correction=2)),
    (BATCH, TypeError, "^correction: expected 0 or 1, got 0.5$",
     lambda q: four(q, correction=0.5)),
    (["training"], ValueError, ONE_ALONE, lambda q: four(q, src=q.src[:1, :1], out=None)),
    (BATCH, ValueError, "^exponential_avg_factor: expected a finite number, got inf$",
     lambda q: four(q, exponential_avg_factor=np.inf)),
    (BATCH, TypeError, "^exponential_avg_factor: expected a real number, got 'a'$",
     lambda q: four(q, exponential_avg_factor="a")),
    (BATCH, TypeError, "^running_mean: expected float32, float64, float16 or bfloat16, got int64$",
     lambda q: four(q, running_mean=np.zeros(5, np.int64))),
    (BATCH, TypeError, "^running_mean: expected a numpy.ndarray, got list$",
     lambda q: four(q, running_mean=[0] * 5)),
    (BATCH, ValueError, r"^running_variance: expected shape \(5,\), .*, got \(4,\)",
     lambda q: four(q, running_variance=np.ones(4))),
    (BATCH, ValueError, "^running_mean: expected a writable array",
     lambda q: four(q, running_mean=read_only(q.mean))),
    # src_1, and outputs.
    (FORWARD, TypeError, "^src_1: expected float32, like src, got float64; pass np.asarray",
     lambda q: {"src_1": q.src_1.astype(float)}),
    (FORWARD, ValueError, r"^src_1: expected shape \(6, 4, 5\), like src, got \(5, 4, 6\)$",
     lambda q: {"src_1": q.src_1.T}),
    *((BACKWARD, ValueError, "^out: expected None for diff_gamma and diff_beta",
       lambda q, out=out: {"param_grads": False, "out": (None, *(o and q.mean for o in out))})
      for out in ((1, None), (None, 1))),
    (BACKWARD, ValueError,
     r"^out: expected \(diff_src, diff_gamma, diff_beta, diff_src_1\), .*, "
     "got a sequence of length 3$",
     lambda q: {"relu": True, "dst": q.dst, "diff_src_1": True, "out": (None,) * 3}),
    # Gates: arguments that do not go together ...
    (GATED, ValueError, EXACTLY + "none$", lambda q: {"relu": True}),
    (GATED, ValueError, EXACTLY + "beta and dst$",
     lambda q: {"relu": True, "beta": q.beta, "dst": q.dst}),
    (GATED, ValueError, EXACTLY + "beta and dst and workspace$",
     lambda q: {"relu": True, "beta": q.beta, "dst": q.dst, "workspace": q.workspace}),
    *((GATED, ValueError, f"^relu: expected True with {gate}, got False; pass .* no {gate}$",
       lambda q, gate=gate: {gate: getattr(q, gate)}) for gate in ("beta", "dst", "workspace")),
    (BACKWARD, ValueError,
     "^diff_src_1: expected relu=True with dst or workspace, got relu=False$",
     lambda q: {"diff_src_1": True, "out": None}),
    (BACKWARD, ValueError, "^diff_src_1: expected .* got beta, which says nothing of src_1$",
     lambda q: {"relu": True, "beta": q.beta, "diff_src_1": True, "out": None}),
    (["GradientSums"], ValueError, "^variance: expected an array, .*beta is given; got None$",
     lambda q: {"relu": True, "beta": q.beta, "epsilon": EPSILON}),
    (["GradientSums"], ValueError, "^epsilon: expected a number, .*beta is given; got None$",
     lambda q: {"relu": True, "beta": q.beta, "variance": q.variance}),
    (["GradientSums"], ValueError, r"^gamma: expected shape \(5,\)",
     lambda q: {"gamma": q.gamma[1:]}),
    (FORWARD, ValueError, "^relu: expected True with workspace, got False; pass .* no workspace$",
     lambda q: {"workspace": q.workspace}),
    # ... and arguments that do not fit.
    (BACKWARD, TypeError, "^dst: expected float32, like src, got float64",
     lambda q: {"relu": True, "dst": q.dst.astype(float)}),
    (BACKWARD, ValueError, r"^dst: expected shape \(6, 4, 5\), like src, got",
     lambda q: {"relu": True, "dst": q.dst[1:]}),
    (BACKWARD, ValueError, r"^beta: expected shape \(5,\)",
     lambda q: {"relu": True, "beta": q.beta[1:]}),
    ([*BACKWARD, *FORWARD], TypeError, "^workspace: expected uint8, got bool",
     lambda q: {"relu": True, "workspace": q.workspace.astype(bool)}),
    ([*BACKWARD, *FORWARD], ValueError,
     r"^workspace: expected shape \(15,\), a bit for each element of src, got \(14,\)",
     lambda q: {"relu": True, "workspace": q.workspace[1:]}),
    ([*BACKWARD, *FORWARD], ValueError,
     r"^workspace: expected a contiguous array, got one with strides \(-1,\)",
     lambda q: {"relu": True, "workspace": q.workspace[::-1]}),
    (FORWARD, ValueError, r"^workspace: expected a contiguous array, got one with strides \(2,\)",
     lambda q: {"relu": True, "workspace": np.zeros(4, np.uint8)[::2], "src": q.src[:1, :2],
                "out": None}),
    (BACKWARD, TypeError, "^workspace: expected an array, got int$",
     lambda q: {"relu": True, "workspace": 1}),
    (FORWARD, ValueError, "^workspace: expected a writable array, got a read-only",
     lambda q: {"relu": True, "workspace": read_only(q.workspace)}),
    (FORWARD, TypeError, "^workspace: expected a numpy.ndarray, got bytes",
     lambda q: {"relu": True, "workspace": bytes(15)}),
    # Sums of all parts.
    *((BACKWARD, TypeError, "^sums: expected GradientSums, the sum of those of all parts, got ",
       lambda q, thing=thing: {"sums": thing(q)})
      for thing in (lambda q: np.zeros((2, 5)), lambda q: [sums(q)], lambda q: 0,
                    lambda q: sums(q, exact=True).array,
                    lambda q: bn_ext.Statistics(q.src, data_format="NXC"))),
    *((BACKWARD, ValueError, f"^sums: expected {message}",
       lambda q, make=make, exact=exact: {"sums": make(q, exact=exact)})
      for exact in (False, True) for message, make in (
          ("sums of float32 data, like src, got sums of float64 data$",
           lambda q, **o: sums(cast(q, np.float64), **o)),
          ("5 channels, got 4$", lambda q, **o: sums(q, channels=slice(4), **o)),
          ("5 channels, got 4$", lambda q, **o: given(sums(q, channels=slice(4), **o), q.mean)),
          ("sums about this mean, .* got sums about ",
           lambda q, **o: sums(q, mean=np.nextafter(q.mean, np.float32(9)), **o)),
          ("at least 24 elements per channel, as many as this part has, got 20$",
           lambda q, **o: sums(q, slice(5), **o)),
          ("at least 24 elements per channel, as many as this part has, got 0$",
           lambda q, **o: sums(q, slice(0), **o)))),
    # Shared memory.
    (BATCH, ValueError, "^out: dst: shares memory with src_1",
     lambda q: {"src_1": q.src_1, "out": (q.src_1[::-1], None, None)}),
    (BATCH, ValueError, r"allowed: exactly the memory of src\)$",
     lambda q: {"out": (q.src[::-1], None, None)}),
    (BATCH, ValueError, "^out: mean: shares memory with gamma$",
     lambda q: {"out": (None, q.gamma, None)}),
    (BATCH, ValueError, "^out: mean: shares memory with running_mean$",
     lambda q: four(q, running_mean=q.mean, out=(None, q.mean, None))),
    (BACKWARD, ValueError, r"^out: diff_src: shares memory with out: diff_src_1 \(allowed: "
     r"exactly the memory of src, diff_dst or dst\)$",
     lambda q: {"relu": True, "dst": q.dst, "diff_src_1": True,
                "out": (q.src_1, None, None, q.src_1)}),
    (BACKWARD, ValueError, "^out: diff_src: shares memory with dst",
     lambda q: {"relu": True, "dst": q.dst[::-1], "out": (q.dst, None, None)}),
    ([*BACKWARD, *FORWARD], ValueError, r"^out: \w+: shares memory with workspace|^workspace: shar",
     lambda q: over_workspace(q)),
    (FORWARD, ValueError, "^workspace: shares memory with src",
     lambda q: {"relu": True, "workspace": q.src.view(np.uint8).reshape(-1)[:15], "out": None}),
    *((BATCH, ValueError, f"^{name}: shares memory with {other}$",
       lambda q, name=name, other=other: four(
           q, src_1=q.src_1, **{name: getattr(q, other).reshape(-1)[:5]}))
      for name in FOUR[:2] for other in ("src", "gamma", "beta", "src_1")),
    (BATCH, ValueError, "^running_mean: shares memory with running_variance$",
     lambda q: four(q, **dict.fromkeys(FOUR[:2], q.mean.copy()))),
    (["double_backward"], ValueError, "^out: diff_src: shares memory with out: diff_diff_dst",
     lambda q: {"out": (q.src, q.src, None)}),
    *((["double_backward"], ValueError,
       f"^out: {result}: shares memory with {name} "
       r"\(allowed: exactly the memory of src, diff_dst or diff_diff_src\)$",
       lambda q, k=k, name=name: {"out": (*[None] * k, getattr(q, name)[::-1], *[None] * (2 - k))})
      for name in LIKE_SRC for k, result in enumerate(["diff_src", "diff_diff_dst"])),
    *((["double_backward"], ValueError, f"^out: diff_gamma: shares memory with {name}",
       lambda q, name=name: {"out": (None, None, getattr(q, name))})
      for name in (*VECTORS, *refusals.SECOND[1:])),
    *((["backward"], ValueError, "^out: diff_gamma: shares memory with sums",
       lambda q, exact=exact: {"sums": (total := sums(q, exact=exact)),
                               "out": (None, total._sums.reshape(-1).view(np.float32)[:5], None)})
      for exact in (False, True)),
]  # fmt: skip


def over_workspace(q):
    """The first result shares memory with the workspace."""
    memory = np.zeros(q.src.nbytes, np.uint8)
    result = memory.view(np.float32).reshape(q.src.shape)
    return {"relu": True, "workspace": memory[:15], "out": (result, None, None)}


@pytest.mark.parametrize(
    ("names", "kind", "message", "change"), REFUSED,
    ids=[f"{', '.join(names)[:30]}-{message[:50]}" for names, _, message, _ in REFUSED],
)  # fmt: skip
def test_refused(p, names, kind, message, change):
    called = 0
    for name in names:
        takes = inspect.signature(function_of(name)).parameters
        changed = change(p)
        if name == "inference" and isinstance(changed.get("out"), tuple):
            changed["out"] = changed["out"][0]
        if changed.keys() <= takes.keys():
            refused(kind, message, p, name, **changed)
            called += 1
    assert called
