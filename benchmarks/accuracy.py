"""Errors of the gradient, of the forward pass and of their peers on hostile data.

The bounds are those of docs/numerics.md, from tests/bounds.py.
"""

import functools
import itertools
import sys
import warnings
from datetime import date

import numpy as np

import bn_ext
from bn_ext._bench.peers import PEERS, bn_ext_call
from bn_ext._bench.problems import Problem

from . import pages

SHAPES = ((16, 64, 16, 16), (16, 2, 256, 256))
DTYPES = ("float32", "bfloat16")
SHOWN = ("numpy", "torch")


def normal(rng, size):
    return rng.standard_normal(size)


def magnitudes(rng, size):
    return rng.standard_normal(size) * np.exp2(rng.uniform(-40, 0, size))


def one_large(rng, size):
    values = rng.uniform(0.5, 1, size) * 2.0**-24
    values[:, 0] = 1
    return values


def constant(rng, size):
    return np.broadcast_to(rng.uniform(1, 2, (size[0], 1)), size)


def cancelling(rng, size):
    """The second half cancels the first."""
    values = magnitudes(rng, size)
    half = size[1] // 2
    values[:, half:] = -values[:, :half]
    return values


ONE_LARGE = "one large dy among small"
#: (description, dy, mean / standard deviation of src)
KINDS = [
    ("random", normal, 0),
    ("dy constant", constant, 0),
    ("dy = xhat", None, 0),
    ("dy = xhat, mean = 1000 deviations", None, 1000),
    ("dy over 40 powers of two", magnitudes, 0),
    (ONE_LARGE, one_large, 0),
    ("second half of dy takes the first back", cancelling, 0),
]


def problem_of(rng, make, ratio, shape, dtype):
    """A problem with the batch's own statistics."""
    problem = Problem(shape, "NCX", dtype)
    channels = shape[1]
    size = channels, problem.src.size // channels

    def put(array, values):
        array[...] = np.moveaxis(values.reshape(channels, shape[0], *shape[2:]), 0, 1)

    put(problem.src, rng.standard_normal(size) + ratio)
    x = problem.src.astype(np.float64)
    mean, variance = x.mean(axis=(0, 2, 3)), x.var(axis=(0, 2, 3))
    problem.mean[:], problem.variance[:] = mean, variance
    problem.gamma[:] = rng.uniform(0.5, 2, channels)
    if make:
        put(problem.diff_dst, make(rng, size))
    else:
        column = (1, -1, 1, 1)
        xhat = (x - mean.reshape(column)) / np.sqrt(variance + problem.epsilon).reshape(column)
        problem.diff_dst[...] = xhat
    return problem


def as_array(of):
    """A peer's output as doubles."""
    of = of.double() if hasattr(of, "detach") else of
    return np.asarray(of).astype(np.float64)


def compared(want, call, dtype):
    """The largest errors beyond half an ulp: of any output, in multiples of its bound; of diff_src,
    in multiples of u times its terms.
    """
    from bounds import errors
    from cases import unit

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        diff_src, *sums = (as_array(a) for a in call())
        got = type(want)(diff_src, *(s.ravel() for s in sums), *want[3:])
        found = errors(got, want, dtype, "float32")
        shares = [float(error.share().max()) for error in found.values()]
        error = found["diff_src"]._replace(bound=unit("float32") * want.diff_src_terms)
        return max(shares), float(error.share().max())


