"""Compare whole calls with known digests: the same bits at every level, on every machine."""

import hashlib
import sys
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from typing import Any

import numpy as np

import bn_ext
from bn_ext import _core
from bn_ext._sums import power_above
from bn_ext._verify.dtypes import Array, Dtype, dtype_of, known_dtypes
from bn_ext._verify.problems import (
    SEAMS,
    Problem,
    at_level,
    exact_problems,
    large_problems,
    moderate_problems,
    numbers,
)

__all__ = ["DIGESTS", "changed_mode", "digests", "known"]

#: The first 16 digits of the SHA-256 of what the calls of `digests` return: equal on every machine.
DIGESTS: dict[str, str] = {
    "float32 training": "7222834f54cf67de",
    "float32 frozen": "6534f30ba57fe86c",
    "float32 forward": "5c5033485f479dd5",
    "float32 gated": "79dfc0026777b2ed",
    "float32 double training": "91de4ae683d2f3c7",
    "float32 double frozen": "3e6a9935c5a47d83",
    "float32 large": "5b6aed1b5b6764a3",
    "float32 large forward": "25393810cb806f91",
    "float32 seams": "0cf2eef92746733c",
    "float32 seams forward": "c25ee6ceaf446066",
    "float32 exact": "73ff3dc95a7084ac",
    "float32 passed": "730739ce1a51111b",
    "float64 training": "81c2408faa302a82",
    "float64 frozen": "4b9555bcb597e518",
    "float64 forward": "c683ad84738ed0d2",
    "float64 gated": "2a3fbde37e271d44",
    "float64 double training": "6db6619afe019313",
    "float64 double frozen": "dd7e45a8b7f8886c",
    "float64 large": "1fff436f53e07322",
    "float64 large forward": "9ab6481e63363924",
    "float64 seams": "879852d4619f5dec",
    "float64 seams forward": "93d6dde969e221a8",
    "float64 exact": "00712784e98f5b4a",
    "float64 passed": "0d8c3eb9c15e31ca",
    "float16 training": "f1c80cf55e37ed7e",
    "float16 frozen": "cdb57cebcc7913bd",
    "float16 forward": "8cf2c79609208686",
    "float16 gated": "13b62859a9860d87",
    "float16 double training": "53e8dd3fd4d7222d",
    "float16 double frozen": "d56d7fe8579eb498",
    "float16 large": "2bed0fb8c2e6ba0c",
    "float16 large forward": "917f22282d19a244",
    "float16 seams": "f901569588e23e8e",
    "float16 seams forward": "5a8fa5642978a85f",
    "float16 exact": "827bfcfcf352f103",
    "float16 passed": "8f89205e91063aea",
    "bfloat16 training": "dde276e799796375",
    "bfloat16 frozen": "fb1acabf00e9df6d",
    "bfloat16 forward": "97c7bfdcdc095612",
    "bfloat16 gated": "4175163dd2735d30",
    "bfloat16 double training": "7f0b100cf97b5ec0",
    "bfloat16 double frozen": "0a2bf674bdb6b790",
    "bfloat16 large": "a486a63061e72a3b",
    "bfloat16 large forward": "85a87d1b5c69b7fa",
    "bfloat16 seams": "56e83643ef96e8b5",
    "bfloat16 seams forward": "711227570ad020c5",
    "bfloat16 exact": "0e9151f6406bcf18",
    "bfloat16 passed": "a5f8cb47c7405f08",
}


#: {problems: modes of calls}; for large problems and seams, only functions that sum are called.
MODES: dict[Callable[[Dtype, np.dtype[Any]], Iterator[Problem]], tuple[str, ...]] = {
    moderate_problems: (
        "training", "frozen", "forward", "gated", "double training", "double frozen",
    ),
    large_problems: ("large", "large forward"),
    partial(large_problems, shapes=SEAMS): ("seams", "seams forward"),
    exact_problems: ("exact", "passed"),
}  # fmt: skip


def _with_squares(statistics: Array, count: int) -> Array:
    """Statistics as they come from C, with the sums of squares themselves."""
    with _core._DefaultMode():
        statistics[1] *= power_above(count)
    return statistics


