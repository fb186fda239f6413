"""What bn_ext.autograd and bn_ext.dask find for a problem, each with the array that it is like."""

import numpy as np
import pytest
from cases import EPSILON
from members import RUNNING, UPDATE


def options_of(p):
    return {"epsilon": getattr(p, "epsilon", EPSILON), "data_format": p.data_format}


def of_autograd(p):
    """Results, and their first and second derivatives by each argument."""
    autograd = pytest.importorskip("autograd")
    import bn_ext.autograd as functions

    options = {**options_of(p), "relu": True}
    pairs = []
    for call, names in (
        (functions.batch_norm_training, ("src", "gamma", "beta", "src_1")),
        (functions.batch_norm_inference, ("src", "mean", "variance", "gamma", "beta", "src_1")),
    ):
        arrays = {name: getattr(p, name) for name in names}
        for name in names:

            def function(value, call=call, name=name, arrays=arrays):
                return call(**arrays | {name: value}, **options)

            vjp, dst = autograd.make_vjp(function)(arrays[name])
            # As `derivative` depends on the gradient of dst.
            again, derivative = autograd.make_vjp(vjp)(p.diff_dst)
            pairs += [(dst, p.src), (derivative, arrays[name])]
            if name not in ("mean", "variance"):
                pairs.append((again(arrays[name]), p.src))
    return pairs


def of_dask(p):
    """Results as they are and computed, and running statistics."""
    dask, da = pytest.importorskip("dask"), pytest.importorskip("dask.array")
    import bn_ext.dask as functions

    src, diff_dst, src_1 = (da.from_array(a, chunks=3) for a in (p.src, p.diff_dst, p.src_1))
    affine, statistics = (p.gamma, p.beta), (p.mean, p.variance)
    running = [a.copy() for a in statistics]
    options = options_of(p)
    tracked = dict(zip(RUNNING, running, strict=True), **UPDATE)
    forward = functions.batch_norm_training(
        src, *affine, src_1=src_1, relu=True, **tracked, **options
    )
    dst = functions.batch_norm_inference(src, *statistics, *affine, **options)
    grads = functions.batch_norm_backward(src, diff_dst, *statistics, p.gamma, **options)
    like = p.src, *[np.empty(0)] * 2, p.src, p.src, p.gamma, p.gamma
    lazy = [*forward, dst, *grads]
    pairs = [*zip(lazy, like, strict=True), *zip(dask.compute(*lazy), like, strict=True)]
    return [*pairs, *zip(running, statistics, strict=True)]
