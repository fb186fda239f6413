"""The plan: from a shape to its form, chunks and memory.

Which form a shape has shows in nothing but speed and the order of sums, so each bound between
forms, and between lengths of chunks, is crossed: values are right on both sides.
"""

import numpy as np
import pytest
from bounds import assert_near
from cases import DTYPES, FORMATS, Problem, all_bits, placed, shape

import bn_ext

pytestmark = pytest.mark.quick


def around(*bounds):
    return sorted({n + d for n in bounds for d in (-1, 0, 1)} - {0})


#: (data_format, N, C, X) on both sides of the bounds that src_c/plan.c names.
CROSSED = {
    "channels that fill a register": [("NXC", 290, c, 1) for c in around(32, 64, 128, 256)],
    "positions of one row": [("NXC", n, 3, 1) for n in around(32, 96, 136, 8 * 96)],
    "rows of a chunk": [("NXC", n, 130, 1) for n in around(1, 8, 136, 272)],
    "longer strands": [("NXC", n, 128, 1) for n in around(64 * 8 * 18)],
    "short runs": [("NCX", 9, 3, x) for x in around(1, 64, 255)],
    "positions of a chunk": [("NCX", n, 3, 5) for n in around(8, 136, 272)],
    "long runs": [("NCX", 2, 3, x) for x in around(256, 512)],
    "long for more positions": [("NCX", n, 2, 16 * n + d) for n in (17, 40) for d in (-1, 0, 1)],
    "always long": [("NCX", 70, 2, x) for x in around(1024)],
    "runs abreast": [("NCX", n, 2, 700) for n in around(3, 8)],
    "positions of a chunk abreast": [("NCX", n, 1, 1100) for n in around(136)],
    "a chunk of a run": [("NCX", 1, 2, x) for x in around(32768)],
    "runs of a chunk": [("NCX", 2, 2, x) for x in around(16384)],
    "a chunk of runs abreast": [("NCX", 4, 1, x) for x in around(4096, 2 * 4096)],
}


@pytest.mark.parametrize("crossed", CROSSED)
def test_both_sides_of_every_bound(rng, crossed):
    for k, (data_format, *dims) in enumerate(CROSSED[crossed]):
        p = Problem(rng, shape(*dims, data_format), data_format, *DTYPES[k % len(DTYPES)])
        options = {"data_format": data_format, "is_training": k % 4 != 3}
        grads = p.run(bn_ext.batch_norm_backward, num_threads=1, **options)
        assert_near(p, grads, options["is_training"])
        # The form is the shape's: what lies elsewhere, with others' help, is summed alike.
        gaps = p.run(
            bn_ext.batch_norm_backward, src=placed(p.src, "gaps"),
            diff_dst=placed(p.diff_dst, "backwards"), num_threads=3, **options,
        )  # fmt: skip
        assert all_bits(gaps) == all_bits(grads), dims


@pytest.mark.parametrize("data_format", FORMATS)
def test_no_memory(data_format):
    """Sums of 2^56 channels fit nowhere; the error comes before anything is touched."""
    huge = np.broadcast_to(np.float32(1), (2, 2**56) if data_format == "NXC" else (2, 2**56, 1))
    with pytest.raises(MemoryError):
        bn_ext.batch_norm_backward_reduce(
            huge, huge, np.broadcast_to(np.float32(1), 2**56), data_format=data_format
        )
