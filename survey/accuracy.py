"""Errors of the gradient on hostile data, next to NumPy's and torch's: results/accuracy.csv, .png.

The bounds are those of docs/numerics.md, from tests/shared/bounds.py.
"""

import csv
import itertools
import sys
import warnings
from datetime import date

import numpy as np

import bn_ext
from benchmarks import pages
from bn_ext._bench import PEERS, Case, Problem
from bn_ext.testing import _formulas as reference
from bn_ext.testing._limits import unit

sys.path.append(str(pages.ROOT / "tests" / "shared"))

import bounds

RESULTS = pages.ROOT / "survey" / "results"
CSV = RESULTS / "accuracy.csv"
DTYPES = ("float32", "bfloat16")
SHAPES = ((16, 64, 16, 16), (16, 2, 256, 256))


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


#: (description, dy (C, M); None: xhat, mean / standard deviation of src)
KINDS = [
    ("random", lambda rng, size: rng.standard_normal(size), 0),
    ("dy constant", lambda rng, size: np.broadcast_to(rng.uniform(1, 2, (size[0], 1)), size), 0),
    ("dy = xhat", None, 0),
    ("dy = xhat, mean = 1000 deviations", None, 1000),
    ("dy over 40 powers of two", magnitudes, 0),
    ("one large dy among small", one_large, 0),
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


def as_array(output):
    """A peer's output as doubles."""
    output = output.double() if hasattr(output, "detach") else output
    return np.asarray(output).astype(np.float64)


def largest_share(problem, want, dtype, peer):
    """The largest error beyond half an ulp, of any output, in multiples of its bound."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        diff_src, *sums = (as_array(a) for a in peer(problem)())
    got = type(want)(diff_src, *(s.ravel() for s in sums), *want[3:])
    shares = [e.share() for e in bounds.errors(got, want, dtype, "float32").values()]
    return max(np.inf if np.isnan(share).any() else share.max() for share in shares)


def measured():
    """Rows: dtype, M, data, the largest share of each peer."""
    for dtype, shape, (kind, make, ratio) in itertools.product(DTYPES, SHAPES, KINDS):
        p = problem_of(np.random.default_rng(1), make, ratio, shape, dtype)
        arrays = p.src, p.diff_dst, p.mean, p.variance, p.gamma
        want = reference.batch_norm_backward(*arrays, epsilon=p.epsilon, axis=1, wide=np.longdouble)
        shares = [f"{largest_share(p, want, dtype, peer):.3g}" for peer in PEERS.values()]
        yield dtype, p.src.size // shape[1], kind, *shares


def draw(path):
    """Draw errors of the gradient as multiples of their bounds, from their file."""
    with CSV.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(list(file)[1:]))
    kinds = [kind for kind, _, _ in KINDS]
    colors = {"torch": "#c9772b", "numpy": "#8a9bab", "bn_ext": "#1f6fb2"}
    keys = itertools.product(("float32", "bfloat16"), ("4096", "1048576"))
    marks = dict(zip(keys, "os^D", strict=True))
    with pages.picture(path, size=(4.4, 4.8), dpi=140) as (figure, panels):  # for a phone, too
        (panel,) = panels.flat
        for k, (name, color) in enumerate(colors.items()):
            for (dtype, m), mark in marks.items():
                mine = [r for r in rows if (r["dtype"], r["M"]) == (dtype, m)]
                shares = [float(r[name]) for r in mine]
                places = [kinds.index(r["data"]) + (k - 1) / 5 for r in mine]
                panel.plot([max(x, 0.01) for x in shares], places, mark, color=color, markersize=5)
            panel.plot([], [], "o", color=color, label=name)
        panel.plot([], [], " ", label=" ")  # ends the legend's first column
        for (dtype, m), mark in marks.items():
            panel.plot([], [], mark, color=pages.GREY, label=f"{dtype}, M = {m}")
        panel.axvline(1, color=pages.GREY, linewidth=1)
        panel.text(1.2, len(kinds) - 0.6, "the bound", color=pages.GREY, fontsize=9)
        words = {"color": pages.GREY, "fontsize": 9, "ha": "right"}
        for place, kind in enumerate(kinds):  # at the right edge, wherever the errors end
            panel.text(0.99, place - 0.38, kind, transform=panel.get_yaxis_transform(), **words)
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


def report():
    """Write the file, and draw both pictures."""
    run = f"{date.today()}, {pages.versions(['torch'])}"
    pages.write_rows(CSV, run, ["dtype", "M", "data", *PEERS], list(measured()))
    draw(RESULTS / "accuracy.png")
    draw_rows(RESULTS / "rows.png")
