"""Who passes the standard cases of bn_ext.testing, in float32: docs/howto/reference_for_kernels.md.

Each package runs in a process of its own, which is started again behind a case that crashed it. A
gradient gets the batch's statistics where a package's own operator takes them. Elsewhere (JAX,
flax, Keras, Paddle) it is the automatic one, of a forward pass that makes its own: right is then
what is right for exact statistics, or for those rounded to float32. A call that raises an error, as
without gamma where a package needs one, is not counted, and neither is what no package documents.
docs/conformance.csv has all of that and all that is wrong.

A package that is not installed is left out.
"""

import ctypes
import multiprocessing
import os
import warnings
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor
from dataclasses import replace
from datetime import date
from functools import cache

import numpy as np

import bn_ext
from bn_ext.testing._cases import Kind, standard_cases
from bn_ext.testing._report import Finding, Report, as_array, called, judged

from . import pages
from .compiled import LAYOUTS, onednn, pointers

MOST = 1000  # seconds of a case


# ---- functions: {operation: function} -----------------------------------------------------------


def demand(gamma):
    if gamma is None:
        raise NotImplementedError("it needs gamma")


def ours(layout):
    how = {"data_format": layout}
    return {
        "training": lambda *a, **more: bn_ext.batch_norm_training(*a, **how, **more),
        "inference": lambda *a, **more: bn_ext.batch_norm_inference(*a, **how, **more),
        "backward": lambda *a, **more: bn_ext.batch_norm_backward(*a, **how, **more),
    }


def numpy_formula(layout):
    def training(src, gamma, beta, epsilon):
        axes = tuple(range(src.ndim - 1))
        mean, variance = src.mean(axes), src.var(axes)
        return inference(src, mean, variance, gamma, beta, epsilon), mean, variance

    def inference(src, mean, variance, gamma, beta, epsilon):
        return gamma * (src - mean) / np.sqrt(variance + np.float32(epsilon)) + beta

    def backward(src, diff_dst, mean, variance, gamma, epsilon):
        axes, m = tuple(range(src.ndim - 1)), np.float32(max(1, src[..., 0].size))
        rstd = 1 / np.sqrt(variance + np.float32(epsilon))
        xhat = (src - mean) * rstd
        diff_gamma, diff_beta = (diff_dst * xhat).sum(axes), diff_dst.sum(axes)
        diff_src = gamma * rstd * (diff_dst - (diff_beta + xhat * diff_gamma) / m)
        return diff_src, diff_gamma, diff_beta

    return {"training": training, "inference": inference, "backward": backward}


def torch_operators(layout):
    import torch

    def tensor(a):
        if a is None:
            return None
        whole = torch.from_numpy(a)
        return whole if layout == "NCX" or a.ndim < 2 else whole.movedim(-1, 1)

    def back(found):
        return found if layout == "NCX" else found.movedim(1, -1)

    normalize = torch.nn.functional.batch_norm

    def training(src, gamma, beta, epsilon):
        gamma, beta = tensor(gamma), tensor(beta)
        return back(normalize(tensor(src), None, None, gamma, beta, True, 0.1, epsilon))

    def inference(src, mean, variance, gamma, beta, epsilon):
        x, *vectors = map(tensor, (src, mean, variance, gamma, beta))
        return back(normalize(x, *vectors, False, 0.1, epsilon))

    def backward(src, diff_dst, mean, variance, gamma, epsilon):
        x, dy, mean, variance, gamma = map(tensor, (src, diff_dst, mean, variance, gamma))
        found = torch.ops.aten.native_batch_norm_backward(
            dy, x, gamma, None, None, mean, (variance + epsilon).rsqrt(), True, epsilon, [True] * 3
        )
        diff_src, *vectors = found
        return (back(diff_src), *vectors) if gamma is not None else back(diff_src)

    return {"training": training, "inference": inference, "backward": backward}


def by_jax(forward):
    """A gradient by JAX's reverse mode."""
    import jax

    def backward(src, diff_dst, mean, variance, gamma, epsilon):
        demand(gamma)
        _, back = jax.vjp(lambda x, g, b: forward(x, g, b, epsilon)[0], src, gamma, 0 * gamma)
        return back(diff_dst)

    return backward


def jax_formula(layout):
    import jax
    import jax.numpy as jnp

    def training(src, gamma, beta, epsilon):
        axes = tuple(range(src.ndim - 1))
        mean, variance = jnp.mean(src, axes), jnp.var(src, axes)
        return jax.nn.standardize(src, axes, mean, variance, epsilon) * gamma + beta, mean, variance

    def inference(src, mean, variance, gamma, beta, epsilon):
        axes = tuple(range(src.ndim - 1))
        return jax.nn.standardize(src, axes, mean, variance, epsilon) * gamma + beta

    return {"training": training, "inference": inference, "backward": by_jax(training)}


