"""The kernel check itself: it passes here, and it can fail."""

import ctypes
import sys

import numpy as np
import pytest

import bn_ext
from bn_ext import _kernels, _verify
from bn_ext._bench.problems import dtype_of


@pytest.mark.parametrize("isa", bn_ext.available_isas())
def test_every_kernel_of_every_level(isa):
    assert _verify.check_level(isa, seed=1) > 10_000


@pytest.mark.quick
@pytest.mark.parametrize("num_threads", [1, 2])
@pytest.mark.parametrize("isa", bn_ext.available_isas())
def test_digests_are_the_known_ones(isa, num_threads):
    pytest.importorskip("ml_dtypes")
    assert _verify.digests(isa, num_threads) == _verify.DIGESTS


@pytest.mark.quick
@pytest.mark.parametrize("name", _kernels.DTYPES)
def test_sums_of_the_digests_show_the_order_of_additions(name):
    """Sums of numbers so short that nothing is rounded would be the same in any order."""
    pytest.importorskip("ml_dtypes")
    dtype = _kernels.DTYPES[name]
    for problems in (_verify._problems, _verify._large_problems):
        differ = 0
        for src, diff_dst, layout in problems(dtype, dtype_of(name)):
            channel = {"NXC": -1, "NCX": 1}[layout]
            x, dy = (np.moveaxis(a, channel, 0)[:8].astype(dtype.number) for a in (src, diff_dst))
            terms = (dy * x).astype(np.float64).reshape(len(x), -1)
            assert np.isfinite(terms).all()
            forwards, backwards = (np.cumsum(t, axis=1)[:, -1] for t in (terms, terms[:, ::-1]))
            differ += (forwards != backwards).any()
        assert differ >= 5


@pytest.mark.quick
@pytest.mark.parametrize("kernel", ["reduce", "apply", "scale"])
def test_a_wrong_bit_is_found(kernel, monkeypatch):
    right = _kernels.expected

    def wrong(*arguments, **options):
        found = right(*arguments, **options)
        array = found[0] if kernel == "reduce" else found
        array.reshape(-1).view(f"u{array.itemsize}")[-1:] ^= 1
        return found

    monkeypatch.setattr(_kernels, "expected", wrong)
    isa, dtype = bn_ext.get_isa(), _kernels.DTYPES["float64"]
    with pytest.raises(_verify.WrongBitsError, match=f"{isa} {kernel}_float64: 1 rows"):
        _verify.check_block_kernel(isa, kernel, dtype, np.random.default_rng(0))


@pytest.mark.quick
@pytest.mark.parametrize(
    ("found", "wanted", "at"),
    [
        ([0.0, -0.0], [0.0, 0.0], 1),
        ([-0.0, 1.0], [-0.0, 2.0], 1),
        ([np.nan, 1.0], [-np.nan, 2.0], 1),
        ([1.0, np.nan, 3.0], [1.0, 2.0, 2.0], 1),
    ],
)
def test_a_wrong_bit_is_found_where_it_is(found, wanted, at):
    """Zeros of either sign are equal, and NaN is not equal to itself."""
    found, wanted = np.array([found]), np.array([wanted])
    with pytest.raises(_verify.WrongBitsError, match=rf"here: at \(0, {at}\) got .*, expected"):
        _verify._demand(found, wanted, "here")
    _verify._demand(wanted, wanted.copy(), "here")


@pytest.mark.quick
@pytest.mark.parametrize("at", [0, -1])
def test_a_wrong_bit_of_expand_is_found(at, monkeypatch):
    """The last one is behind what it may write."""
    right = _kernels.run_expand

    def wrong(isa, dtype, channel, all_, each, column):
        right(isa, dtype, channel, all_, each, column)
        column[at] ^= 1

    monkeypatch.setattr(_kernels, "run_expand", wrong)
    monkeypatch.setattr(_verify, "check_block_kernel", lambda *arguments: 0)
    monkeypatch.setattr(_verify, "check_sums_kernel", lambda *arguments: 0)
    with pytest.raises(_verify.WrongBitsError, match="expand_float32: 1 x 1 x 1"):
        _verify.check_level(bn_ext.get_isa(), 0)


@pytest.mark.quick
def test_a_wrong_digest_ends_the_command_with_1(monkeypatch):
    monkeypatch.setattr(_verify, "check_level", lambda isa, seed: 0)
    monkeypatch.setitem(_verify.DIGESTS, "float32 training", "0")
    said = []
    assert _verify.verify(say=said.append) == 1
    assert "report" in said[-1]
    assert "float32 training" in said[-1]


@pytest.mark.quick
def test_a_kernel_that_writes_outside_its_rows_is_found(monkeypatch):
    right = _kernels.run

    def wrong(isa, kernel, case, operands, rows, columns, *options):
        right(isa, kernel, case, operands, rows, columns, *options)
        ctypes.memset(operands[2].ctypes.data - 1, 0, 1)

    monkeypatch.setattr(_kernels, "run", wrong)
    dtype = _kernels.DTYPES["float64"]
    with pytest.raises(_verify.WrongBitsError, match="wrote outside its rows"):
        _verify.check_block_kernel(bn_ext.get_isa(), "apply", dtype, np.random.default_rng(0))


@pytest.mark.quick
def test_without_ml_dtypes_bfloat16_has_no_digest(monkeypatch):
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    monkeypatch.setattr(_verify, "check_level", lambda isa, seed: 0)
    said = []
    assert _verify.verify(say=said.append) == 0
    assert "no bfloat16 without ml_dtypes" in said[1]


@pytest.mark.quick
def test_speeds():
    found = dict(_kernels.speeds("float32", seconds=0.003))
    assert {"reduce", "apply", "apply, one channel"} <= found.keys()
    for speeds in found.values():
        assert list(speeds) == list(bn_ext.available_isas())
        assert all(0 < speed < 1e5 for speed in speeds.values())
