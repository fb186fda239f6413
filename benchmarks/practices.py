"""How many planted mistakes the practices of testing find, and whether they pass right kernels.

    python -m benchmarks.practices      prints the table; ten minutes of CPU time

Mistakes are of the kinds that people report in public; each is a change of a right kernel's text.
torch's, ONNX's and KernelBench's practices are followed here with their shapes, numbers and
tolerances, not run.
"""

from functools import partial

import numpy as np

from bn_ext.testing import (
    _formulas as formulas,
    check_backward,
    check_double_backward,
    check_forward,
)

from . import pages

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


def results(name, place, value="0"):
    """Before it returns, part of a result is something else."""
    return "return ", f"{name}{place} = {value}; return "


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


def differs(operation, kernel, shape, draw, rtol, atol, number=np.float32, epsilon=1e-5):
    """Does a result differ from what is right, by more than the tolerances?"""
    rng = np.random.default_rng(1)
    draw, channels = partial(draw, rng), shape[-1]
    src = draw(shape).astype(number)
    gamma, beta, ggg, ggb = (draw(channels).astype(number) for _ in range(4))
    mean, variance = (a.astype(number) for a in (draw(channels), abs(draw(channels)) + 0.5))
    if operation.endswith("backward"):
        axes = tuple(range(src.ndim - 1))
        mean, variance = src.mean(axes), src.var(axes)
    diff_dst, ggx = (draw(shape).astype(number) for _ in range(2))
    arrays = {
        "training": (src, gamma, beta), "inference": (src, mean, variance, gamma, beta),
        "backward": (src, diff_dst, mean, variance, gamma),
        "double_backward": (src, diff_dst, mean, variance, gamma, ggx, ggg, ggb),
    }[operation]  # fmt: skip
    right = getattr(formulas, f"batch_norm_{operation}")(*arrays, epsilon=epsilon)
    results = kernel(*arrays, epsilon=epsilon)
    results = results if isinstance(results, tuple) else (results,)
    return not all(
        np.allclose(a, b, rtol, atol, equal_nan=True) for a, b in zip(results, right, strict=False)
    )


def normal(rng, shape):
    return rng.standard_normal(shape)


def uniform(rng, shape):
    return rng.random(shape)


def nines(rng, shape):
    return rng.uniform(-9, 9, shape)


#: torch's samples of batch_norm, and their epsilons.
SAMPLES = [
    ((5, 5, 5), 0.6), ((3, 4, 2), 1e-5), ((3, 1), 1e-5), ((3, 3, 4, 2), 0.5), ((2, 1), 1e-5),
]  # fmt: skip


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
    """What finite differences in double tell of a gradient; of a forward pass, nothing."""
    return operation.endswith("backward") and differs(
        operation, kernel, (4, 3, 3), normal, 1e-3, 1e-5, np.float64
    )


PRACTICES = {
    "one random comparison, rtol 1e-4":
        lambda *k: differs(*k, (32, 16), normal, 1e-4, 0),
    "a gradient check in double, as torch's `gradcheck`": gradcheck,
    "`rand()` in one shape, as KernelBench":
        lambda *k: differs(*k, (16, 32, 32, 64), uniform, 1e-4, 1e-4),
    "five shapes of normal numbers, rtol 1e-4": lambda *k: any(
        differs(*k, shape, normal, 1e-4, 1e-6)
        for shape in ((8, 4), (100, 7), (4, 5, 5, 3), (2, 16, 16, 32), (1000, 33))),
    "the samples of torch's tests (OpInfo)": lambda *k: any(
        differs(*k, shape, nines, 1e-4, 1e-5, epsilon=epsilon) for shape, epsilon in SAMPLES),
    "ONNX's backend cases": lambda operation, kernel: not operation.endswith("backward") and any(
        differs(operation, kernel, (2, 4, 5, 3), normal, 1e-3, 1e-7, epsilon=epsilon)
        for epsilon in (1e-5, 1e-2)),
    "bn_ext.testing": judge,
}  # fmt: skip


def main():
    """Print the table, and name what the judge misses and the right kernels that it calls wrong."""
    missed, lines = [], []
    for name, practice in PRACTICES.items():
        cells, count = [], 0
        for operation, mistakes in MISTAKES.items():
            finds = [
                practice(operation, kernel_with(KERNELS[operation], each)) for each in mistakes
            ]
            cells.append(f"{sum(finds)} of {len(finds)}")
            count += sum(finds)
            if practice is judge:
                missed += [
                    each for each, is_found in zip(mistakes, finds, strict=True) if not is_found
                ]
        wrong = [
            each
            for operation, styles in STYLES.items()
            for each in styles
            if practice(operation, kernel_with(KERNELS[operation], each))
        ]
        total, styles = (sum(map(len, table.values())) for table in (MISTAKES, STYLES))
        lines.append([name, *cells, f"{count} of {total}", f"{len(wrong)} of {styles}"])
        missed += wrong if practice is judge else []
    print(pages.markdown(["practice", *KERNELS, "all", "right kernels called wrong"], lines))
    print(*missed, sep="\n")


if __name__ == "__main__":
    with np.errstate(all="ignore"):
        main()
