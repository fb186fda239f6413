"""One problem dealt to ranks in several ways, and a digest of all its results."""

import hashlib
import itertools

import ml_dtypes
import numpy as np

import bn_ext

C, SAMPLES = 24, 29
DEALS = ["blocks", "strided", "permuted", "an empty rank"]
#: (data dtype, layout)
KINDS = [
    *itertools.product(["float32", "float64"], ["NXC", "NCX"]),
    ("float16", "NXC"), ("bfloat16", "NCX"),
]  # fmt: skip
EPSILON = 1e-5


def dtype_of(name):
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


class Problem:
    """All samples: each rank makes them all, and uses its own."""

    def __init__(self, data, layout):
        rng = np.random.default_rng(5)
        self.format = layout
        self.axis = 1 if self.format == "NCX" else -1
        src, diff_dst = rng.standard_normal((2, SAMPLES, 5, 3, C)) * 3 + 1
        diff_dst[0] *= 1e3
        diff_dst[1] = -diff_dst[0]  # cancels, so that another order of addition shows
        self.src, self.diff_dst, self.src_1 = (
            np.ascontiguousarray(np.moveaxis(a.astype(dtype_of(data)), -1, self.axis))
            for a in (src, diff_dst, src[::-1])
        )
        number = "float64" if data == "float64" else "float32"
        self.gamma, self.beta = rng.standard_normal((2, C)).astype(number)

    def running(self):
        return {
            "running_mean": np.zeros(C), "running_variance": np.ones(C),
            "exponential_avg_factor": 0.25, "correction": 1,
        }  # fmt: skip


def dealt(deal, size):
    """The samples dealt to each rank, as indices."""
    order = np.arange(SAMPLES)
    if deal == "strided":
        return [order[rank::size] for rank in range(size)]
    if deal == "blocks":
        return np.array_split(order, size)
    order = np.random.default_rng(size).permutation(SAMPLES)
    if deal == "permuted":
        return np.array_split(order, size)
    return [*np.array_split(order, max(size - 1, 1)), order[:0]][:size]


def digest(problem, data, vectors):
    """The digest of results. Layouts can be compared: tensors are read with channels last."""
    found = hashlib.sha256()
    for array in data:
        found.update(np.moveaxis(array, problem.axis, -1).tobytes())
    for array in vectors:
        found.update(array.tobytes())
    return found.hexdigest()[:12]


def steps(problem, mine, training, backward, **options):
    """Results of both passes, plain and fused, and of a frozen gradient: (tensors, vectors)."""
    running = problem.running()
    src, diff_dst, src_1 = problem.src[mine], problem.diff_dst[mine], problem.src_1[mine]
    vectors = problem.gamma, problem.beta
    options |= {"epsilon": EPSILON, "data_format": problem.format}
    plain = training(src, *vectors, **running, **options)
    grads = backward(src, diff_dst, *plain[1:], vectors[0], **options)
    bits = np.zeros(-(-src.size // 8), np.uint8)
    fused = training(src, *vectors, src_1=src_1, relu=True, workspace=bits, **options)
    gated = backward(
        src, diff_dst, *fused[1:], vectors[0], relu=True, workspace=bits, diff_src_1=True, **options
    )
    frozen = backward(
        src, diff_dst, *fused[1:], relu=True, dst=fused.dst, is_training=False, **options
    )
    data = [plain.dst, grads.diff_src, frozen.diff_src, fused.dst, gated.diff_src, gated.diff_src_1]
    found = [*plain[1:], *fused[1:], running["running_mean"], running["running_variance"]]
    for each in (grads, frozen, gated):
        found += [each.diff_gamma, each.diff_beta]
    return data, found


def wanted(data, layout):
    """The digest of the same steps in one process, with exact sums."""
    problem = Problem(data, layout)
    whole, vectors = steps(
        problem, np.arange(SAMPLES), bn_ext.batch_norm_training, bn_ext.batch_norm_backward,
        exact=True,
    )  # fmt: skip
    return digest(problem, whole, vectors)
