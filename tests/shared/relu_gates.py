"""Problems with a ReLU, its gate in each form, and what a gated call must give."""

import numpy as np
from cases import Family, packed, shape, shapes

import bn_ext

#: N, C, X: each form of src_c/call/order.c; some numbers of elements are not multiples of 8.
SIZES = shapes("1x1x1 3x5x1 300x7x1 40x200x1 9x130x3 37x6x49 2x3x47")
SIZES += shapes("9x3x143 9x3x150 70x2x300 1x3x1500 3x2x5000 5x3x2049")
GATES = ["beta", "dst", "workspace"]
PLAIN = ("src", "diff_dst", "mean", "variance", "gamma")


def lets_pass(dst):
    """Which elements a ReLU let pass, by its result."""
    return ~(dst.astype(np.float64) <= 0)


def forward(p, **options):
    names = ("src", "mean", "variance", "gamma", "beta")
    return p.take(bn_ext.batch_norm_inference, *names, **options)


def problem(rng, dims, data_format, *types):
    """A problem with a gate: its dst, which elements pass, and the same as bits."""
    p = Family(rng, shape(*dims, data_format), data_format, *types)
    p.dst = forward(p, relu=True)
    p.passes = lets_pass(p.dst)
    p.workspace = packed(p.passes, p.src, data_format)
    return p


def gated(p, gate, function=bn_ext.batch_norm_backward, **options):
    options |= {"relu": True, gate: getattr(p, gate)}
    return p.take(function, *PLAIN, **options)


def passed(p):
    return np.where(p.passes, p.diff_dst, np.zeros((), p.diff_dst.dtype))


def plain(p, **options):
    return p.run(bn_ext.batch_norm_backward, diff_dst=passed(p), **options)
