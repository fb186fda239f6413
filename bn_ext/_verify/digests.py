"""Whole calls against known digests: the same bits at every level, on every machine."""

import hashlib
from typing import Any

import bn_ext
from bn_ext import _core
from bn_ext._bench.problems import dtype_of
from bn_ext._verify.dtypes import DTYPES, Dtype
from bn_ext._verify.problems import (
    Problem,
    large_problems,
    moderate_problems,
    numbers,
    seam_problems,
)

__all__ = ["DIGESTS", "digests"]

#: First 16 digits of the SHA-256 of what the calls of `digests` give; equal on every machine.
DIGESTS: dict[str, str] = {
    "float32 training": "88021e63b8977c4f",
    "float32 frozen": "b03361580f6430ea",
    "float32 large": "400249e5921ceb71",
    "float32 seams": "09c3b90ee9cfca99",
    "float64 training": "2973fed1b2c0dc87",
    "float64 frozen": "858b8d774eb782c2",
    "float64 large": "a18ed48e2910ed02",
    "float64 seams": "ea53cfa7924bcd71",
    "float16 training": "4e444d0424469307",
    "float16 frozen": "95da4fd97bdde838",
    "float16 large": "1da92e8f45c05a70",
    "float16 seams": "bffd3e4a9d18dadf",
    "bfloat16 training": "1f09ff2b6db00461",
    "bfloat16 frozen": "8f5b22fe1dc4c4ae",
    "bfloat16 large": "afc222220576f328",
    "bfloat16 seams": "c757bbdb699f4b8f",
}


def _call(digest: Any, dtype: Dtype, problem: Problem, mode: str, num_threads: int | None) -> None:
    """Add what one call gives to a digest."""
    src, diff_dst, layout = problem
    channels = src.shape[-1 if layout == "NXC" else 1]
    mean, variance, gamma = (
        numbers(dtype.computed, channels, k << 50, exponents).view(dtype.number)
        for k, exponents in ((1, (-20, 24)), (2, (-4, 8)), (3, (-4, 8)))
    )
    # The sums as they are, before anything is rounded to a shorter type.
    results = [
        bn_ext.batch_norm_backward_reduce(
            src, diff_dst, mean, data_format=layout, num_threads=num_threads
        )
    ]
    if mode in ("training", "frozen"):
        results += bn_ext.batch_norm_backward(
            src, diff_dst, mean, abs(variance), gamma, epsilon=1e-3, data_format=layout,
            is_training=mode == "training", num_threads=num_threads,
        )  # fmt: skip
    for array in results:
        digest.update(array.astype(array.dtype.newbyteorder("<")).tobytes())


def digests(isa: str, num_threads: int | None = None) -> dict[str, str]:
    """{"dtype mode": digest} at one level; without bfloat16 if it is unknown.

    The modes are "training" and "frozen", and "large" and "seams", which are sums alone.
    """
    found: dict[str, str] = {}
    before = bn_ext.get_isa()
    _core._use_isa(isa)
    try:
        for dtype in DTYPES.values():
            try:
                storage = dtype_of(dtype.name)
            except ImportError:
                continue
            sets = {
                ("training", "frozen"): moderate_problems,
                ("large",): large_problems,
                ("seams",): seam_problems,
            }
            for modes, problems in sets.items():
                made = {mode: hashlib.sha256() for mode in modes}
                for problem in problems(dtype, storage):
                    for mode, digest in made.items():
                        _call(digest, dtype, problem, mode, num_threads)
                found |= {f"{dtype.name} {mode}": d.hexdigest()[:16] for mode, d in made.items()}
    finally:
        _core._use_isa(before)
    return found