def flax_layer(layout):
    from flax import linen

    def apply(src, vectors, statistics, epsilon, frozen):
        affine = {"use_bias": "bias" in vectors, "use_scale": "scale" in vectors}
        layer = linen.BatchNorm(use_running_average=frozen, momentum=0.0, epsilon=epsilon, **affine)
        return layer.apply(
            {"params": vectors, "batch_stats": statistics}, src, mutable=["batch_stats"]
        )

    def named(gamma, beta):
        pairs = {"scale": gamma, "bias": beta}
        return {name: a for name, a in pairs.items() if a is not None}

    def training(src, gamma, beta, epsilon):
        start = {"mean": np.zeros(src.shape[-1], "f4"), "var": np.ones(src.shape[-1], "f4")}
        dst, found = apply(src, named(gamma, beta), start, epsilon, False)
        return dst, found["batch_stats"]["mean"], found["batch_stats"]["var"]

    def inference(src, mean, variance, gamma, beta, epsilon):
        return apply(src, named(gamma, beta), {"mean": mean, "var": variance}, epsilon, True)[0]

    return {"training": training, "inference": inference, "backward": by_jax(training)}


def tensorflow_operators(layout):
    import tensorflow as tf

    def training(src, gamma, beta, epsilon):
        demand(gamma)
        none = tf.zeros(0)
        y, _, _, mean, variance, _ = tf.raw_ops.FusedBatchNormV3(
            x=src, scale=gamma, offset=beta, mean=none, variance=none, epsilon=epsilon
        )
        return y, mean, variance

    def inference(src, mean, variance, gamma, beta, epsilon):
        demand(gamma)
        return tf.raw_ops.FusedBatchNormV3(
            x=src, scale=gamma, offset=beta, mean=mean, variance=variance, epsilon=epsilon,
            is_training=False,
        ).y  # fmt: skip

    def backward(src, diff_dst, mean, variance, gamma, epsilon):
        demand(gamma)
        return tuple(tf.raw_ops.FusedBatchNormGradV3(
            y_backprop=diff_dst, x=src, scale=gamma, reserve_space_1=mean, reserve_space_2=variance,
            reserve_space_3=tf.zeros(0), epsilon=epsilon,
        )[:3])  # fmt: skip

    return {"training": training, "inference": inference, "backward": backward}


def onednn_primitives(layout):
    driver = onednn()

    def run(op, src, tensors, vectors, epsilon):
        demand(vectors[2])
        dims = src.shape if layout == "NCX" else (src.shape[0], src.shape[-1], *src.shape[1:-1])
        call = driver.bn_new(
            len(dims), (ctypes.c_int64 * len(dims))(*dims), LAYOUTS[layout], 0,
            pointers([src, *tensors]), pointers(vectors), ctypes.c_float(epsilon), op,
            len(os.sched_getaffinity(0)),
        )  # fmt: skip
        if not call:
            raise ValueError("oneDNN has no such implementation")
        driver.bn_free(call)

    def training(src, gamma, beta, epsilon):
        dst, mean, variance = np.empty_like(src), np.empty_like(gamma), np.empty_like(gamma)
        run(2, src, [dst], [mean, variance, gamma, beta], epsilon)
        return dst, mean, variance

    def inference(src, mean, variance, gamma, beta, epsilon):
        dst = np.empty_like(src)
        run(3, src, [dst], [mean, variance, gamma, beta], epsilon)
        return dst

    def backward(src, diff_dst, mean, variance, gamma, epsilon):
        out = np.empty_like(src), np.empty_like(mean), np.empty_like(mean)
        run(0, src, [diff_dst, out[0]], [mean, variance, gamma, *out[1:]], epsilon)
        return out

    return {"training": training, "inference": inference, "backward": backward}


