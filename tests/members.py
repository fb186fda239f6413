"""The members of the family (cases.Family) behind one interface, for tests of them all."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from cases import EPSILON, Family, all_bits, packed

import bn_ext


class Member(NamedTuple):
    """What a member reads and returns, and its call."""

    #: Tensors, by name; src first.
    reads: list[str]
    #: For each result, "tensor" (like src), "vector" (like gamma) or "statistics" (float64).
    returns: list[str]
    #: Takes a problem, the tensors to use, is_training, summed (from sums of its own?), `out` and
    #: options; returns the results, and what else was written.
    call: Callable[..., tuple[Any, list[Any]]]

    def run(self, p, tensors=None, *, is_training=True, summed=False, out=None, **options):
        """What the member returns for a problem, and the bits of all that it returned or wrote."""
        tensors = {name: getattr(p, name) for name in self.reads} | (tensors or {})
        options = {"data_format": p.data_format, **options}
        found, written = self.call(p, tensors, is_training, summed, out, **options)
        return found, all_bits([*found, *written])

    def like(self, p):
        """For each result, an array of its shape and dtype."""
        kinds = {"tensor": p.src, "vector": p.gamma, "statistics": np.empty(len(p.gamma))}
        return [kinds[kind] for kind in self.returns]


def problem(rng, shape, data_format, *types):
    """A problem with two different gates, `dst` and `passes`, not from a forward pass."""
    p = Family(rng, shape, data_format, *types)
    p.passes = rng.random(p.src.shape, np.float32) < 0.5
    p.dst = p.src_1 * p.passes
    return p


def backward(gate=None, diff_src_1=False, **exact):
    """The gradient; `gate` is the argument that tells what a ReLU let pass."""

    def call(p, t, is_training, summed, out, **options):
        given = {
            None: {},
            "beta": {"relu": True, "beta": p.beta},
            "dst": {"relu": True, "dst": t.get("dst")},
            "workspace": {"relu": True, "workspace": packed(p.passes, t["src"])},
        }[gate]
        data, given = (t["src"], t["diff_dst"]), {"epsilon": EPSILON, **given, **options}
        more = {"is_training": is_training, "diff_src_1": diff_src_1, "out": out, **exact}
        if summed:
            known = {"variance": p.variance, "gamma": p.gamma, **given, **exact}
            more["sums"] = bn_ext.GradientSums(*data, p.mean, **known)
        return bn_ext.batch_norm_backward(*data, *p.vectors(), **more, **given), []

    reads = ["src", "diff_dst", *(["dst"] if gate == "dst" else [])]
    return Member(reads, ["tensor", "vector", "vector", *["tensor"] * diff_src_1], call)


def fused_of(p, t):
    """All options that fuse something into the forward pass, and their workspace."""
    bits = np.zeros(-(-p.src.size // 8), np.uint8)
    return {"src_1": t["src_1"], "relu": True, "workspace": bits}, bits


def training(fused, **exact):
    """The forward pass: plain, or with every fused option and running statistics."""

    def call(p, t, is_training, summed, out, **options):
        more, kept, written = {"epsilon": EPSILON, **options}, {}, []
        if fused:
            extra, bits = fused_of(p, t)
            written = [p.running_mean.copy(), p.running_variance.copy(), bits]
            more |= extra
            kept = {"running_mean": written[0], "running_variance": written[1],
                    "exponential_avg_factor": 0.3, "correction": 0}  # fmt: skip
        affine = p.gamma, p.beta
        if not summed:
            more |= {"out": out, **kept, **exact}
            return bn_ext.batch_norm_training(t["src"], *affine, **more), written
        sums = bn_ext.Statistics(t["src"], **options, **exact)
        if fused:
            sums.update_running(**kept)
        found, into = [sums.mean, sums.variance], out or [None] * 3
        dst = bn_ext.batch_norm_inference(t["src"], *found, *affine, out=into[0], **more)
        for k, array in enumerate(into[1:]):
            if array is not None:
                array[...] = found[k]
                found[k] = array
        return bn_ext.BatchNormTraining(dst, *found), written

    reads = ["src", *(["src_1"] if fused else [])]
    return Member(reads, ["tensor", "statistics", "statistics"], call)


def inference(fused):
    """With given statistics: plain, or with every fused option."""

    def call(p, t, is_training, summed, out, **options):
        extra, bits = fused_of(p, t) if fused else ({}, None)
        given = t["src"], p.mean, p.variance, p.gamma, p.beta
        more = {"epsilon": EPSILON, "out": None if out is None else out[0], **extra, **options}
        dst = bn_ext.batch_norm_inference(*given, **more)
        return (dst,), [bits]

    return Member(["src", *(["src_1"] if fused else [])], ["tensor"], call)


def double_backward():
    def call(p, t, is_training, summed, out, **options):
        given = t["src"], t["diff_dst"], *p.vectors(), t["diff_diff_src"]
        more = {"epsilon": EPSILON, "is_training": is_training, "out": out, **options}
        vectors = p.diff_diff_gamma, p.diff_diff_beta
        return bn_ext.batch_norm_double_backward(*given, *vectors, **more), []

    return Member(["src", "diff_dst", "diff_diff_src"], ["tensor", "tensor", "vector"], call)


MEMBERS = {
    "backward": backward(),
    "backward, beta": backward("beta"),
    "backward, dst": backward("dst"),
    "backward, workspace": backward("workspace"),
    "backward, dst, add": backward("dst", diff_src_1=True),
    "backward, workspace, add": backward("workspace", diff_src_1=True),
    "training": training(fused=False),
    "training, fused": training(fused=True),
    "inference": inference(fused=False),
    "inference, fused": inference(fused=True),
    "double backward": double_backward(),
    "backward, exact": backward(exact=True),
    "backward, beta, exact": backward("beta", exact=True),
    "backward, dst, add, exact": backward("dst", diff_src_1=True, exact=True),
    "training, fused, exact": training(fused=True, exact=True),
}
