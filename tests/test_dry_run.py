"""A dry run refuses what the call would, reads no data and writes nothing.

For every refused call, refusals.py also makes a dry run, which must raise the same error.
"""

import numpy as np
import pytest
from cases import all_bits
from refusals import RESULTS, arguments, as_out, dry, four, outs

from bn_ext import _core

pytestmark = [pytest.mark.fast, pytest.mark.any_level]

each = pytest.mark.parametrize(
    ("name", "options"),
    [
        *((name, {}) for name in RESULTS),
        *((name, {"exact": True}) for name in ("backward", "training")),
    ],
)


@each
def test_nothing_is_written(p, name, options):
    written = outs(p, name)
    values = arguments(p, name) | options | {"out": as_out(name, written)}
    if name == "training":
        values |= (running := four(p))
        written += [running["running_mean"], running["running_variance"]]
    before = all_bits(written)
    assert dry(name, **values) is None
    assert all_bits(written) == before


@each
def test_data_is_neither_read_nor_copied(p, name, options):
    """The arrays are broadcast: a copy of one would take 86 GB."""
    for tensor in ("src", "diff_dst", "diff_diff_src"):
        setattr(p, tensor, np.broadcast_to(np.float32(0), (2**30, 5, 4)).transpose(0, 2, 1))
    dry(name, **arguments(p, name), **options)


def test_words_of_a_specification(p):
    """A specification has its own names of arguments, but no `out`."""
    words = _core.Words({"src": "input", "gamma": "weight"})
    for out, message in (
        ((None, p.gamma, None), "^mean in out: shares memory with weight$"),
        ((None, p.gamma.tolist(), None), "^mean in out: expected a numpy.ndarray, got list$"),
        ((None, p.gamma[1:], None), r"^mean in out: expected shape \(5,\), got \(4,\)$"),
    ):
        with pytest.raises((TypeError, ValueError), match=message):
            dry("training", **arguments(p, "training"), words=words, out=out)


def test_of_two_bad_options(p):
    values = arguments(p, "backward") | {"data_format": "NHWC", "is_training": 2}
    with pytest.raises(TypeError, match="^is_training: expected True or False"):
        dry("backward", **values)
