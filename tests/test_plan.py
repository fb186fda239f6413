"""The plan: from the shape to form, chunks and memory."""

import numpy as np
import pytest
from cases import FORMATS

import bn_ext

pytestmark = pytest.mark.quick


@pytest.mark.parametrize("data_format", FORMATS)
def test_no_memory(data_format):
    """Sums of 2^56 channels fit nowhere; the error comes before anything is touched."""
    huge = np.broadcast_to(np.float32(1), (2, 2**56) if data_format == "NXC" else (2, 2**56, 1))
    with pytest.raises(MemoryError):
        bn_ext.batch_norm_backward_reduce(
            huge, huge, np.broadcast_to(np.float32(1), 2**56), data_format=data_format
        )
