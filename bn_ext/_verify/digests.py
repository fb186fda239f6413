"""Compare whole calls with known digests: the same bits at every level, on every machine."""

import hashlib
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from typing import Any

import numpy as np

import bn_ext
from bn_ext._verify.dtypes import Array, Dtype, known_dtypes
from bn_ext._verify.problems import (
    SEAMS,
    Problem,
    at_level,
    exact_problems,
    large_problems,
    moderate_problems,
    numbers,
)

__all__ = ["DIGESTS", "digests"]

#: The first 16 digits of the SHA-256 of what the calls of `digests` return: equal on every machine.
DIGESTS: dict[str, str] = {
    "float32 training": "7222834f54cf67de",
    "float32 frozen": "6534f30ba57fe86c",
    "float32 forward": "5c5033485f479dd5",
    "float32 double training": "91de4ae683d2f3c7",
    "float32 double frozen": "3e6a9935c5a47d83",
    "float32 large": "5b6aed1b5b6764a3",
    "float32 large forward": "25393810cb806f91",
    "float32 seams": "0cf2eef92746733c",
    "float32 seams forward": "c25ee6ceaf446066",
    "float32 exact": "73ff3dc95a7084ac",
    "float64 training": "81c2408faa302a82",
    "float64 frozen": "4b9555bcb597e518",
    "float64 forward": "c683ad84738ed0d2",
    "float64 double training": "6db6619afe019313",
    "float64 double frozen": "dd7e45a8b7f8886c",
    "float64 large": "1fff436f53e07322",
    "float64 large forward": "9ab6481e63363924",
    "float64 seams": "879852d4619f5dec",
    "float64 seams forward": "93d6dde969e221a8",
    "float64 exact": "f9c07d507829da3f",
    "float16 training": "f1c80cf55e37ed7e",
    "float16 frozen": "cdb57cebcc7913bd",
    "float16 forward": "8cf2c79609208686",
    "float16 double training": "53e8dd3fd4d7222d",
    "float16 double frozen": "d56d7fe8579eb498",
    "float16 large": "2bed0fb8c2e6ba0c",
    "float16 large forward": "917f22282d19a244",
    "float16 seams": "f901569588e23e8e",
    "float16 seams forward": "5a8fa5642978a85f",
    "float16 exact": "827bfcfcf352f103",
    "bfloat16 training": "dde276e799796375",
    "bfloat16 frozen": "fb1acabf00e9df6d",
    "bfloat16 forward": "97c7bfdcdc095612",
    "bfloat16 double training": "7f0b100cf97b5ec0",
    "bfloat16 double frozen": "0a2bf674bdb6b790",
    "bfloat16 large": "a486a63061e72a3b",
    "bfloat16 large forward": "85a87d1b5c69b7fa",
    "bfloat16 seams": "56e83643ef96e8b5",
    "bfloat16 seams forward": "711227570ad020c5",
    "bfloat16 exact": "0e9151f6406bcf18",
}


#: {problems: modes of calls}; for large problems and seams, only functions that sum are called.
MODES: dict[Callable[[Dtype, np.dtype[Any]], Iterator[Problem]], tuple[str, ...]] = {
    moderate_problems: ("training", "frozen", "forward", "double training", "double frozen"),
    large_problems: ("large", "large forward"),
    partial(large_problems, shapes=SEAMS): ("seams", "seams forward"),
    exact_problems: ("exact",),
}


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
        gradients = bn_ext.batch_norm_backward_reduce(src, other, mean, exact=True, **how)
        moments = bn_ext.batch_norm_training_reduce(src, exact=True, **how)
        for state in (gradients, moments):
            # Limbs hold finite terms; flags mark the others.
            yield bn_ext.batch_norm_canonical(state)
            yield np.nan_to_num(bn_ext.batch_norm_sums(state), nan=0.5)
        yield np.nan_to_num(bn_ext.batch_norm_training_stats(moments), nan=0.5)
        return
    # The sums as they are, before anything is rounded to a shorter type.
    if mode.endswith("forward"):
        yield bn_ext.batch_norm_training_reduce(src, **how)[:2]
    elif not mode.startswith("double"):
        yield bn_ext.batch_norm_backward_reduce(src, other, mean, **how)[:2]
    if mode == "forward":
        yield from bn_ext.batch_norm_training(src, gamma, beta, **options)
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
