"""What each function refuses: the error's words, and nothing is written.

test_bad_input.py has what may come in an array's place, test_sharing.py every way to share memory.
"""

import inspect

import numpy as np
import pytest
from cases import EPSILON, INPUTS, all_bits, as_stats, with_count
from relu_gates import problem

import bn_ext

pytestmark = pytest.mark.quick

SECOND = ["diff_diff_src", "diff_diff_gamma", "diff_diff_beta"]
TENSORS = ["src", "diff_dst", "diff_diff_src"]
#: What each function is given here ...
OPERANDS = {
    "backward": INPUTS,
    "backward_reduce": INPUTS[:3],
    "backward_apply": [*INPUTS, "sums"],
    "training": ["src", "gamma", "beta"],
    "training_reduce": ["src"],
    "training_apply": ["src", "stats", "gamma", "beta"],
    "inference": ["src", "mean", "variance", "gamma", "beta"],
    "double_backward": [*INPUTS, *SECOND],
}
FOUND = {"dst": "src", "mean": "mean", "variance": "mean"}
GRADIENTS = {"diff_src": "src", "diff_gamma": "mean", "diff_beta": "mean"}
#: ... and its results, each of which is like an argument.
RESULTS = {
    "backward": GRADIENTS,
    "backward_apply": GRADIENTS,
    "training": FOUND,
    "training_apply": FOUND,
    "inference": {"dst": "src"},
    "double_backward": {"diff_src": "src", "diff_diff_dst": "src", "diff_gamma": "mean"},
}
BATCH = ["training", "training_apply"]
FORWARD = [*BATCH, "inference"]
BACKWARD = ["backward", "backward_apply"]
GATED = [*BACKWARD, "backward_reduce"]

every_function = pytest.mark.parametrize("name", OPERANDS)


@pytest.fixture
def q(rng):
    """A small problem with all that any function takes: 20 elements in each of 3 channels."""
    return whole(problem(rng, (4, 3, 5), "NCX"))


def whole(q):
    q.sums, q.stats = with_count(np.ones((2, 3)), 20), as_stats(np.ones((2, 3)), 20)
    return q


def outs(q, name):
    """Sevens for each result."""
    return [np.full_like(getattr(q, like), 7) for like in RESULTS[name].values()]


def read_only(array):
    copy = array.copy()
    copy.flags.writeable = False
    return copy


def refused(kind, message, q, name, **changed):
    """It raises this, and writes nothing."""
    given = {operand: getattr(q, operand) for operand in OPERANDS[name]} | {"data_format": "NCX"}
    if name in RESULTS:
        out = outs(q, name)
        given |= {"epsilon": EPSILON, "out": out[0] if name == "inference" else tuple(out)}
    given |= changed
    out = given.get("out")
    arrays = [*vars(q).values(), *changed.values(), *(out if isinstance(out, tuple) else [out])]
    arrays = [a for a in arrays if isinstance(a, np.ndarray) and a.dtype != object]
    before = all_bits(arrays)
    with pytest.raises(kind, match=message):
        getattr(bn_ext, f"batch_norm_{name}")(**given)
    assert all_bits(arrays) == before


# ---- arrays, whatever they are for --------------------------------------------------------


@every_function
def test_arrays_that_do_not_fit(rng, q, name):
    """Another shape, or dtype, or none; and of two dtypes."""
    vectors = [v for v in OPERANDS[name] if v not in (*TENSORS, "sums", "stats")]
    for operand in OPERANDS[name]:
        array = getattr(q, operand)
        one = np.ones(1, array.dtype)
        wrong = [
            (ValueError, f"^{operand}: expected ", one),
            (TypeError, f"^{operand}: expected ", array.astype(np.int32)),
            *((TypeError, f"^{operand}: expected (an array|float64)", thing)
              for thing in ("abc", 1.0, object(), *[None] * (operand in TENSORS))),
        ]  # fmt: skip
        if operand not in ("src", "sums", "stats"):
            wrong.append((ValueError, f"^{operand}: expected shape", array[:-1]))
        if operand in TENSORS[1:]:
            message = f"^{operand}: expected float32, like src, got float64"
            wrong.append((TypeError, message, array.astype(np.float64)))
        for kind, message, thing in wrong:
            refused(kind, message, q, name, **{operand: thing})
    short = whole(problem(rng, (4, 3, 5), "NCX", "float16", "float32"))
    for vector in vectors[1:]:
        message = f"^{vector}: expected float32, like {vectors[0]}, got float16"
        array = getattr(short, vector).astype(np.float16)
        refused(TypeError, message, short, name, **{vector: array})


