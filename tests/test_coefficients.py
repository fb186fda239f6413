"""Coefficients are computed in doubles from vectors of any dtype, then rounded once.

What is computed once per channel is repeated in NumPy's doubles, for data of fewer digits. Sums are
those of GradientSums about a mean as kernels subtract it (test_walks.py checks their bits), and
elements are the oracle's.
"""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
from cases import DATA_DTYPES, EPSILON, INPUTS, Family, dtype
from oracle.dtypes import DTYPES
from oracle.formulas import RESULTS
from relu_gates import lets_pass

import bn_ext

pytestmark = [pytest.mark.fast, pytest.mark.results]

VECTORS = ["mean", "variance", "gamma", "beta", "diff_diff_gamma", "diff_diff_beta"]
TENSORS = ["src", "diff_dst", "src_1", "diff_diff_src"]
COUNT, CHANNELS = 9, 300
NARROW = [name for name in DATA_DTYPES if name != "float64"]


@pytest.fixture(params=itertools.product(["float64", "any"], NARROW))
def p(request, rng):
    """A problem whose vectors have all digits of their dtypes."""
    kind, data = request.param
    p = Family(rng, (COUNT, CHANNELS), "NXC", data, "float64")
    for name in VECTORS:
        values = rng.uniform(0.5, 2, CHANNELS) * (1 if "variance" in name else rng.choice([-1, 1]))
        setattr(p, name, values.astype(dtype(rng.choice(DATA_DTYPES) if kind == "any" else kind)))
    return p


class Model:
    """What a channel's vectors become."""

    def __init__(self, p, **vectors):
        self.p, self.dtype = p, DTYPES[p.src.dtype.name]
        doubles = {name: getattr(p, name) for name in VECTORS} | vectors
        self.v = v = SimpleNamespace(**{k: a.astype(np.float64) for k, a in doubles.items()})
        self.rstd = 1 / np.sqrt(v.variance + EPSILON)
        self.scale = v.gamma * self.rstd
        self.mean = v.mean.astype(np.float32)
        self.low = v.mean - self.mean.astype(np.float64)
        self.shift = v.beta - self.scale * self.low

    def sums(self, by, terms, count=1):
        """sum(of) / count and sum(of * (by - mean)) / count, in doubles."""
        total, with_xc = bn_ext.GradientSums(by, terms, self.mean)._sums / count
        return total, with_xc - total * self.low

    def result(self, formula, **coefs):
        bits = {name: getattr(self.p, name).view(self.dtype.bits) for name in TENSORS}
        wide = SimpleNamespace(**{k: self.dtype.widen(a) for k, a in bits.items()})
        wide.stored = lambda y: self.dtype.widen(self.dtype.narrow(y))
        numbers = {k: a.astype(np.float32) for k, a in coefs.items()}
        written = RESULTS[formula](wide, SimpleNamespace(mean=self.mean, **numbers))
        return {name: self.dtype.narrow(values) for name, values in written.items()}


def assert_bits(outputs, *results):
    """They have these bits: of tensors as the oracle gives them, of vectors as doubles."""
    for got, wanted in zip(outputs, results, strict=True):
        np.testing.assert_array_equal(got.view(wanted.dtype), wanted)


@pytest.mark.parametrize("added", [False, True])
def test_forward(p, added):
    arguments = {"src": p.src, "gamma": p.gamma, "beta": p.beta, "epsilon": EPSILON}
    arguments |= {"src_1": p.src_1} if added else {}
    formula = "normalize, add" if added else "normalize"
    trained = bn_ext.batch_norm_training(**arguments)
    dst = bn_ext.batch_norm_inference(mean=p.mean, variance=p.variance, **arguments)
    batch = {"mean": trained.mean, "variance": trained.variance}
    for got, model in ((dst, Model(p)), (trained.dst, Model(p, **batch))):
        written = model.result(formula, scale=model.scale, shift=model.shift)
        assert_bits([got], written["dst"])


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("is_training", [True, False])
def test_backward(p, is_training, relu):
    """The gate is computed again from beta."""
    m = Model(p)
    dy = p.diff_dst
    if relu:
        dst = m.result("normalize", scale=m.scale, shift=m.shift)["dst"].view(p.src.dtype)
        dy = np.where(lets_pass(dst), dy, np.zeros((), dy.dtype))
    total, with_xc = m.sums(p.src, dy)
    diff_gamma = m.rstd * with_xc
    slope = m.rstd * diff_gamma / COUNT
    coefs = {"scale": m.scale, "slope": slope, "shift": total / COUNT - slope * m.low}
    formula = ("backward" if is_training else "frozen") + ", relu" * relu
    written = m.result(formula, **coefs, offset=m.shift)
    options = {"is_training": is_training, "out": (None, *np.empty((2, CHANNELS)))}
    options |= {"relu": True, "beta": p.beta} if relu else {}
    results = p.run(bn_ext.batch_norm_backward, **options)
    assert_bits(results, written["diff_src"], diff_gamma, total)


@pytest.mark.parametrize("is_training", [True, False])
def test_double_backward(p, is_training):
    m = Model(p)
    zeros = Model(p, mean=np.zeros(CHANNELS))
    (dy, dy_xc), (g, g_xc) = (
        m.sums(p.src, terms, COUNT) for terms in (p.diff_dst, p.diff_diff_src)
    )
    dy_g = zeros.sums(p.diff_diff_src, p.diff_dst)[1]
    dd_gamma, dd_beta, r = m.v.diff_diff_gamma, m.v.diff_diff_beta, m.rstd
    if is_training:
        dy_xhat, g_xhat = r * dy_xc, r * g_xc
        rest, both = dy_g / COUNT - g * dy, dy_xhat * g_xhat
        slope = r * (dd_gamma - m.scale * g_xhat)
        cross = r * (-m.scale * dy_xhat)
        bend = r * (r * (m.scale * (3 * both - rest) - dd_gamma * dy_xhat))
        shift = dd_beta - m.scale * g - slope * m.low
        offset = -(bend * m.low) - (slope * dy + cross * g)
        others = {"cross": cross, "bend": bend, "offset": offset}
        diff_gamma = COUNT * (r * (rest - both))
    else:
        slope = dd_gamma * r
        shift, others, diff_gamma = dd_beta - slope * m.low, {}, r * dy_g
    formula = "double backward" if is_training else "double frozen"
    written = m.result(formula, scale=m.scale, slope=slope, shift=shift, **others)
    options = {"is_training": is_training, "out": (None, None, np.empty(CHANNELS))}
    names = ["diff_diff_src", "diff_diff_gamma", "diff_diff_beta"]
    results = p.take(bn_ext.batch_norm_double_backward, *INPUTS, *names, **options)
    assert_bits(results, written["diff_src"], written["diff_diff_dst"], diff_gamma)
