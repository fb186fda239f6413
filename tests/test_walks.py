"""Both walks, over rows and over runs: positions anywhere in memory, in each operand by itself."""

import numpy as np
import pytest
from cases import (
    DATA_DTYPES,
    DTYPES,
    EPSILON,
    FORMATS,
    Problem,
    all_bits,
    dtype,
    placed,
    shape,
    vector_dtype,
)

import bn_ext
from bn_ext import _core

pytestmark = pytest.mark.quick


@pytest.mark.parametrize("is_training", [True, False])
@pytest.mark.parametrize("length", [5, 60, 300, 700, 1100, 5000])
@pytest.mark.parametrize("outer", [(2, 1), (3, 2), (5, 4), (2, 9), (40, 5)])
def test_outer_axes_that_do_not_merge(rng, outer, length, is_training):
    """N in two axes with a gap between them: every form, in each operand by itself."""
    channels = 3
    shape = (*outer, channels, length)
    for name in DATA_DTYPES:
        dense = [rng.standard_normal(shape).astype(dtype(name)) for _ in range(2)]
        number = vector_dtype(name)
        vectors = [np.full(channels, v, number) for v in (0.1, 0.9, 1.2)]
        options = {"epsilon": EPSILON, "data_format": "NCX", "is_training": is_training}
        # N, C, second part of N, X: only memory knows that the channel comes third.
        wanted = all_bits(
            bn_ext.batch_norm_backward(
                *(a.transpose(0, 2, 1, 3) for a in dense), *vectors, **options
            )
        )
        for which in range(3):
            gaps = np.zeros((outer[0], outer[1] + 2, channels, length), dtype(name))[:, : outer[1]]
            operands = [*dense, np.empty_like(dense[0])]
            if which < 2:
                gaps[...] = operands[which]
            operands[which] = gaps
            src, diff_dst, diff_src = (a.transpose(0, 2, 1, 3) for a in operands)
            for threads in (1, 3):
                out = (diff_src, np.empty(channels, number), np.empty(channels, number))
                found = bn_ext.batch_norm_backward(
                    src, diff_dst, *vectors, out=out, num_threads=threads, **options
                )
                assert all_bits(found) == wanted


@pytest.mark.parametrize(("data", "vector"), DTYPES)
@pytest.mark.parametrize("data_format", FORMATS)
@pytest.mark.parametrize("length", [1, 40, 1100])
@pytest.mark.parametrize("offset", [0, 1, 2, 16])
def test_stores_past_the_cache_at_any_address(rng, isa, data, vector, data_format, length, offset):
    """Where elements lie across register boundaries, too: no such store may be nontemporal."""
    p = Problem(rng, shape(19, 70, length, data_format), data_format, data, vector)
    wanted = p.run(bn_ext.batch_norm_backward, data_format=data_format).diff_src
    _core._set_cache_sizes(1 << 12, 1 << 12)
    diff_src = placed(np.zeros_like(p.src), offset=offset)
    options = {"data_format": data_format, "out": (diff_src, None, None)}
    assert p.run(bn_ext.batch_norm_backward, **options).diff_src is diff_src
    assert diff_src.tobytes() == wanted.tobytes()
