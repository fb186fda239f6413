"""How many planted mistakes the practices of testing find, and whether they pass right kernels.

    python -m survey practices

Mistakes are of the kinds that people report in public; each is a change of a right kernel's text.
torch's, ONNX's and Hypothesis's own checks are run, where these are installed; KernelBench's and
benchdnn's are followed, with their shapes, numbers and limits.
"""

import textwrap
from functools import cache, partial

import numpy as np

from benchmarks import pages
from bn_ext.testing import (
    _formulas as formulas,
    check_backward,
    check_double_backward,
    check_forward,
)

RESULTS = pages.ROOT / "survey" / "results"
HEAD = """
def kernel(src, {arguments}, epsilon):
    axes, rows, C = tuple(range(src.ndim - 1)), src[..., 0].size, src.shape[-1]
    M, number, wide = max(1, rows), src.dtype, np.float64
    vector = np.float64 if number == np.float64 else np.float32
    weight = np.ones(C) if gamma is None else gamma.astype(wide)
    x = src.astype(wide)
"""
NORMALIZE = """
    offset = np.zeros(C) if beta is None else beta.astype(wide)
    rstd = 1 / np.sqrt(variance.astype(wide) + epsilon)
    dst = weight * rstd * (x - mean) + offset
"""
#: In any arithmetic: the judge is tested with the same in long double.
DOUBLE_BACKWARD = """
    dy, g = diff_dst.astype(wide), diff_diff_src.astype(wide)
    r = 1 / np.sqrt(variance.astype(wide) + wide(epsilon))
    xhat = (x - mean) * r
    of_dy, of_g, cross = dy.sum(axes) / M, g.sum(axes) / M, (dy * g).sum(axes) / M
    of_dy_x, of_g_x = (dy * xhat).sum(axes) / M, (g * xhat).sum(axes) / M
    bent = of_g * of_dy - cross + 3 * of_dy_x * of_g_x
    through = xhat * bent + of_g_x * (of_dy - dy) + of_dy_x * (of_g - g)
    diff_src = weight * r**2 * through + ggg * r * (dy - of_dy - xhat * of_dy_x)
    diff_diff_dst = weight * r * (g - of_g - xhat * of_g_x) + ggg * xhat + ggb
    diff_gamma = M * r * (cross - of_g * of_dy - of_g_x * of_dy_x)
    return diff_src.astype(number), diff_diff_dst.astype(number), diff_gamma.astype(vector)
"""
#: Right kernels; the channels are on the last axis.
KERNELS = {
    "training": HEAD.format(arguments="gamma, beta") + """
    mean = x.sum(axes) / M
    variance = ((x - mean) ** 2).sum(axes) / M
""" + NORMALIZE + "    return dst.astype(number), mean.astype(vector), variance.astype(vector)\n",
    "inference": HEAD.format(arguments="mean, variance, gamma, beta") + NORMALIZE
    + "    return dst.astype(number)\n",
    "backward": HEAD.format(arguments="diff_dst, mean, variance, gamma") + """
    dy = diff_dst.astype(wide)
    rstd = 1 / np.sqrt(variance.astype(wide) + epsilon)
    xhat = (x - mean) * rstd
    diff_beta = dy.sum(axes)
    diff_gamma = (dy * xhat).sum(axes)
    diff_src = weight * rstd * (dy - (diff_beta + xhat * diff_gamma) / M)
    return diff_src.astype(number), diff_gamma.astype(vector), diff_beta.astype(vector)
""",
    "double_backward": HEAD.format(
        arguments="diff_dst, mean, variance, gamma, diff_diff_src, ggg, ggb"
    ) + DOUBLE_BACKWARD,
}  # fmt: skip
RSTD = "1 / np.sqrt(variance.astype(wide) + epsilon)"


def rows_of(terms, part):
    """A sum over the rows, of a part of them."""
    return f"{terms}.sum(axes)", f"{terms}.reshape(-1, C)[{part}].sum(0)"


RETURN = "; return "


def results(name, place, value="0"):
    """Before it returns, part of a result is something else."""
    return "return ", f"{name}{place} = {value}{RETURN}"


