"""The kernel check itself: it passes here, and it can fail."""

import numpy as np
import pytest

import bn_ext
from bn_ext import _kernels, _verify


@pytest.mark.parametrize("isa", bn_ext.available_isas())
def test_every_kernel_of_every_level(isa):
    assert _verify.check_level(isa, seed=1) > 10_000


@pytest.mark.quick
@pytest.mark.parametrize("isa", bn_ext.available_isas())
def test_digests_are_the_known_ones(isa):
    pytest.importorskip("ml_dtypes")
    assert _verify.digests(isa) == _verify.DIGESTS


@pytest.mark.quick
@pytest.mark.parametrize("kernel", ["reduce", "apply", "scale"])
def test_a_wrong_bit_is_found(kernel, monkeypatch):
    right = _kernels.expected

    def wrong(*arguments, **options):
        found = right(*arguments, **options)
        array = found[0] if kernel == "reduce" else found
        array.reshape(-1).view(f"u{array.itemsize}")[-1] ^= 1
        return found

    monkeypatch.setattr(_kernels, "expected", wrong)
    isa, dtype = bn_ext.get_isa(), _kernels.DTYPES["float64"]
    with pytest.raises(_verify.WrongBitsError, match=f"{isa} {kernel}_float64: 1 rows"):
        _verify.check_block_kernel(isa, kernel, dtype, np.random.default_rng(0))


@pytest.mark.quick
def test_a_wrong_digest_ends_the_command_with_1(monkeypatch):
    monkeypatch.setattr(_verify, "check_level", lambda isa, seed: 0)
    monkeypatch.setitem(_verify.DIGESTS, "float32 training", "0")
    said = []
    assert _verify.verify(say=said.append) == 1
    assert "report" in said[-1]
    assert "float32 training" in said[-1]
