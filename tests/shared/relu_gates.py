"""Problems with a ReLU, its gate in each form, and what a gated call must give."""

import numpy as np
from cases import Family, packed, shape

import bn_ext

#: N, C, X: each form of src_c/call/order.c; some numbers of elements are not multiples of 8.
SIZES = [
    (1, 1, 1), (3, 5, 1), (300, 7, 1), (40, 200, 1), (9, 130, 3), (37, 6, 49), (2, 3, 47),
    (9, 3, 143), (9, 3, 150), (70, 2, 300), (1, 3, 1500), (3, 2, 5000), (5, 3, 2049),
]  # fmt: skip
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