def keras_layer(backend):
    def functions(layout):
        os.environ["KERAS_BACKEND"] = backend
        import keras

        def layer_of(shape, epsilon, gamma, beta, mean=None, variance=None):
            layer = keras.layers.BatchNormalization(
                axis=-1, momentum=0.0, epsilon=epsilon, center=beta is not None,
                scale=gamma is not None,
            )  # fmt: skip
            layer.build((None, *shape[1:]))
            some = [a for a in (gamma, beta) if a is not None]
            zeros, ones = np.zeros(shape[-1], "f4"), np.ones(shape[-1], "f4")
            layer.set_weights([*some, zeros if mean is None else mean,
                               ones if variance is None else variance])  # fmt: skip
            return layer

        def training(src, gamma, beta, epsilon):
            layer = layer_of(src.shape, epsilon, gamma, beta)
            dst = keras.ops.convert_to_numpy(layer(src, training=True))
            return dst, *layer.get_weights()[-2:]

        def inference(src, mean, variance, gamma, beta, epsilon):
            layer = layer_of(src.shape, epsilon, gamma, beta, mean, variance)
            return keras.ops.convert_to_numpy(layer(src, training=False))

        def backward(src, diff_dst, mean, variance, gamma, epsilon):
            demand(gamma)
            layer = layer_of(src.shape, epsilon, gamma, 0 * gamma)
            if backend == "tensorflow":
                import tensorflow as tf

                x = tf.constant(src)
                with tf.GradientTape() as tape:
                    tape.watch(x)
                    y = layer(x, training=True)
                leaves = [x, layer.gamma.value, layer.beta.value]
                return tuple(tape.gradient(y, leaves, output_gradients=tf.constant(diff_dst)))
            if backend == "torch":
                import torch

                x = torch.from_numpy(src).requires_grad_()
                leaves = [x, layer.gamma.value, layer.beta.value]
                y = layer(x, training=True)
                return tuple(torch.autograd.grad(y, leaves, torch.from_numpy(diff_dst)))
            import jax

            rest = [v.value for v in layer.non_trainable_variables]

            def forward(x, g, b):
                return layer.stateless_call([g, b], rest, x, training=True)[0]

            return jax.vjp(forward, src, gamma, 0 * gamma)[1](diff_dst)

        return {"training": training, "inference": inference, "backward": backward}

    return functions


def paddle_function(layout):
    import paddle

    normalize = paddle.nn.functional.batch_norm

    def start(src):
        channels = src.shape[1]
        return paddle.zeros([channels]), paddle.ones([channels])

    def training(src, gamma, beta, epsilon):
        mean, variance = start(src)
        gamma, beta = (None if a is None else paddle.to_tensor(a) for a in (gamma, beta))
        y = normalize(paddle.to_tensor(src), mean, variance, gamma, beta, True, 0.0, epsilon)
        return y.numpy(), mean.numpy(), variance.numpy()

    def inference(src, mean, variance, gamma, beta, epsilon):
        x, *vectors = (None if a is None else paddle.to_tensor(a)
                       for a in (src, mean, variance, gamma, beta))  # fmt: skip
        return normalize(x, *vectors, False, 0.0, epsilon).numpy()

    def backward(src, diff_dst, mean, variance, gamma, epsilon):
        demand(gamma)
        leaves = [paddle.to_tensor(a, stop_gradient=False) for a in (src, gamma, 0 * gamma)]
        y = normalize(leaves[0], *start(src), *leaves[1:], True, 0.0, epsilon)
        return tuple(g.numpy() for g in paddle.grad(y, leaves, paddle.to_tensor(diff_dst)))

    return {"training": training, "inference": inference, "backward": backward}


#: name: (its functions, packages, layout, whether the gradient makes its own statistics, how many
#: axes it takes at least)
PEERS = {
    "bn_ext, channels last": (ours, ["bn_ext"], "NXC", False, 2),
    "bn_ext, channels first": (ours, ["bn_ext"], "NCX", False, 2),
    "NumPy's formula": (numpy_formula, ["numpy"], "NXC", False, 2),
    "torch, channels first": (torch_operators, ["torch"], "NCX", False, 2),
    "torch, channels last": (torch_operators, ["torch"], "NXC", False, 2),
    "JAX's formula": (jax_formula, ["jax"], "NXC", True, 2),
    "flax": (flax_layer, ["flax", "jax"], "NXC", True, 2),
    "TensorFlow": (tensorflow_operators, ["tensorflow"], "NXC", False, 4),
    "oneDNN, channels last": (onednn_primitives, ["oneDNN"], "NXC", False, 2),
    "oneDNN, channels first": (onednn_primitives, ["oneDNN"], "NCX", False, 2),
    "Keras on TensorFlow": (keras_layer("tensorflow"), ["keras"], "NXC", True, 2),
    "Keras on JAX": (keras_layer("jax"), ["keras"], "NXC", True, 2),
    "Keras on torch": (keras_layer("torch"), ["keras"], "NXC", True, 2),
    "Paddle": (paddle_function, ["paddle"], "NCX", True, 2),
}
OPERATIONS = "training", "inference", "backward"
#: Words of cases: no package says what it returns for such data.
UNDOCUMENTED = "Inf", "empty batch", "no positions"

