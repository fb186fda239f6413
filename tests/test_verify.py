"""bn-ext verify passes, and it can fail: each digest depends on what it is to show."""

import ctypes
import importlib.util
import re
import sys

import numpy as np
import pytest
from command_line import run
from exact_sums import STATES, integer_of, units_of
from fp_modes import FP_MODES, LIBM, X87, fp_mode

import bn_ext
from bn_ext._cli import verify
from bn_ext._cli.verify import problems
from bn_ext._dtypes import DTYPES

pytestmark = [pytest.mark.fast, pytest.mark.any_level]


@pytest.mark.parametrize("name", DTYPES)
def test_exact_sums_of_the_digests_are_those_of_integers(name):
    pytest.importorskip("ml_dtypes")
    dtype = DTYPES[name]
    for src, diff_dst, layout in problems(dtype, "exact"):
        channel = {"NXC": -1, "NCX": 1}[layout]
        mean = np.linspace(-1, 1, src.shape[channel]).astype(dtype.number)
        options = {"data_format": layout, "exact": True}
        state = bn_ext.GradientSums(src, diff_dst, mean, **options).array
        x, dy = (np.moveaxis(a, channel, 0).reshape(len(mean), -1) for a in (src, diff_dst))
        lowest = STATES[len(state)][1]
        for c in range(0, len(mean), 17):
            with np.errstate(all="ignore"):
                terms = dy[c].astype(dtype.number) * (x[c].astype(dtype.number) - mean[c])
            finite = terms[np.isfinite(terms)]
            assert len(finite) < len(terms) or x.size < 10**5
            assert integer_of(state, 1, c) == units_of(finite, lowest)


@pytest.mark.parametrize("isa", bn_ext.available_isas())
def test_digests_are_the_known_ones(isa):
    """On two threads; test_same_bits.py has other numbers."""
    pytest.importorskip("ml_dtypes")
    assert verify.digests(isa, 2) == verify.known()


def test_results_in_place_are_those_elsewhere(monkeypatch):
    monkeypatch.setattr(verify, "MODES", {"dense gapped": ("in place",)})
    monkeypatch.setattr(verify, "known_dtypes", lambda: [DTYPES["float64"]])
    in_place = verify.digests(bn_ext.get_isa())
    for name in ("training", "inference", "backward", "double_backward"):
        function = getattr(bn_ext, f"batch_norm_{name}")

        def elsewhere(*operands, out, function=function, **options):
            return function(*operands, **options)

        monkeypatch.setattr(verify._functions, f"batch_norm_{name}", elsewhere)
    assert verify.digests(bn_ext.get_isa()) == in_place


def test_the_command_passes(capsys, monkeypatch):
    monkeypatch.setattr(verify, "digests", lambda isa: verify.known())
    status, out, _ = run(capsys, "verify")
    assert status == 0
    levels = re.findall(r"(\w+) \(.*\): (\d+) digests", out)
    assert [isa for isa, _ in levels] == list(bn_ext.available_isas())
    bfloat16 = importlib.util.find_spec("ml_dtypes") is not None
    assert {int(results) == 52 for _, results in levels} == {bfloat16}
    assert ("no bfloat16" in out) != bfloat16
    assert "every bit as promised" in out


CHANGES = {
    "wrong": lambda results: results.update({"float32 training": "0"}),
    "missing": lambda results: results.popitem(),
    "unknown": lambda results: results.update(extra="0"),
    "none": dict.clear,
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_wrong_digest_ends_the_command_with_1(capsys, monkeypatch, change):
    results = verify.known()
    change(results)
    monkeypatch.setattr(verify, "digests", lambda isa: results)
    status, out, _ = run(capsys, "verify")
    assert (status, "report" in out) == (1, True)
    for name, digest in verify.known().items() ^ results.items():
        assert f"'{name}': '{digest}'" in out


@pytest.mark.parametrize("name", [name for name in FP_MODES if name != "default"])
def test_a_changed_floating_point_mode_is_found(capsys, name):
    with fp_mode(name):
        status, out, _ = run(capsys, "verify")
    assert status == 1
    assert "the floating-point mode is not the default" in out
    assert ("become 0" in out) == (name == "flush")


@pytest.mark.skipif(not X87, reason="no word of x87's in fenv_t")
def test_a_changed_precision_of_long_doubles_is_found():
    env, changed = (ctypes.create_string_buffer(64) for _ in range(2))
    for buffer in env, changed:
        LIBM.fegetenv(buffer)
    changed[1] = ord(changed[1]) & 0xFC  # 24 bits
    LIBM.fesetenv(changed)
    try:
        results = verify.changed_mode()
    finally:
        LIBM.fesetenv(env)
    assert results == ["long doubles lose bits"]
    assert verify.changed_mode() == []


def test_without_ml_dtypes_bfloat16_has_no_digest(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    monkeypatch.setattr(verify, "available_isas", lambda: (bn_ext.get_isa(),))
    status, out, _ = run(capsys, "verify")
    assert status == 0
    assert "39 digests correct (no bfloat16 without ml_dtypes)" in out


def test_an_exception_is_a_wrong_result_with_its_name(capsys, monkeypatch):
    def fail(*_):
        raise ValueError("array: impossible")

    monkeypatch.setattr(verify, "digests", fail)
    status, out, _ = run(capsys, "verify")
    assert status == 1
    assert "WRONG: ValueError: array: impossible\n" in out