def _results(dtype: Dtype, problem: Problem, mode: str, threads: int | None) -> Iterator[Array]:
    """What the calls of a mode return."""
    src, other, layout = problem
    channels = src.shape[-1 if layout == "NXC" else 1]
    mean, variance, gamma, beta = (
        numbers(dtype.computed, channels, k << 50, exponents).view(dtype.number)
        for k, exponents in ((1, (-20, 24)), (2, (-4, 8)), (3, (-4, 8)), (4, (-4, 8)))
    )
    how: Any = {"data_format": layout, "num_threads": threads}
    options: Any = {"epsilon": 1e-3, **how}
    gradient = src, other, mean, abs(variance), gamma
    training = mode.endswith("training")
    if mode == "exact":
        gradients = bn_ext.GradientSums(src, other, mean, exact=True, **how)
        moments = bn_ext.Statistics(src, exact=True, **how)
        for state in (gradients.array, moments.array):
            # Limbs hold finite terms; flags mark the others.
            yield _core.canonical_state(state)
            yield np.nan_to_num(_core.state_sums(state), nan=0.5)
        found, count = _core.state_statistics(moments.array, moments.dtype)
        yield np.nan_to_num(_with_squares(found, count), nan=0.5)
        yield np.tile([[float(count)], [1.0]], channels)
        return
    if mode == "gated":
        options |= {"relu": True, "workspace": np.full(-(-src.size // 8), 0xA5, np.uint8)}
        yield bn_ext.batch_norm_inference(src, mean, abs(variance), gamma, beta, **options)
        yield options["workspace"]
        yield from bn_ext.batch_norm_backward(*gradient, **options)
        return
    if mode == "passed":  # by numbers of every kind: half of the NaNs become Inf
        dst = src.copy()
        half = dst.view(dtype.bits)[..., ::2]
        half[...] = half >> dtype.fraction << dtype.fraction
        options |= {"relu": True, "dst": dst, "is_training": False}
        one = np.ones_like(src)
        yield bn_ext.batch_norm_backward(src, one, *gradient[2:], **options).diff_src
        return
    # The sums as they are, before anything is rounded to a shorter type.
    if mode.endswith("forward"):
        found, count, _ = _core.training_sums(src, **how)
        yield _with_squares(found, count)
    elif not mode.startswith("double"):
        yield _core.backward_sums(src, other, mean, **how)[0]
    if mode == "forward":
        out = None, *np.empty((2, channels), dtype.number)
        yield from bn_ext.batch_norm_training(src, gamma, beta, out=out, **options)
        yield bn_ext.batch_norm_inference(
            src, mean, abs(variance), gamma, beta, src_1=other, relu=True, **options
        )
    elif mode in ("training", "frozen"):
        yield from bn_ext.batch_norm_backward(*gradient, is_training=training, **options)
    elif mode.startswith("double"):
        yield from bn_ext.batch_norm_double_backward(
            *gradient, other[::-1], variance, mean, is_training=training, **options
        )


def digests(isa: str, num_threads: int | None = None) -> dict[str, str]:
    """{"dtype mode": digest} at one level; without bfloat16 if NumPy does not know it."""
    found: dict[str, str] = {}
    with at_level(isa):
        for (dtype, storage), (problems, modes) in product(known_dtypes(), MODES.items()):
            made = {mode: hashlib.sha256() for mode in modes}
            for problem in problems(dtype, storage):
                for mode, digest in made.items():
                    for array in _results(dtype, problem, mode, num_threads):
                        digest.update(array.astype(array.dtype.newbyteorder("<")).tobytes())
            found |= {f"{dtype.name} {mode}": d.hexdigest()[:16] for mode, d in made.items()}
    return found


def known() -> dict[str, str]:
    """DIGESTS, without bfloat16 if NumPy does not know it."""
    try:
        dtype_of("bfloat16")
    except ImportError:
        return {k: v for k, v in DIGESTS.items() if not k.startswith("bfloat16 ")}
    return DIGESTS


def changed_mode() -> list[str]:
    """What is not the default in this thread's floating-point mode."""
    smallest, step, wide = sys.float_info.min, 2.0**-60, np.finfo(np.longdouble)
    found = {
        "subnormal numbers become 0": smallest / 2 == 0,
        "results are not rounded to nearest": 1 + step != 1 or 1 - step != 1,
        "long doubles lose bits": np.longdouble(1) + wide.eps == 1,
    }
    return [name for name, is_so in found.items() if is_so]