# ---- in the process of a package ----------------------------------------------------------------


@cache
def cases_of(operation, layout, axes):
    return list(standard_cases(Kind(operation, layout, axes=axes)))


@cache
def functions_of(name):
    functions, _, layout, _, _ = PEERS[name]
    return functions(layout)


def call_here(name, operation, number):
    """What a package returns in a case, as arrays; or what is wrong with the call."""
    warnings.simplefilter("ignore")
    _, _, layout, _, axes = PEERS[name]
    found = called(functions_of(name)[operation], cases_of(operation, layout, axes)[number])
    return found if isinstance(found, Finding) else {
        result: np.array(as_array(value)) for result, value in found.items()
    }  # fmt: skip


# ---- here ---------------------------------------------------------------------------------------


def with_own_statistics(case):
    """The case of a gradient by a package that makes mean and variance itself."""
    rows = np.moveaxis(case.src.astype(np.longdouble), case.axis, 0).reshape(
        case.src.shape[case.axis], -1
    )
    if not rows.size:
        return case
    with np.errstate(all="ignore"):
        own = {"mean": rows.mean(axis=1), "variance": rows.var(axis=1)}
    return replace(case, arrays={**case.arrays, **own})


def findings_of(name):
    """[(operation, [findings of a case])]; None if the package is not installed."""
    _, _, layout, own, axes = PEERS[name]
    found, process = [], None
    for operation in OPERATIONS:
        for number, case in enumerate(cases_of(operation, layout, axes)):
            process = process or ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))
            try:
                result = process.submit(call_here, name, operation, number).result(MOST)
            except ImportError:
                return None
            except BrokenExecutor:
                process, result = None, Finding(case.name, "function", np.inf, reason="crashed")
            if isinstance(result, Finding):
                found.append((operation, [result]))
            else:
                judge = own_or_rounded if own and operation == "backward" else judged
                found.append((operation, judge(case, result)))
    if process:
        process.shutdown()
    return found


def own_or_rounded(case, result):
    """A gradient by a package that makes mean and variance itself: what is nearer counts."""
    pairs = zip(judged(case, result), judged(with_own_statistics(case), result), strict=True)
    return [min(pair, key=lambda each: each.share) for pair in pairs]


def marked(finding):
    """Why a failure does not count, if it does not."""
    if finding.reason.startswith("raised "):
        return "refused"
    return "not documented" if any(word in finding.case for word in UNDOCUMENTED) else ""


def cell_of(found):
    """Of the cases that count: how many pass."""
    reports = [Report(each) for each in found]
    counted = [r for r in reports if r.worst and not any(map(marked, r.failures))]
    return f"{sum(r.passed for r in counted)}/{len(counted)}"


def report(options):
    """Run all, and write the table and the file."""
    lines, rows, used = {}, [], []
    for name, (_, packages, *_) in PEERS.items():
        found = findings_of(name)
        if found is None:
            print(f"{name}: not installed", flush=True)
            continue
        used += packages
        all_ = [(op, f) for op, each in found for f in each]
        rows += [
            [name, op, f.case, f.result, f"{f.share:.3g}",
             f.reason or f"{f.got:.9g} instead of {f.expected:.9g}", marked(f)]
            for op, f in all_ if not f.share <= 1
        ]  # fmt: skip
        shares = [f.share for _, f in all_ if f.share > 0 and f.expected and not marked(f)]
        worst = "NaN, Inf" if max(shares) == np.inf else f"{max(shares):.2g}"
        crashes = sum(f.reason == "crashed" for _, f in all_)
        cells = [*(cell_of([e for o, e in found if o == op]) for op in OPERATIONS), worst, crashes]
        # Of two layouts that fare alike, one line.
        package = name.partition(", ")[0]
        alike = [key for key, value in lines.items() if key.startswith(package) and value == cells]
        lines[package if alike else name] = cells
        for key in alike:
            del lines[key]
        print(name, *cells, sep=" | ", flush=True)
    said = f"{date.today()}, {pages.versions(used)}"
    heading = ["package", *OPERATIONS, "worst error / limit", "crashes"]
    table = pages.markdown(heading, [[name, *cells] for name, cells in lines.items()])
    pages.put("conformance", "docs/howto/reference_for_kernels.md", f"{said}:\n\n{table}\n")
    heading = ["package", "operation", "case", "result", "error / limit", "what", "not counted"]
    pages.write_rows("conformance", said, heading, rows)
