"""Errors of the gradient and of the variance on hostile data, next to peers.

The bounds are those of docs/numerics.md, from tests/shared/bounds.py.
"""

import csv
import itertools
import warnings
from datetime import date
from functools import partial

import bounds
import numpy as np
from cases import dtype as dtype_of

import bn_ext
from bn_ext._bench import PEERS, Case, Problem, bn_ext_call, tensor_of
from bn_ext.testing import _formulas as reference
from bn_ext.testing._limits import unit

from . import pages

DTYPES = ("float32", "bfloat16")


def as_array(output):
    """A peer's output as doubles."""
    output = output.double() if hasattr(output, "detach") else output
    return np.asarray(output).astype(np.float64)


def worst(share):
    return float("inf") if np.isnan(share).any() else float(share.max())


def of_each(peers, compared):
    """{name: what `compared(peer)` says}, of the peers that are installed."""
    results = {}
    for name, peer in peers.items():
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)
                results[name] = compared(peer)
        except ImportError:
            continue
    return results


# ---- the gradient -------------------------------------------------------------------

SHAPES = ((16, 64, 16, 16), (16, 2, 256, 256))
GRADIENTS = {"bn_ext": bn_ext_call, "numpy": PEERS["numpy"], "torch": PEERS["torch"]}


def magnitudes(rng, size):
    return rng.standard_normal(size) * np.exp2(rng.uniform(-40, 0, size))


def one_large(rng, size):
    values = rng.uniform(0.5, 1, size) * 2.0**-24
    values[:, 0] = 1
    return values


def cancelling(rng, size):
    values, half = magnitudes(rng, size), size[1] // 2
    values[:, half:] = -values[:, :half]
    return values


ONE_LARGE = "one large dy among small"
#: (description, dy (C, M); None: xhat, mean / standard deviation of src)
KINDS = [
    ("random", lambda rng, size: rng.standard_normal(size), 0),
    ("dy constant", lambda rng, size: np.broadcast_to(rng.uniform(1, 2, (size[0], 1)), size), 0),
    ("dy = xhat", None, 0),
    ("dy = xhat, mean = 1000 deviations", None, 1000),
    ("dy over 40 powers of two", magnitudes, 0),
    (ONE_LARGE, one_large, 0),
    ("second half of dy takes the first back", cancelling, 0),
]


def problem_of(rng, make, ratio, shape, dtype):
    """A problem with the batch's own statistics."""
    problem = Problem(Case(shape, "NCX", dtype, threads=1))
    channels, column = shape[1], (1, -1, 1, 1)
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
        rstd = 1 / np.sqrt(variance + problem.epsilon)
        problem.diff_dst[...] = (x - mean.reshape(column)) * rstd.reshape(column)
    return problem


def gradient_errors(problem, want, dtype, peer):
    """The largest errors beyond half an ulp: of any output, in multiples of its bound; of diff_src,
    in multiples of u times its terms.
    """
    diff_src, *sums = (as_array(a) for a in peer(problem)())
    got = type(want)(diff_src, *(s.ravel() for s in sums), *want[3:])
    errors = bounds.errors(got, want, dtype, "float32")
    of_terms = errors["diff_src"]._replace(bound=unit("float32") * want.diff_src_terms)
    return max(worst(error.share()) for error in errors.values()), worst(of_terms.share())


def gradients():
    """[(dtype, M, data, {name: errors})]"""
    for dtype, shape, (kind, make, ratio) in itertools.product(DTYPES, SHAPES, KINDS):
        p = problem_of(np.random.default_rng(1), make, ratio, shape, dtype)
        want = reference.batch_norm_backward(
            p.src, p.diff_dst, p.mean, p.variance, p.gamma,
            epsilon=p.epsilon, axis=1, wide=np.longdouble,
        )  # fmt: skip
        errors = of_each(GRADIENTS, partial(gradient_errors, p, want, dtype))
        yield dtype, p.src.size // shape[1], kind, errors


# ---- the variance -------------------------------------------------------------------

SHAPE = (16, 45, 45, 16)


def at_first(rows, value):
    """The first `rows` rows lie `value` standard deviations away."""
    return lambda z: np.where(np.arange(len(z))[:, None] < rows, value + z, z)