@pytest.mark.parametrize("name", RESULTS)
def test_outputs_that_do_not_fit(q, name):
    for k, result in enumerate(RESULTS[name]):
        good = outs(q, name)
        for wrong, what in (
            (good[k].astype(np.float64), "expected dtype float32, got float64"),
            (good[k][:-1], "expected shape"),
            (read_only(good[k]), "expected a writable array"),
        ):
            out = wrong if name == "inference" else (*good[:k], wrong, *good[k + 1 :])
            refused(ValueError, f"^out: {result}: {what}", q, name, out=out)


# ---- one thing wrong ----------------------------------------------------------------------


def four(q, **changed):
    """Running statistics and how they are updated."""
    return {
        "running_mean": np.zeros(3, np.float32), "running_variance": np.ones(3, np.float32),
        "exponential_avg_factor": 0.1, "correction": 1, **changed,
    }  # fmt: skip


def state(q, **options):
    return bn_ext.batch_norm_backward_reduce(
        q.src, q.diff_dst, q.mean, data_format="NCX", exact=True, **options
    )


FOUR = list(four(None))
EXACTLY = "^beta, dst and workspace: expected exactly one of them with relu=True, got "
ONE_ALONE = "^correction: expected 0, since each channel has one element alone, got 1$"
A_STATE = "^sums: expected float64, or a state"
#: Functions, of which those that take it are called; the error; what is changed.
REFUSED = [
    # Numbers and flags.
    (list(RESULTS), ValueError, "^epsilon: expected a finite number >= 0, got -1$",
     lambda q: {"epsilon": -1}),
    (list(RESULTS), ValueError, "^epsilon: expected a finite number >= 0",
     lambda q: {"epsilon": np.nan}),
    (OPERANDS, ValueError, "^data_format: expected 'NXC' or 'NCX'",
     lambda q: {"data_format": "NHWC"}),
    (OPERANDS, ValueError, "^num_threads: expected at least 1", lambda q: {"num_threads": 0}),
    *((OPERANDS, TypeError, f"^{flag}: expected True or False, got 2$",
       lambda q, flag=flag: {flag: 2})
      for flag in ("is_training", "param_grads", "relu", "diff_src_1", "exact")),
    # Running statistics.
    (BATCH, TypeError, r"^momentum: .*\(PyTorch\).*\(oneDNN, Flax, Keras\)",
     lambda q: {"momentum": 0.1}),
    (["training"], TypeError, r"^batch_norm_training\(\) got an unexpected keyword argument 'eps'",
     lambda q: {"eps": 0.1}),
    *((BATCH, ValueError, f"expected all four or none, got no {name}$",
       lambda q, name=name: four(q, **{name: None})) for name in FOUR),
    (BATCH, ValueError, "^correction: expected 0 or 1, got 2$", lambda q: four(q, correction=2)),
    (BATCH, TypeError, "^correction: expected 0 or 1, got 0.5$",
     lambda q: four(q, correction=0.5)),
    (["training"], ValueError, ONE_ALONE, lambda q: four(q, src=q.src[:1, :, :1], out=None)),
    (["training_apply"], ValueError, ONE_ALONE,
     lambda q: four(q, src=q.src[:1, :, :1], stats=as_stats(np.ones((2, 3)), 1), out=None)),
    (BATCH, ValueError, "^exponential_avg_factor: expected a finite number, got inf$",
     lambda q: four(q, exponential_avg_factor=np.inf)),
    (BATCH, TypeError, "^exponential_avg_factor: expected a real number, got 'a'$",
     lambda q: four(q, exponential_avg_factor="a")),
    (BATCH, TypeError, "^running_mean: expected float32 or float64, got float16$",
     lambda q: four(q, running_mean=np.zeros(3, np.float16))),
    (BATCH, TypeError, "^running_mean: expected a numpy.ndarray, got list$",
     lambda q: four(q, running_mean=[0] * 3)),
    (BATCH, ValueError, r"^running_variance: expected shape \(3,\), .*, got \(4,\)",
     lambda q: four(q, running_variance=np.ones(4))),
    (BATCH, ValueError, "^running_mean: expected a writable array",
     lambda q: four(q, running_mean=read_only(q.mean))),
    # What is added, and outputs.
    (FORWARD, TypeError, "^src_1: expected float32, like src, got float64$",
     lambda q: {"src_1": q.src_1.astype(float)}),
    (FORWARD, ValueError, r"^src_1: expected shape \(4, 3, 5\), like src, got \(5, 3, 4\)$",
     lambda q: {"src_1": q.src_1.T}),
    (BATCH, TypeError, r"^out: expected \(dst, mean, variance\), each an array .*, got numpy.nda",
     lambda q: {"out": q.src_1}),
    (["double_backward"], ValueError, "^out: expected .diff_src, diff_diff_dst, diff_gamma.*got 2",
     lambda q: {"out": (None, None)}),
    (BATCH, ValueError, "^out: expected .*, got 2 entries$", lambda q: {"out": (None, None)}),
    (BACKWARD, ValueError,
     r"^out: expected \(diff_src, diff_gamma, diff_beta, diff_src_1\), .*, got 3 entries$",
     lambda q: {"relu": True, "dst": q.dst, "diff_src_1": True, "out": (None,) * 3}),
    # Gates: what does not go together ...
    (GATED, ValueError, EXACTLY + "none$", lambda q: {"relu": True}),
    (GATED, ValueError, EXACTLY + "beta and dst$",
     lambda q: {"relu": True, "beta": q.beta, "dst": q.dst}),
    (GATED, ValueError, EXACTLY + "beta and dst and workspace$",
     lambda q: {"relu": True, "beta": q.beta, "dst": q.dst, "workspace": q.workspace}),
    *((GATED, ValueError, f"^relu: expected True with {gate}, got False$",
       lambda q, gate=gate: {gate: getattr(q, gate)}) for gate in ("beta", "dst", "workspace")),
    (BACKWARD, ValueError,
     "^diff_src_1: expected dst or workspace with it, and relu=True, got relu=False$",
     lambda q: {"diff_src_1": True, "out": None}),
    (BACKWARD, ValueError, "^diff_src_1: expected .* got beta, which knows nothing of a src_1$",
     lambda q: {"relu": True, "beta": q.beta, "diff_src_1": True, "out": None}),
    (["backward_reduce"], ValueError, "^variance: expected with beta, got None$",
     lambda q: {"relu": True, "beta": q.beta, "epsilon": EPSILON}),
    (["backward_reduce"], ValueError, "^epsilon: expected with beta, got None$",
     lambda q: {"relu": True, "beta": q.beta, "variance": q.variance}),
    (["backward_reduce"], ValueError, r"^gamma: expected shape \(3,\)",
     lambda q: {"gamma": q.gamma[1:]}),
    (FORWARD, ValueError, "^relu: expected True with workspace, got False$",
     lambda q: {"workspace": q.workspace}),
    # ... and what does not fit.
    (BACKWARD, TypeError, "^dst: expected float32, like src, got float64",
     lambda q: {"relu": True, "dst": q.dst.astype(float)}),
    (BACKWARD, ValueError, r"^dst: expected shape \(4, 3, 5\), like src, got",
     lambda q: {"relu": True, "dst": q.dst[1:]}),
    (BACKWARD, TypeError, "^beta: expected float32, like mean, got float64$",
     lambda q: {"relu": True, "beta": q.beta.astype(float)}),
    (BACKWARD, ValueError, r"^beta: expected shape \(3,\)",
     lambda q: {"relu": True, "beta": q.beta[1:]}),
    ([*BACKWARD, *FORWARD], TypeError, "^workspace: expected uint8, got bool",
     lambda q: {"relu": True, "workspace": q.workspace.astype(bool)}),
    ([*BACKWARD, *FORWARD], ValueError,
     r"^workspace: expected shape \(8,\), a bit for each element of src, got \(7,\)",
     lambda q: {"relu": True, "workspace": q.workspace[1:]}),
    ([*BACKWARD, *FORWARD], ValueError,
     r"^workspace: expected a contiguous array, got one with strides \(-1,\)",
     lambda q: {"relu": True, "workspace": q.workspace[::-1]}),
    (BACKWARD, TypeError, "^workspace: expected an array, got int$",
     lambda q: {"relu": True, "workspace": 1}),
    (FORWARD, ValueError, "^workspace: expected a writable array, got a read-only",
     lambda q: {"relu": True, "workspace": read_only(q.workspace)}),
    (FORWARD, TypeError, "^workspace: expected a numpy.ndarray, got bytes",
     lambda q: {"relu": True, "workspace": bytes(8)}),
    # Sums, statistics and states.
    *((["backward_apply"], ValueError, f"^sums: expected at least 20 elem.*, got {count}$",
       lambda q, count=count: {"sums": with_count(np.zeros((2, 3)), count)})
      for count in (0, 1, 19)),
    *((["backward_apply"], ValueError, "^sums: expected in row 2 the elements per channel",
       lambda q, count=count: {"sums": with_count(np.zeros((2, 3)), count)})
      for count in (-1, 24.5, 2.0**53, np.inf, np.nan, [20, 21, 20])),
    *((["backward_apply"], ValueError, r"^sums: .* \(3, 3\), as batch_norm_backward_reduce",
       lambda q, dims=dims: {"sums": np.full(dims, 20.0)})
      for dims in ((2, 3), (4, 3), (3, 2), (9,), (3, 3, 1))),  # statistics have 4 rows
    *((["backward_apply"], TypeError, A_STATE, lambda q, sums=sums: {"sums": sums})
      for sums in (np.ones((3, 3), np.float32), [[20] * 3] * 3, np.zeros((11, 2, 3), np.int32),
                   np.zeros((11, 2, 3), ">i8"), np.zeros((2, 3), np.int64))),
    (["backward_apply"], TypeError, "^sums: expected native byte order",
     lambda q: {"sums": np.ones((3, 3), ">f8")}),
    (["backward_apply"], ValueError, r"^sums: expected shape \(11, 2, 3\)",
     lambda q: {"sums": np.zeros((57, 2, 3), np.int64)}),
    (["backward_apply"], ValueError, r"^sums: expected shape \(11, 2, 3\)",
     lambda q: {"sums": np.zeros((11, 2, 4), np.int64)}),
    (["backward_apply"], ValueError, "at least 20 elements per channel",
     lambda q: {"sums": np.zeros((11, 2, 3), np.int64)}),
    (["backward_apply"], ValueError, "^sums: expected",
     lambda q: {"sums": np.full((11, 2, 3), -1)}),
    (["training_apply"], TypeError, "stats: .*64 .*training_stats makes.*, got int64",
     lambda q: {"stats": np.zeros((11, 2, 3), np.int64)}),
    (["training_reduce"], ValueError, "^mean: expected with exact=True alone",
     lambda q: {"mean": q.mean}),
    (["training_reduce"], ValueError, r"^mean: expected shape \(3,\)",
     lambda q: {"mean": q.mean[:2], "exact": True}),
    # Shared memory.
    (BATCH, ValueError, "^out: dst: shares memory with src_1",
     lambda q: {"src_1": q.src_1, "out": (q.src_1[::-1], None, None)}),
    (BATCH, ValueError, r"it may be exactly src\)$", lambda q: {"out": (q.src[::-1], None, None)}),
    (BATCH, ValueError, "^out: mean: shares memory with gamma$",
     lambda q: {"out": (None, q.gamma, None)}),
    (BATCH, ValueError, "^out: mean: shares memory with running_mean$",
     lambda q: four(q, running_mean=q.mean, out=(None, q.mean, None))),
    (BACKWARD, ValueError, r"^out: diff_src: shares memory with out: diff_src_1 \(it may be "
     r"exactly src, exactly diff_dst or exactly dst\)$",
     lambda q: {"relu": True, "dst": q.dst, "diff_src_1": True,
                "out": (q.src_1, None, None, q.src_1)}),
    (BACKWARD, ValueError, "^out: diff_src: shares memory with dst",
     lambda q: {"relu": True, "dst": q.dst[::-1], "out": (q.dst, None, None)}),
    ([*BACKWARD, *FORWARD], ValueError, r"^out: \w+: shares memory with workspace|^workspace: shar",
     lambda q: over_workspace(q)),
    (FORWARD, ValueError, "^workspace: shares memory with src",
     lambda q: {"relu": True, "workspace": q.src.view(np.uint8).reshape(-1)[:8], "out": None}),
    (["backward_apply"], ValueError, "^out: diff_gamma: shares memory with sums",
     lambda q: {"sums": (sums := state(q)),
                "out": (None, sums.reshape(-1).view(np.float32)[:3], None)}),
]  # fmt: skip


def over_workspace(q):
    """The first result lies over the bits."""
    memory = np.zeros(q.src.nbytes, np.uint8)
    result = memory.view(np.float32).reshape(q.src.shape)
    return {"relu": True, "workspace": memory[:8], "out": (result, None, None)}


@pytest.mark.parametrize(("names", "kind", "message", "change"), REFUSED, ids=lambda v: str(v)[:50])
def test_refused(q, names, kind, message, change):
    called = 0
    for name in names:
        takes = inspect.signature(getattr(bn_ext, f"batch_norm_{name}")).parameters
        changed = change(q)
        if name == "inference" and isinstance(changed.get("out"), tuple):
            changed["out"] = changed["out"][0]
        if changed.keys() <= takes.keys() | {"momentum", "eps"}:
            refused(kind, message, q, name, **changed)
            called += 1
    assert called