def measure():
    """[(dtype, data, M, {name: what `compared` says})]"""
    import reference

    found = []
    for dtype, shape in itertools.product(DTYPES, SHAPES):
        for kind, make, ratio in KINDS:
            problem = problem_of(np.random.default_rng(1), make, ratio, shape, dtype)
            want = reference.batch_norm_backward(
                problem.src, problem.diff_dst, problem.mean, problem.variance, problem.gamma,
                epsilon=problem.epsilon, axis=1, wide=np.longdouble,
            )  # fmt: skip
            worst = {}
            for name in ("bn_ext", *SHOWN):
                peer = bn_ext_call if name == "bn_ext" else PEERS[name]
                try:
                    worst[name] = compared(want, peer(problem, 1), dtype)
                except ImportError:
                    continue
            found.append((dtype, kind, problem.src.size // shape[1], worst))
    return found


# ---- the forward pass ---------------------------------------------------------------

FORWARD_SHAPE = (16, 45, 45, 16)
EPSILON = 1e-5


def at_first(rows, value):
    """The first `rows` rows lie `value` standard deviations away."""
    return lambda z: np.where(np.arange(len(z))[:, None] < rows, value + z, z)


#: (description, a function of normal values (M, C))
FORWARD_KINDS = [
    *((f"random, mean = {ratio:g} deviations", lambda z, by=ratio: z + by)
      for ratio in (0, 10, 1e3, 1e5)),
    ("first element 10⁴ deviations off", at_first(1, 1e4)),
    ("first 8 rows 10³ off", at_first(8, 1e3)),
    ("first 136 rows 10⁴ off", at_first(136, 1e4)),
    ("constant 0.1", lambda z: np.full_like(z, 0.1)),
    ("1000 and 1000 + 2⁻¹⁴", lambda z: 1000 + (z < 0) * 2.0**-14),
    ("behind a ReLU", lambda z: np.maximum(z, 0)),
    ("log-normal", lambda z: np.exp(2 * z)),
    ("rising from 0 to 1", lambda z: np.linspace(0, 1, len(z))[:, None] + 0 * z),
    ("10¹⁹ times random", lambda z: 1e19 * z),
    ("10⁻²² times random", lambda z: 1e-22 * z),
]  # fmt: skip


def torch_forward(src, gamma, beta, *, channels_last):
    import torch

    bits = src.view(np.int16) if src.dtype.itemsize == 2 else src
    x = torch.from_numpy(bits)
    x = (x.view(torch.bfloat16) if bits is not src else x).movedim(-1, 1)
    x = x if channels_last else x.contiguous()
    vectors = torch.from_numpy(gamma), torch.from_numpy(beta)
    dst = torch.native_batch_norm(x, *vectors, None, None, True, 0.1, EPSILON)[0]
    # The results below have the dtype of the running statistics.
    running = (torch.zeros(len(gamma)), torch.ones(len(gamma)))
    mean, variance = torch.ops.aten.batch_norm_update_stats(x, *running, 0.1)
    return dst.movedim(1, -1), mean, variance


def tensorflow_forward(src, gamma, beta):
    import tensorflow as tf

    nothing = np.zeros(0, np.float32)
    found = tf.raw_ops.FusedBatchNormV3(
        x=src, scale=gamma, offset=beta, mean=nothing, variance=nothing, epsilon=EPSILON
    )
    return found.y, found.reserve_space_1, found.reserve_space_2


def flax_forward(src, gamma, beta):
    import flax.linen
    import jax.numpy as jnp

    layer = flax.linen.BatchNorm(use_running_average=False, momentum=0.0, epsilon=EPSILON)
    params = {"scale": jnp.asarray(gamma), "bias": jnp.asarray(beta)}
    zeros = jnp.zeros(len(gamma))
    given = {"params": params, "batch_stats": {"mean": zeros, "var": zeros}}
    dst, found = layer.apply(given, jnp.asarray(src), mutable=["batch_stats"])
    return dst, found["batch_stats"]["mean"], found["batch_stats"]["var"]


def numpy_forward(src, gamma, beta):
    x, axes = src.astype(np.float32), (0, 1, 2)
    mean, variance = x.mean(axis=axes), x.var(axis=axes)
    dst = gamma / np.sqrt(variance + np.float32(EPSILON)) * (x - mean) + beta
    return dst.astype(src.dtype), mean, variance


def bn_ext_forward(src, gamma, beta):
    return bn_ext.batch_norm_training(src, gamma, beta, epsilon=EPSILON)


FORWARD = {
    "bn_ext": bn_ext_forward,
    "numpy": numpy_forward,
    "torch, NCHW": functools.partial(torch_forward, channels_last=False),
    "torch, channels last": functools.partial(torch_forward, channels_last=True),
    "tensorflow": tensorflow_forward,
    "flax": flax_forward,
}


def compared_forward(want, found, dtype):
    """The largest errors beyond half an ulp: of the variance, in multiples of u times itself (if it
    is 0, u times the squared mean); of dst, in multiples of its bound.
    """
    from bounds import dst_error, statistics_errors
    from cases import unit

    dst, mean, variance = (as_array(a) for a in found)
    error = statistics_errors(mean, variance, want, dtype, "float32")["variance"]
    sizes = np.where(want.variance > 0, want.variance, want.mean**2)
    error = error._replace(bound=unit("float32") * sizes)
    shares = error.share(), dst_error(dst, want, dtype, axis=-1).share()
    return [float("inf") if np.isnan(share).any() else float(share.max()) for share in shares]


def measure_forward():
    """[(dtype, data, M, {name: what `compared_forward` says})]"""
    import reference
    from cases import dtype as dtype_of

    found = []
    *sizes, channels = FORWARD_SHAPE
    for dtype, (kind, make) in itertools.product(DTYPES, FORWARD_KINDS):
        rng = np.random.default_rng(1)
        with np.errstate(all="ignore"):
            values = make(rng.standard_normal((int(np.prod(sizes)), channels)))
            src = values.astype(dtype_of(dtype)).reshape(FORWARD_SHAPE)
            gamma = rng.uniform(0.5, 2, channels).astype(np.float32)
            beta = rng.standard_normal(channels).astype(np.float32)
            want = reference.batch_norm_training(
                src, gamma, beta, epsilon=EPSILON, wide=np.longdouble
            )
            worst = {}
            for name, forward in FORWARD.items():
                try:
                    got = forward(src, gamma, beta)
                except ImportError:
                    continue
                worst[name] = compared_forward(want, got, dtype)
        found.append((dtype, kind, len(values), worst))
    return found


# ---- the pages ----------------------------------------------------------------------

STATISTICS = [("float32", "32400", data) for data in (
    "random, mean = 0 deviations", "random, mean = 1000 deviations",
    "1000 and 1000 + 2⁻¹⁴", "behind a ReLU", "10¹⁹ times random",
)]  # fmt: skip
#: Rows of docs/numerics.md, by their first cells.
ON_PAGE = {
    "accuracy": [
        ("float32", "4096", "dy = xhat"), ("float32", "1048576", "dy constant"),
        ("float32", "1048576", ONE_LARGE), ("bfloat16", "1048576", ONE_LARGE),
    ],
    "accuracy-of-variance": STATISTICS,
    "accuracy-of-dst": STATISTICS[:3],
}  # fmt: skip


def shown(value):
    if value >= 1e6:
        return f"{value:.1e}"
    return f"{value:.2f}" if value < 10 else f"{value:,.0f}".replace(",", " ")


def table(found, *numbers):
    """Heading and lines. `numbers`: (index, heading) of each number that is shown for a name."""
    names = list(dict.fromkeys(name for *_, worst in found for name in worst))
    columns = [(n, i, f"{n}: {what}" if what else n) for i, what in numbers for n in names]
    lines = [
        [dtype, str(m), kind, *(shown(worst[n][i]) if n in worst else "" for n, i, _ in columns)]
        for dtype, kind, m, worst in found
    ]
    return ["dtype", "M", "data", *(heading for *_, heading in columns)], lines


def versions():
    """The versions of NumPy and of the peers that were run."""
    labels = {"torch": "torch", "tensorflow": "TensorFlow", "flax": "flax"}
    found = {label: sys.modules[name] for name, label in labels.items() if name in sys.modules}
    return ", ".join(
        f"{label} {module.__version__}" for label, module in {"NumPy": np, **found}.items()
    )


def report(options, console):
    """Write docs/accuracy*.csv, and some rows to docs/numerics.md."""
    backward = table(measure(), (0, "bounds"), (1, "u of terms"))
    forward = measure_forward()
    said = f"{date.today()}, {versions()}"
    for name, rows in (
        ("accuracy", backward),
        ("accuracy-of-variance", table(forward, (0, ""))),
        ("accuracy-of-dst", table(forward, (1, ""))),
    ):
        shown = ON_PAGE[name]
        pages.put_rows(name, "docs/numerics.md", said, *rows,
                       lambda line, shown=shown: tuple(line[:3]) in shown, console)  # fmt: skip