#: A function of normal values (M, C).
FORWARD_KINDS = {
    **{f"random, mean = {ratio:g} deviations": lambda z, by=ratio: z + by
       for ratio in (0, 10, 1e3, 1e5)},
    "first element 10⁴ deviations off": at_first(1, 1e4),
    "first 8 rows 10³ off": at_first(8, 1e3),
    "first 136 rows 10⁴ off": at_first(136, 1e4),
    "constant 0.1": lambda z: np.full_like(z, 0.1),
    "1000 and 1000 + 2⁻¹⁴": lambda z: 1000 + (z < 0) * 2.0**-14,
    "behind a ReLU": lambda z: np.maximum(z, 0),
    "log-normal": lambda z: np.exp(2 * z),
    "rising from 0 to 1": lambda z: np.linspace(0, 1, len(z))[:, None] + 0 * z,
    "10¹⁹ times random": lambda z: 1e19 * z,
    "10⁻²² times random": lambda z: 1e-22 * z,
}  # fmt: skip


def of_torch(src, channels_last):
    import torch

    x = tensor_of(src).movedim(-1, 1)
    x = x if channels_last else x.contiguous()
    # The results have the dtype of the running statistics.
    running = torch.zeros(x.shape[1]), torch.ones(x.shape[1])
    return torch.ops.aten.batch_norm_update_stats(x, *running, 0.1)


def of_tensorflow(src):
    import tensorflow as tf

    ones, nothing = np.ones(src.shape[-1], np.float32), np.zeros(0, np.float32)
    results = tf.raw_ops.FusedBatchNormV3(
        x=src, scale=ones, offset=ones, mean=nothing, variance=nothing, epsilon=1e-5
    )
    return results.reserve_space_1, results.reserve_space_2


def of_flax(src):
    import flax.linen
    import jax.numpy as jnp

    layer = flax.linen.BatchNorm(
        use_running_average=False, momentum=0.0, use_bias=False, use_scale=False
    )
    zeros = jnp.zeros(src.shape[-1])
    running = {"batch_stats": {"mean": zeros, "var": zeros}}
    _, updated = layer.apply(running, jnp.asarray(src), mutable=["batch_stats"])
    return updated["batch_stats"]["mean"], updated["batch_stats"]["var"]


def of_numpy(src):
    x = src.astype(np.float32)
    return x.mean(axis=(0, 1, 2)), x.var(axis=(0, 1, 2))


def of_bn_ext(src):
    ones = np.ones(src.shape[-1], np.float32)
    return bn_ext.batch_norm_training(src, ones, ones, epsilon=1e-5, data_format="NXC")[1:]


#: (mean, variance) of src, channels last.
STATISTICS = {
    "bn_ext": of_bn_ext,
    "numpy": of_numpy,
    "torch, NCHW": partial(of_torch, channels_last=False),
    "torch, channels last": partial(of_torch, channels_last=True),
    "tensorflow": of_tensorflow,
    "flax": of_flax,
}


def variance_errors(src, want, dtype, statistics):
    """The largest error beyond half an ulp, in multiples of u times the variance (if it is 0, u
    times the squared mean).
    """
    mean, variance = (as_array(a) for a in statistics(src))
    error = bounds.statistics_errors(mean, variance, want, dtype, "float32")["variance"]
    sizes = np.where(want.variance > 0, want.variance, want.mean**2)
    return (worst(error._replace(bound=unit("float32") * sizes).share()),)


def variances():
    """[(dtype, M, data, {name: errors})]"""
    *sizes, channels = SHAPE
    for dtype, (kind, make) in itertools.product(DTYPES, FORWARD_KINDS.items()):
        rng, rows = np.random.default_rng(1), int(np.prod(sizes))
        with np.errstate(all="ignore"):
            values = make(rng.standard_normal((rows, channels)))
            src = values.astype(dtype_of(dtype)).reshape(SHAPE)
            want = reference.batch_norm_training(src, None, None, epsilon=1e-5, wide=np.longdouble)
        errors = of_each(STATISTICS, partial(variance_errors, src, want, dtype))
        yield dtype, rows, kind, errors


# ---- the pages ----------------------------------------------------------------------

#: Rows of docs/numerics.md.
ON_PAGE = {
    ("float32", 32400, data) for data in (
        "random, mean = 0 deviations", "random, mean = 1000 deviations",
        "behind a ReLU", "10¹⁹ times random",
    )
}  # fmt: skip


def shown(value):
    if value >= 1e6:
        return f"{value:.1e}"
    return f"{value:.2f}" if value < 10 else f"{value:,.0f}".replace(",", " ")