#: {operation: changes of the text that make a mistake}
MISTAKES = {
    "training": [
        [("((x - mean) ** 2).sum(axes) / M", "((x - mean) ** 2).sum(axes) / max(1, M - 1)")],
        [("variance.astype(vector)", "(variance * M / max(1, M - 1)).astype(vector)")],
        [(RSTD, "1 / (np.sqrt(variance) + epsilon)")],
        [(RSTD, "1 / np.sqrt(variance)")],
        [(RSTD, "1 / np.sqrt(variance + 1e-5)")],
        [(RSTD, "1 / np.sqrt(np.maximum(variance, epsilon))")],
        [(RSTD, "(1 / np.sqrt(variance + epsilon)).astype(np.float16)")],
        [("+ offset", "")],
        [("+ offset", "+ weight * offset")],
        [("weight * rstd", "rstd")],
        [("weight * rstd", "(1 + weight) * rstd")],
        [("np.ones(C)", "np.zeros(C)")],
        [("x.sum(axes)", "np.nansum(x, axes)")],
        [("variance.astype(vector)", "rstd.astype(vector)")],
        [("mean.astype(vector), variance.astype(vector)",
          "variance.astype(vector), mean.astype(vector)")],
        [("x = src.astype(wide)", "x = np.where(np.isinf(src), 0, src.astype(wide))")],
        [rows_of("x", "M % 2:")],
        [rows_of("x", ":M // 16 * 16"), rows_of("((x - mean) ** 2)", ":M // 16 * 16")],
        [rows_of("x", ":65536"), rows_of("((x - mean) ** 2)", ":65536")],
        [rows_of("((x - mean) ** 2)", "[k for k in range(rows) if k != 8192]")],
        [results("dst", "[..., C // 8 * 8 :]")],
        [results("dst", "[65536:]")],
        [results("dst", "[..., 256:]")],
        [results("dst", "[..., variance == 0]")],
    ],
    "inference": [
        [(RSTD, "1 / (np.sqrt(variance) + epsilon)")],
        [(RSTD, "1 / np.sqrt(variance)")],
        [(RSTD, "1 / (variance + epsilon)")],
        [(RSTD, "1 / np.sqrt(variance * M / max(1, M - 1) + epsilon)")],
        [("rstd = 1", "mean, variance = x.mean(axes), x.var(axes); rstd = 1")],
        [("rstd = 1", "mean = x.mean(axes); rstd = 1")],
        [("+ offset", "")],
        [("+ offset", "- offset")],
        [("weight * rstd", "abs(weight) * rstd")],
        [("weight * rstd", "rstd")],
        [("(x - mean)", "(x + mean)")],
        [("(x - mean)", "np.nan_to_num(x - mean)")],
        [("(x - mean)", "np.clip(x - mean, -1e4, 1e4)")],
        [results("dst", "[..., C // 4 * 4 :]")],
        [results("dst", "[..., 1024:]")],
        [results("dst", ".reshape(-1, C)[rows // 32 * 32 :]")],
        [results("dst", "[..., weight == 0]", "offset[weight == 0]")],
    ],
    "backward": [
        [("diff_beta + xhat * diff_gamma", "diff_beta")],
        [("diff_beta + xhat * diff_gamma", "xhat * diff_gamma")],
        [("(dy - (diff_beta + xhat * diff_gamma) / M)", "dy")],
        [("diff_gamma) / M", "diff_gamma) / max(1, M - 1)")],
        [("diff_gamma) / M", "diff_gamma) / max(1, len(src))")],
        [("diff_gamma) / M", "diff_gamma)")],
        [("weight * rstd", "rstd")],
        [("weight * rstd", "abs(weight) * rstd")],
        [("weight * rstd *", "weight *")],
        [(RSTD, "1 / (np.sqrt(variance) + epsilon)")],
        [(RSTD, "1 / np.sqrt(variance)")],
        [(RSTD, "1 / np.sqrt(variance + 1e-5)")],
        [(RSTD, "1 / np.sqrt(variance * M / max(1, M - 1) + epsilon)")],
        [("(dy * xhat).sum(axes)", "(dy * x).sum(axes)")],
        [("(dy * xhat).sum(axes)", "(dy * (x - mean)).sum(axes)")],
        [("diff_gamma.astype(vector), diff_beta.astype(vector)",
          "diff_beta.astype(vector), diff_gamma.astype(vector)")],
        [("diff_gamma.astype(vector)", "(diff_gamma / M).astype(vector)")],
        [("diff_beta.astype(vector)", "(diff_beta / M).astype(vector)")],
        [("dy = diff_dst", "dy = np.nan_to_num(diff_dst)")],
        [("x = src.astype(wide)", "x = np.where(np.isinf(src), 0, src.astype(wide))")],
        [("x = src.astype(wide)", "x = src.astype(np.float16).astype(wide)")],
        [("np.ones(C)", "np.zeros(C)")],
        [rows_of("dy", "1:")],
        [rows_of("dy", ":M // 8 * 8"), rows_of("(dy * xhat)", ":M // 8 * 8")],
        [rows_of("(dy * xhat)", "[k for k in range(rows) if k != 4096]")],
        [rows_of("dy", "[k for k in range(rows) if k != 65536]")],
        [rows_of("dy", "[*range(rows), *[8192] * (rows > 8192)]")],
        [rows_of("(dy * xhat)", ":131072")],
        [results("diff_src", "[..., C // 4 * 4 :]")],
        [results("diff_src", "[..., 128:]")],
        [results("diff_src", ".reshape(-1, C)[rows // 4 * 4 :]")],
        [results("diff_src", ".reshape(-1, C)[16384:]")],
        [results("diff_src", "[..., variance == 0]")],
        [results("diff_src", "[abs(diff_src) < 1e-20]")],
        [results("diff_src", "[...]", "np.clip(diff_src, -1e5, 1e5)")],
    ],
    "double_backward": [
        [("of_dy_x * (of_g - g)", "of_dy_x * (0 - g)")],
        [("3 * of_dy_x", "2 * of_dy_x")],
        [("3 * of_dy_x", "of_dy_x")],
        [(" - cross + ", " + ")],
        [("weight * r**2", "r**2")],
        [(" + ggg * r * (dy - of_dy - xhat * of_dy_x)", "")],
        [("ggg * xhat + ggb", "ggg * xhat")],
        [("ggg * xhat + ggb", "ggb")],
        [("M * r * (cross", "r * (cross")],
        [("- of_g * of_dy -", "-")],
        [("variance.astype(wide) + wide(epsilon)", "variance.astype(wide)")],
        [results("diff_src", "[..., C // 2 * 2 :]")],
        [rows_of("g", ":M // 16 * 16")],
    ],
}  # fmt: skip
#: In float32, or in the data's float64.
F4 = "src.dtype, np.float64", "src.dtype, np.result_type(src.dtype, np.float32).type"
ONE_BY_ONE = "(dy.reshape(-1, C)[::-1].cumsum(0)[-1] if rows else np.zeros(C))"
FACTORED = "weight * rstd * (dy - (diff_beta + xhat * diff_gamma) / M)"
#: The same changes that leave a kernel right: other orders, other forms, in double and in float32.
STYLES = {
    "training": [
        [], [F4],
        [F4, ("((x - mean) ** 2).sum(axes)", "np.square(x - mean).sum(axes)")],
        [F4, ("weight * rstd * (x - mean)", "(weight * rstd) * (x - mean)")],
        [F4, ("weight * rstd * (x - mean)", "weight * ((x - mean) * rstd)")],
    ],
    "inference": [
        [], [F4],
        [F4, ("weight * rstd * (x - mean)", "weight * ((x - mean) * rstd)")],
        [F4, ("weight * rstd * (x - mean)", "weight * (x - mean) / (1 / rstd)")],
    ],
    "backward": [
        [], [F4],
        [F4, ("(diff_beta + xhat * diff_gamma) / M", "(diff_beta / M + xhat * (diff_gamma / M))")],
        [F4, (FACTORED, "weight * rstd / M * (M * dy - diff_beta - xhat * diff_gamma)")],
        [F4, (FACTORED, "weight * (rstd * (dy - (diff_beta + xhat * diff_gamma) / M))")],
        [F4, ("(dy * xhat).sum(axes)", "(dy * (x - mean)).sum(axes) * rstd")],
        [F4, ("dy.sum(axes)", ONE_BY_ONE)],
    ],
    "double_backward": [
        [], [F4], [F4, ("weight * r**2 * through", "weight * r * (r * through)")],
        [F4, ("M * r * (cross", "r * M * (cross")],
    ],
}  # fmt: skip


