"""Errors of the gradient and of its peers on hostile data, as multiples of the bounds.

The bounds are those of docs/numerics.md, as tests/bounds.py has them.
"""

import itertools
import sys
import warnings

import numpy as np

from bn_ext._bench.peers import PEERS, bn_ext_call
from bn_ext._bench.problems import Problem
from bn_ext._bench.timing import markdown

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
    """The second half takes the first one back."""
    values = magnitudes(rng, size)
    half = size[1] // 2
    values[:, half:] = -values[:, :half]
    return values


#: (what it is, dy, mean / deviation of src)
KINDS = [
    ("random", normal, 0),
    ("dy constant", constant, 0),
    ("dy = xhat", None, 0),
    ("dy = xhat, mean = 1000 deviations", None, 1000),
    ("dy over 40 powers of two", magnitudes, 0),
    ("one large dy among small", one_large, 0),
    ("second half of dy takes the first back", cancelling, 0),
]


def problem_of(rng, make, ratio, shape, dtype):
    """The batch's own statistics."""
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
    if hasattr(of, "detach"):
        import torch

        of = of.to(torch.float64).numpy()
    return np.asarray(of).astype(np.float64)


def compared(want, call, dtype):
    """Largest errors beyond half an ulp: any output's in bounds, diff_src's in u of its terms."""
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
    sys.path.append(str(pages.ROOT / "tests"))
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


def shown(value):
    return f"{value:.2f}" if value < 10 else f"{value:,.0f}".replace(",", " ")


def table(found):
    names = list(dict.fromkeys(name for *_, worst in found for name in worst))
    heading = ["dtype", "M", "data", *(f"{name}: bounds" for name in names)]
    heading += [f"{name}: u of terms" for name in names]
    lines = [
        [
            dtype,
            str(m),
            kind,
            *(shown(worst[n][i]) if n in worst else "" for i in (0, 1) for n in names),
        ]
        for dtype, kind, m, worst in found
    ]
    return markdown(heading, lines)


def write(console, day):
    """Put the table between its marks in docs/numerics.md."""
    found = measure()
    versions = [f"NumPy {np.__version__}"]
    if "torch" in sys.modules:
        versions.append(f"torch {sys.modules['torch'].__version__}")
    text = f"{day}, {', '.join(versions)}:\n\n{table(found)}\n"
    pages.put("accuracy", "docs/numerics.md", text, console)
