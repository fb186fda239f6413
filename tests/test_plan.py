"""The plan: from a shape to its form, chunks and memory.

Which form a shape has shows in nothing but speed and the order of sums, so each bound between
forms, and between lengths of chunks, is crossed: values are right on both sides.
"""

import numpy as np
import pytest
from bounds import assert_near
from cases import DTYPES, Problem, all_bits, placed, shape

import bn_ext
from bn_ext import _core

pytestmark = pytest.mark.quick


def around(*bounds):
    return sorted({n + d for n in bounds for d in (-1, 0, 1)} - {0})


#: (data_format, N, C, X) on both sides of the bounds that src_c/plan.c names.
CROSSED = {
    "channels that fill a register": [("NXC", 290, c, 1) for c in around(32, 64, 128, 256)],
    "positions of one row": [("NXC", n, 3, 1) for n in around(32, 96, 132, 4 * 96)],
    "wide rows of a chunk": [("NXC", n, 3, 1) for n in around(132 * 96)],
    "rows of strands and groups": [("NXC", n, 130, 1) for n in around(1, 4, 32, 64)],
    "rows of a chunk": [("NXC", n, 130, 1) for n in around(132, 264)],
    "longer strands": [("NXC", n, 128, 1) for n in around(64 * 4 * 34)],
    "short runs": [("NCX", 9, 3, x) for x in around(1, 64, 144)],
    "positions of strands and groups": [("NCX", n, 3, 5) for n in around(4, 32)],
    "positions of a chunk": [("NCX", n, 3, 5) for n in around(132, 264)],
    "long runs": [("NCX", n, 3, x) for n in (1, 3) for x in around(48)],
    "stretches of groups": [("NCX", 2, 3, x) for x in around(512, 1024, 2048)],
    "long for more positions": [("NCX", n, 2, 16 * n + d) for n in (5, 13) for d in (-1, 0, 1)],
    "few positions": [("NCX", n, 3, 4 * n) for n in around(2, 4, 8)],
    "sums by runs": [("NCX", n, 3, 4 * n + d) for n in (3, 5) for d in (-1, 0, 1)],
    "results by runs": [("NCX", n, 3, 24 + 8 * n + d) for n in (1, 5) for d in (-1, 0, 1)],
    "always long": [("NCX", 70, 2, x) for x in around(256)],
    "one position": [("NCX", n, 2, 700) for n in around(2)],
    "runs of a strand": [("NCX", n, 2, 700) for n in around(4, 8)],
    "positions of a chunk of runs": [("NCX", n, 2, 1100) for n in around(132)],
    "a chunk of a run": [("NCX", 1, 2, x) for x in around(16384)],
    "a chunk of two runs": [("NCX", 2, 2, x) for x in around(8192)],
    "a chunk of runs": [("NCX", 4, 2, x) for x in around(4096, 2 * 4096)],
    "pieces of runs": [("NCX", 4, 2, x) for x in around(1024, 2048)],
}
#: Chunks of each of these shapes.
CHUNKS = {
    "wide rows of a chunk": [1, 1, 2],
    "rows of strands and groups": [1] * 11,
    "rows of a chunk": [1, 1, 2, 2, 2, 3],
    "longer strands": [66, 63, 63],
    "positions of a chunk": [1, 1, 2, 2, 2, 3],
    "positions of a chunk of runs": [1, 1, 2],
    "a chunk of a run": [1, 1, 2],
    "a chunk of two runs": [1, 1, 2],
    "a chunk of runs": [1, 1, 2, 2, 2, 3],
    "pieces of runs": [1] * 6,
}


@pytest.mark.parametrize("crossed", CHUNKS)
def test_where_chunks_end(crossed):
    """Else a bound above might be none. One tile of all channels: its tasks are its chunks."""
    _core._set_cache_sizes(1 << 40, 1 << 40)
    found = []
    for data_format, *dims in CROSSED[crossed]:
        zeros = np.zeros(shape(*dims, data_format), np.float32)
        options = {"data_format": data_format, "num_threads": 1}
        bn_ext.batch_norm_backward_reduce(zeros, zeros, zeros[0].flat[: dims[1]], **options)
        found.append(_core._last_call()[1])
    assert found == CHUNKS[crossed]


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