def kernel_with(text, changes):
    """A kernel, some of whose text is replaced."""
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new)
    names = {"np": np}
    exec(text, names)
    return names["kernel"]


# ---- practices -----------------------------------------------------------------------------

INPUTS = {
    "training": ("src", "gamma", "beta"), "inference": ("src", "mean", "variance", "gamma", "beta"),
    "backward": ("src", "diff_dst", "mean", "variance", "gamma"),
    "double_backward": ("src", "diff_dst", "mean", "variance", "gamma", "ggx", "ggg", "ggb"),
}  # fmt: skip


def right(operation, arrays, epsilon):
    """What is right, in double."""
    return getattr(formulas, f"batch_norm_{operation}")(*arrays, epsilon=epsilon)


def call_kernel(operation, kernel, arrays, epsilon):
    """The results of a kernel."""
    results = kernel(*arrays, epsilon=epsilon)
    return results if isinstance(results, tuple) else (results,)


def statistics_of(src):
    rows = src.reshape(-1, src.shape[-1])
    return rows.mean(0), rows.var(0)


def inputs_of(operation, draw, shape, number=np.float32):
    """What a kernel takes, of draw(name, shape); statistics of a gradient are those of src."""
    arrays = {}
    for name in INPUTS[operation]:
        like_src = name in ("src", "diff_dst", "ggx")
        arrays[name] = np.asarray(draw(name, shape if like_src else shape[-1:]), number)
    if operation.endswith("backward"):
        arrays["mean"], arrays["variance"] = statistics_of(arrays["src"])
    return tuple(arrays.values())


