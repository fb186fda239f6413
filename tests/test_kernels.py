"""Kernels inside whole calls: remainders of every length, and one NaN.

test_verify.py compares each kernel by itself with NumPy, bit for bit; test_rounding.py has
every conversion of 16-bit types.
"""

import numpy as np
import pytest
from bounds import assert_near
from cases import DTYPES, FORMATS, Problem, dtype, shape

import bn_ext

pytestmark = pytest.mark.quick


@pytest.mark.parametrize("is_training", [True, False])
@pytest.mark.parametrize("data_format", FORMATS)
def test_formula_at_every_residue(rng, data_format, is_training):
    """Remainder loops: every C and every X modulo 64."""
    for residue in range(1, 65):
        for c, x in ((residue, 5), (residue, 64), (3, residue), (70, residue)):
            problem = Problem(rng, shape(9, c, x, data_format), data_format)
            grads = problem.run(
                bn_ext.batch_norm_backward, data_format=data_format, is_training=is_training
            )
            assert_near(problem, grads, is_training)


def test_nan_has_one_pattern(rng, isa):
    """x86 and Arm make NaNs of different sign: every one that is written is the same."""
    pattern = {
        "float32": 0x7FC00000,
        "float64": 0x7FF8 << 48,
        "float16": 0x7E00,
        "bfloat16": 0x7FC0,
    }
    for data, vector in DTYPES:
        for data_format in FORMATS:
            problem = Problem(rng, shape(9, 5, 7, data_format), data_format, data, vector)
            problem.src[0] = -np.asarray(np.nan, problem.src.dtype)
            grads = problem.run(bn_ext.batch_norm_backward, data_format=data_format)
            for array, name in zip(grads[:2], (data, vector), strict=True):
                found = np.ascontiguousarray(array)[np.isnan(array.astype(float))]
                assert found.size
                assert (found.view(f"u{dtype(name).itemsize}") == pattern[name]).all()