def write(name, rows, *headings):
    """Write all rows to docs/NAME.csv; headings of each name's errors."""
    rows = list(rows)
    names = list(dict.fromkeys(name for *_, errors in rows for name in errors))
    columns = list(itertools.product(range(len(headings)), names))
    lines = [
        [*facts, *(shown(errors[n][i]) if n in errors else "" for i, n in columns)]
        for *facts, errors in rows
    ]
    heading = ["dtype", "M", "data", *(headings[i].format(n) for i, n in columns)]
    measured = f"{date.today()}, {pages.versions(name.partition(',')[0] for name in names)}"
    pages.write_rows(name, measured, heading, lines)
    return measured, heading, lines


def draw(path):
    """Draw errors of the gradient as multiples of their bounds, from docs/accuracy.csv."""
    with (pages.ROOT / "docs" / "accuracy.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(list(file)[1:]))
    kinds = [kind for kind, _, _ in KINDS]
    colors = {"torch": "#c9772b", "numpy": "#8a9bab", "bn_ext": "#1f6fb2"}
    marks = {("float32", "4096"): "o", ("float32", "1048576"): "s",
             ("bfloat16", "4096"): "^", ("bfloat16", "1048576"): "D"}  # fmt: skip
    with pages.picture(path, size=(4.4, 4.8), dpi=140) as (figure, panels):  # for a phone, too
        (panel,) = panels.flat
        for k, (name, color) in enumerate(colors.items()):
            for (dtype, m), mark in marks.items():
                mine = [r for r in rows if (r["dtype"], r["M"]) == (dtype, m)]
                shares = [float(r[f"{name}: bounds"].replace(" ", "")) for r in mine]
                places = [kinds.index(r["data"]) + (k - 1) / 5 for r in mine]
                panel.plot([max(x, 0.01) for x in shares], places, mark, color=color, markersize=5)
            panel.plot([], [], "o", color=color, label=name)
        panel.plot([], [], " ", label=" ")  # ends the legend's first column
        for (dtype, m), mark in marks.items():
            panel.plot([], [], mark, color=pages.GREY, label=f"{dtype}, M = {m}")
        panel.axvline(1, color=pages.GREY, linewidth=1)
        panel.text(1.2, len(kinds) - 0.6, "the bound", color=pages.GREY, fontsize=9)
        for place, kind in enumerate(kinds):
            panel.text(1.2e4, place - 0.38, kind, color=pages.GREY, fontsize=9, ha="right")
        panel.set(xscale="log", yticks=[], ylim=(len(kinds) - 0.5, -0.8))
        panel.set_xlabel("largest error of the gradient / its bound")
        figure.legend(loc="outside lower center", ncols=2, fontsize=9, frameon=False)


def draw_rows(path):
    """Draw how the error of diff_beta grows with the number of rows, beside the limit."""
    counts = [10**k for k in range(1, 7)]
    errors = {"NumPy, row after row": [], "NumPy, in pairs": [], "bn_ext": []}
    for m in counts:
        dy = np.random.default_rng(0).random((m, 4), np.float32) + np.float32(0.5)
        exact, vector = dy.astype(np.longdouble).sum(axis=0), np.ones(4, np.float32)
        grads = bn_ext.batch_norm_backward(dy, dy, vector, vector, vector, epsilon=0)
        pairs = np.ascontiguousarray(dy.T).sum(axis=1)
        sums = dy.sum(axis=0), pairs, grads.diff_beta
        for own, value in zip(errors.values(), sums, strict=True):
            own.append(float((abs(value - exact) / exact).max()))
    with pages.picture(path, size=(4.4, 2.8), dpi=140) as (_, panels):
        (panel,) = panels.flat
        colors = "#c9772b", "#8a9bab", "#1f6fb2"
        for (name, own), color in zip(errors.items(), colors, strict=True):
            panel.plot(counts, np.maximum(own, 1e-9), "o-", color=color, label=name)
        limit = 13 * unit("float32")  # 12, and half an ulp
        panel.axhline(limit, color=pages.GREY, linewidth=1, linestyle="--", label="the limit")
        panel.set(xscale="log", yscale="log", xlabel="rows", ylabel="error of diff_beta, relative")
        panel.legend(fontsize=9, frameon=False)


def report(options):
    write("accuracy", gradients(), "{}: bounds", "{}: u of terms")
    draw(pages.ROOT / "docs" / "accuracy.png")
    draw_rows(pages.ROOT / "docs" / "howto" / "rows.png")
    measured, heading, lines = write("accuracy-of-variance", variances(), "{}")
    table = pages.markdown(heading, [line for line in lines if tuple(line[:3]) in ON_PAGE])
    pages.put("accuracy-of-variance", "docs/numerics.md", f"{measured}:\n\n{table}\n")