@cache
def problem(operation, shape, draw, seed, epsilon):
    """Random arrays, of draw(rng, shape), and what is right for them."""
    rng = np.random.default_rng(seed)

    def drawn(name, shape):
        numbers = draw(rng, shape)
        return abs(numbers) + 0.5 if name == "variance" else numbers

    arrays = inputs_of(operation, drawn, shape)
    return arrays, right(operation, arrays, epsilon)


def differs(
    operation, kernel, shape, draw=np.random.Generator.standard_normal, *, rtol, atol, seed=1
):
    """Does a result for random numbers differ from what is right by more than the tolerances?"""
    arrays, wanted = problem(operation, shape, draw, seed, 1e-5)
    return not close(call_kernel(operation, kernel, arrays, 1e-5), wanted, rtol, atol)


def close(results, wanted, rtol=1e-5, atol=1e-8):
    return all(
        np.allclose(a, b, rtol, atol, equal_nan=True) for a, b in zip(results, wanted, strict=False)
    )


def judge(operation, kernel):
    check, options = {
        "training": (check_forward, {}), "inference": (check_forward, {"is_training": False}),
        "backward": (check_backward, {}), "double_backward": (check_double_backward, {}),
    }[operation]  # fmt: skip
    try:
        for quick in (True, False):  # most are found soon
            check(kernel, quick=quick, **options)
    except AssertionError:
        return True
    return False


def gradcheck(operation, kernel):
    """torch's: the kernel is the gradient of a right function, or has a right gradient."""
    import torch

    rng, training = np.random.default_rng(1), operation != "inference"
    src, dy, gamma, beta = (rng.standard_normal(shape) for shape in ((4, 3, 3), (4, 3, 3), 3, 3))
    leaves = (src, dy, gamma) if operation == "double_backward" else (src, gamma, beta)
    running = rng.standard_normal(3), rng.random(3) + 0.5

    def forward(src, *rest):
        statistics = statistics_of(src) if training else running
        if operation == "double_backward":
            return right("backward", (src, rest[0], *statistics, rest[1]), 1e-5)[:3]
        if operation == "backward":
            return right("training", (src, *rest), 1e-5)[:1]
        return call_kernel(operation, kernel, (src, *(() if training else running), *rest), 1e-5)[
            :1
        ]

    def back(grads, src, *rest):
        statistics = statistics_of(src) if training else running
        if operation == "double_backward":
            arrays = src, rest[0], *statistics, rest[1], *grads
            return call_kernel(operation, kernel, arrays, 1e-5)
        arrays = src, *grads, *statistics, rest[0]
        if operation == "backward":
            return call_kernel(operation, kernel, arrays, 1e-5)
        return formulas.batch_norm_backward(*arrays, epsilon=1e-5, is_training=training)[:3]

    class Operation(torch.autograd.Function):
        @staticmethod
        def forward(context, *tensors):
            context.save_for_backward(*tensors)
            results = tuple(torch.from_numpy(a) for a in forward(*(t.numpy() for t in tensors)))
            return results if len(results) > 1 else results[0]

        @staticmethod
        def backward(context, *grads):
            tensors = (t.detach().numpy() for t in context.saved_tensors)
            return tuple(map(torch.from_numpy, back([g.numpy() for g in grads], *tensors)))

    leaves = [torch.from_numpy(a).requires_grad_() for a in leaves]
    return not torch.autograd.gradcheck(Operation.apply, leaves, raise_exception=False)


def opinfo(operation, kernel):
    """The samples of torch's tests, and what torch gives for them, to its tolerances."""
    import torch
    from torch.testing._internal.common_methods_invocations import op_db

    torch.manual_seed(1)
    batch_norm = next(op for op in op_db if op.name == "nn.functional.batch_norm")
    for sample in batch_norm.sample_inputs("cpu", torch.float32):
        src, (mean, variance, gamma, beta), options = sample.input, sample.args, sample.kwargs
        training, double = options.get("training", False), operation == "double_backward"
        if src.ndim < 2 or training == (operation == "inference") or (double and gamma is None):
            continue
        leaves = [a.requires_grad_() for a in (src, gamma, beta) if a is not None]
        dst = batch_norm.op(src, *sample.args, **options)
        axes = [axis for axis in range(src.ndim) if axis != 1]
        others = torch.var_mean(src, axes, correction=0)[::-1] if training else (mean, variance)
        arrays, wanted = (src, *others, gamma, beta), [dst]
        if operation == "training":
            arrays, wanted = (src, gamma, beta), [dst, *others]
        elif operation != "inference":
            diff_dst = torch.randn_like(src).requires_grad_()
            wanted = torch.autograd.grad(dst, leaves, diff_dst, create_graph=double)
            arrays = src, diff_dst, *others, gamma
            if double:
                second = [torch.randn_like(a) for a in leaves]
                arrays = *arrays, *second
                wanted = torch.autograd.grad(wanted, (src, diff_dst, gamma), second)
        results = call_kernel(
            operation, kernel, map(channels_last, arrays), options.get("eps", 1e-5)
        )
        for result, tensor in zip(results, wanted, strict=False):
            try:
                torch.testing.assert_close(result, channels_last(tensor), equal_nan=True)
            except AssertionError:
                return True
    return False


def channels_last(tensor):
    """An array of a tensor with channels on axis 1."""
    if tensor is None:
        return None
    array = tensor.detach().numpy()
    return np.ascontiguousarray(np.moveaxis(array, 1, -1)) if array.ndim > 1 else array


@cache
def onnx_cases():
    """[(attributes, inputs, outputs, rtol, atol)] of ONNX's backend tests"""
    from onnx import helper
    from onnx.backend.test.case.node import collect_testcases

    cases = []
    for case in collect_testcases("BatchNormalization"):
        attributes = {
            a.name: helper.get_attribute_value(a) for a in case.model.graph.node[0].attribute
        }
        cases += [(attributes, *arrays, case.rtol, case.atol) for arrays in case.data_sets]
    return cases


def onnx_backend(operation, kernel):
    """ONNX's cases with their numbers; it has none of gradients."""
    training, results = operation == "training", []
    for attributes, (src, gamma, beta, *statistics), wanted, rtol, atol in onnx_cases():
        if attributes.get("training_mode", 0) != training or operation.endswith("backward"):
            continue
        arrays = np.moveaxis(src, 1, -1), *([] if training else statistics), gamma, beta
        dst, *batch = call_kernel(operation, kernel, arrays, attributes.get("epsilon", 1e-5))
        share = attributes.get("momentum", 0.9)
        batch = [
            share * old + (1 - share) * new for old, new in zip(statistics, batch, strict=False)
        ]
        results.append(close([np.moveaxis(dst, -1, 1), *batch], wanted, rtol, atol))
    return not all(results)


#: (N, ..., C) of benchdnn's shapes_ci.
SHAPES_CI = [(2, 32, 32), (5, 27, 33), (2, 28, 28, 256), (4, 17, 16, 200)]
SHAPES_CI += [(2, 12, 12, 12, 16), (1, 4, 6, 6, 19)]


@cache
def benchdnn_problem(operation, shape):
    """Its numbers: pairs around a mean that is a power of two, so that statistics are exact;
    a diff_dst of few whole numbers.
    """
    rows, channels = int(np.prod(shape[:-1])), shape[-1]
    c, place = np.arange(channels), np.arange(rows)[:, None] + 478 * np.arange(channels)
    powers, rng = 2.0 ** (c % 7), np.random.default_rng(1)
    bits = min(24, (24 - int(np.ceil(np.log2(rows)))) // 2 - 1)
    change = (place // 2 * 1637 & (1 << bits) - 1) / (1 << bits) * (1 - place % 2 * 2)
    src = 0.25 * powers * (1 + change)
    if rows % 2:
        src[-1] = 0.25 * powers
    made = {"src": src, "mean": 0.25 * powers, "variance": c % 7 * 2.0}
    made |= {"gamma": powers / 8, "beta": (c % 3 - 1) * powers / 512}
    if operation == "inference":
        made |= {"src": place % 65 - 32.0, "gamma": powers, "beta": (c % 3 - 1) * powers}

    def drawn(name, size):
        if name in made:
            return made[name].reshape(size)
        # Few are not 0; at least 20.
        kept = rng.random(size) < max(0.05, min(1, 20 / np.prod(size)))
        return rng.integers(-2, 3, size) * kept

    arrays = inputs_of(operation, drawn, shape)
    return arrays, right(operation, arrays, 1e-4)


def benchdnn(operation, kernel):
    """Its limits: statistics are exact; of gradients, norms are compared."""
    if operation == "double_backward":
        return False  # it has none
    for shape in SHAPES_CI:
        arrays, wanted = benchdnn_problem(operation, shape)
        results = call_kernel(operation, kernel, arrays, 1e-4)
        for k, (result, exact) in enumerate(zip(results, wanted, strict=False)):
            off, size = abs(result - exact), abs(exact)
            if operation == "backward":
                off, size = np.linalg.norm(off), np.linalg.norm(size)
                limit = 6e-7 if result.ndim > 1 else 5e-6
            elif k:
                off, limit = result != exact.astype(result.dtype), 0
            else:  # what cancels with beta does not count
                size, limit = np.maximum(size, abs(exact - arrays[-1])), 6e-7
            if not np.all(off <= limit * size):
                return True
    return False


def hypothesized(operation, kernel, rtol=1e-5, atol=1e-8):
    """Arrays that Hypothesis makes up, and numpy.allclose."""
    import hypothesis
    from hypothesis import strategies
    from hypothesis.extra.numpy import array_shapes, arrays

    settings = {"max_examples": 100, "derandomize": True, "database": None, "deadline": None}

    @hypothesis.settings(**settings, phases=[hypothesis.Phase.generate])
    @hypothesis.given(strategies.data())
    def check(data):
        def drawn(name, shape):
            least = 0.125 if name == "variance" else -100
            elements = strategies.floats(least, 100, width=32)
            return data.draw(arrays(np.float32, shape, elements=elements))

        shape = data.draw(array_shapes(min_dims=2, max_dims=4, max_side=6))
        inputs = inputs_of(operation, drawn, shape)
        results = call_kernel(operation, kernel, inputs, 1e-5)
        assert close(results, right(operation, inputs, 1e-5), rtol, atol)

    try:
        check()
    except AssertionError:
        return True
    return False


#: {what people do: does it find a mistake in a kernel of this operation?}
PRACTICES = {
    "one random comparison, rtol 1e-4": lambda *k: differs(*k, (32, 16), rtol=1e-4, atol=0),
    "five draws of `rand()`, as KernelBench": lambda *k: any(
        differs(*k, (16, 32, 32, 64), np.random.Generator.random, rtol=1e-4, atol=1e-4, seed=seed)
        for seed in range(5)),
    "five shapes of normal numbers, rtol 1e-4": lambda *k: any(
        differs(*k, shape, rtol=1e-4, atol=1e-6)
        for shape in ((8, 4), (100, 7), (4, 5, 5, 3), (2, 16, 16, 32), (1000, 33))),
    "Hypothesis with `numpy.allclose`": hypothesized,
    "the same, rtol and atol 1e-3": partial(hypothesized, rtol=1e-3, atol=1e-3),
    "torch's `gradcheck`": gradcheck,
    "the samples of torch's tests": opinfo,
    "ONNX's backend cases": onnx_backend,
    "benchdnn's shapes and numbers": benchdnn,
    "bn_ext.testing": judge,
}  # fmt: skip
NAMES = "forward pass", "inference", "gradient", "its gradient"


def try_practice(practice):
    """[(operation, changes, does it find them?)] of all mistakes, and the same of right kernels"""
    return [
        [
            (operation, changes, practice(operation, kernel_with(KERNELS[operation], changes)))
            for operation, kernels in table.items() for changes in kernels
        ]
        for table in (MISTAKES, STYLES)
    ]  # fmt: skip


def draw(path, lines):
    """Draw what each practice finds, and how many right kernels it calls wrong."""
    total, styles = (sum(map(len, table.values())) for table in (MISTAKES, STYLES))
    with pages.picture(path, size=(4.4, 3.4), dpi=100) as (_, panels):
        (panel,) = panels.flat
        for place, (name, *_, finds, wrong) in enumerate(lines):
            is_judge = name == "bn_ext.testing"
            panel.barh(place, finds or 0, 0.4, color="#1f6fb2" if is_judge else "#8a9bab")
            panel.barh(place, -(wrong or 0), 0.4, color="#d9534f")
            weight = "bold" if is_judge else "normal"
            panel.text(1, place - 0.32, name.replace("`", ""), size=8, weight=weight)
            panel.text((finds or 0) + 1, place, finds, size=8, va="center")
            panel.text(-(wrong or 0) - 1, place, wrong, size=8, va="center", ha="right")
        panel.set(
            xlim=(-styles - 6, total + 8), ylim=(len(lines) - 0.5, -0.8), yticks=[], xticks=[]
        )
        panel.axvline(0, color=pages.GREY, linewidth=1)
        panel.spines[:].set_visible(False)
        panel.set_title(f"finds, of {total} mistakes", loc="right", size=8)
        panel.set_title(f"calls wrong,\nof {styles} right", loc="left", size=8)


def report():
    """Write table and picture; name what the judge misses, or calls wrong."""
    lines, missed = [], []
    for name, practice in PRACTICES.items():
        try:
            with np.errstate(all="ignore"):
                mistakes, styles = try_practice(practice)
        except ImportError as error:
            lines.append([f"{name}: no {error.name} here", *[""] * (len(KERNELS) + 2)])
            continue
        finds = [sum(finds for kind, _, finds in mistakes if kind == op) for op in KERNELS]
        lines.append([name, *finds, sum(finds), sum(finds for *_, finds in styles)])
        print(*lines[-1], flush=True)
        if practice is judge:
            missed = [f"`{row[1][0][1].removesuffix(RETURN)}`" for row in mistakes if not row[2]]
            print("called wrong:", *(row[:2] for row in styles if row[2]), sep="\n")
    total, styles = (sum(map(len, table.values())) for table in (MISTAKES, STYLES))
    of_each = [f"{name}, of {len(MISTAKES[op])}" for name, op in zip(NAMES, KERNELS, strict=True)]
    heading = ["practice", *of_each, f"finds, of {total}", f"calls wrong, of {styles} right"]
    run = pages.run(["torch", "onnx", "hypothesis"])
    pages.write_rows(RESULTS / "practices.csv", run, heading, lines)
    table = pages.markdown([heading[0], *heading[-2:]], [[a[0], *a[-2:]] for a in lines])
    text = f"{pages.short(run)}. bn_ext.testing misses {', '.join(missed) or 'none'}."
    text = textwrap.fill(text, 120, break_on_hyphens=False)
    pages.put("practices", "docs/howto/reference_for_kernels.md", f"{table}\n\n{text}\n")
    draw(RESULTS / "practices.svg", lines)
