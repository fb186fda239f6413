"""The kernel check can fail. test_cli.py shows that it passes on this machine."""

import ctypes
import runpy
import sys
from fractions import Fraction

import numpy as np
import pytest
from exact_sums import STATES, integer_of, units_of
from fp_modes import FP_MODES, X86, fp_mode, math_library
from needs import needs_linux

import bn_ext
from bn_ext import _core
from bn_ext._verify import arithmetic, command, digests, formulas, kernels, problems, running
from bn_ext._verify.dtypes import DTYPES, dtype_of
from bn_ext._verify.values import case_of

pytestmark = pytest.mark.quick


def test_sums_as_integers(rng):
    for lowest, name in ((-160, np.float32), (-1074, np.float64)):
        bits = rng.integers(0, 2 ** (8 * name().itemsize), 1000, f"u{name().itemsize}")
        terms = bits.view(name)
        terms = terms[np.isfinite(terms)]
        expected = sum(map(Fraction, terms.tolist())) / Fraction(2) ** lowest
        assert units_of(terms, lowest) == expected


@pytest.mark.parametrize("name", DTYPES)
def test_exact_sums_of_the_digests_are_those_of_integers(name):
    pytest.importorskip("ml_dtypes")
    dtype = DTYPES[name]
    for src, diff_dst, layout in problems.exact_problems(dtype, dtype_of(name)):
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


@pytest.mark.parametrize("num_threads", [1, 2])
@pytest.mark.parametrize("isa", bn_ext.available_isas())
def test_digests_are_the_known_ones(isa, num_threads):
    pytest.importorskip("ml_dtypes")
    assert digests.digests(isa, num_threads) == digests.DIGESTS


@pytest.mark.parametrize("name", DTYPES)
def test_sums_of_the_digests_show_the_order_of_additions(name):
    """If the numbers had so few bits that nothing is rounded, no order would change the sums."""
    pytest.importorskip("ml_dtypes")
    dtype = DTYPES[name]
    for some_problems in (problems.moderate_problems, problems.large_problems):
        differ = 0
        for src, diff_dst, layout in some_problems(dtype, dtype_of(name)):
            channel = {"NXC": -1, "NCX": 1}[layout]
            x, dy = (np.moveaxis(a, channel, 0)[:8].astype(dtype.number) for a in (src, diff_dst))
            terms = (dy * x).astype(np.float64).reshape(len(x), -1)
            assert np.isfinite(terms).all()
            forwards, backwards = (np.cumsum(t, axis=1)[:, -1] for t in (terms, terms[:, ::-1]))
            differ += (forwards != backwards).any()
        assert differ >= 5


@pytest.mark.parametrize("name", DTYPES)
def test_what_is_too_large_for_a_format_is_infinite_without_a_warning(name):
    dtype = DTYPES[name]
    largest = np.array([np.finfo(dtype.number).max], dtype.number)
    wide = dtype.widen(dtype.narrow(largest))
    assert np.isinf(wide) == (dtype.bits.itemsize == 2)


def test_every_formula_of_the_table_is_checked(monkeypatch):
    assert [formula for _, formula in formulas.KERNELS] == [*_core._formulas()]
    monkeypatch.setattr(_core, "_formulas", lambda: ("squares",))
    with pytest.raises(RuntimeError, match=r"expected the formulas of formulas.h .*'squares'"):
        runpy.run_path(formulas.__file__)


@pytest.mark.parametrize("kernel", formulas.KERNELS, ids=" ".join)
def test_an_operand_or_a_coefficient_too_many_is_refused(kernel, monkeypatch):
    """An expression may use only what the C table names, and uses all of it."""
    dtype = DTYPES["float32"]
    case = case_of(dtype, 1, 8, np.random.default_rng(0))
    needs = formulas.needs(kernel)
    for i in (0, 2):
        for name in needs[i]:
            fewer = tuple(tuple(n for n in found if n != name) for found in needs)
            with monkeypatch.context() as patched:
                patched.setattr(arithmetic, "needs", lambda _, fewer=fewer: fewer)
                with pytest.raises(AttributeError, match=f"'{name}'"):
                    arithmetic.expected(kernel, case, 1)


@pytest.mark.parametrize("kernel", formulas.KERNELS, ids=" ".join)
def test_a_wrong_bit_is_found(kernel, monkeypatch):
    right = arithmetic.expected

    def wrong(*arguments, **options):
        found = right(*arguments, **options)
        array = next(iter(found.values()))
        array.reshape(-1).view(f"u{array.itemsize}")[-1:] ^= 1
        return found

    monkeypatch.setattr(arithmetic, "expected", wrong)
    isa, dtype = bn_ext.get_isa(), DTYPES["float64"]
    pass_, formula = kernel
    check = kernels.check_sum_kernel if pass_ == "sum" else kernels.check_write_kernel
    with pytest.raises(kernels.WrongBitsError, match=f"{isa} {pass_} {formula} float64: "):
        check(isa, formula, dtype, np.random.default_rng(0))


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
    """== would not do: zeros of either sign are equal, and NaN is not equal to itself."""
    found, wanted = np.array([found]), np.array([wanted])
    with pytest.raises(kernels.WrongBitsError, match=rf"here: at \(0, {at}\) got .*, expected"):
        kernels.demand(found, wanted, "here")
    kernels.demand(wanted, wanted.copy(), "here")


def test_a_wrong_digest_ends_the_command_with_1(monkeypatch):
    monkeypatch.setitem(digests.DIGESTS, "float32 training", "0")
    said = []
    assert command.verify(say=said.append) == 1
    assert "report" in said[-1]
    assert "float32 training" in said[-1]


@pytest.mark.parametrize(
    "change",
    [lambda found: found.popitem(), lambda found: found.update(more="0"), dict.clear],
    ids=["missing", "unknown", "none"],
)
def test_a_digest_too_few_or_too_many_is_found(monkeypatch, change):
    found = dict(digests.known())
    change(found)
    monkeypatch.setattr(digests, "digests", lambda isa: found)
    said = []
    assert command.verify(say=said.append) == 1
    assert "expected {" in said[-1]


@pytest.mark.parametrize("name", DTYPES)
def test_a_digest_shows_whether_infinity_passes_a_relu(monkeypatch, name):
    pytest.importorskip("ml_dtypes")
    monkeypatch.setattr(digests, "known_dtypes", lambda: [(DTYPES[name], dtype_of(name))])
    monkeypatch.setattr(digests, "MODES", {problems.exact_problems: ("passed",)})
    right = bn_ext.batch_norm_backward

    def wrong(*arguments, dst, **options):
        return right(*arguments, dst=np.where(dst == -np.inf, -dst, dst), **options)

    isa = bn_ext.get_isa()
    assert digests.digests(isa).items() <= digests.DIGESTS.items()
    monkeypatch.setattr(bn_ext, "batch_norm_backward", wrong)
    assert not digests.digests(isa).items() <= digests.DIGESTS.items()


def test_an_exception_is_a_wrong_result_with_its_name(monkeypatch):
    def wrong(isa):
        raise error

    monkeypatch.setattr(digests, "digests", wrong)
    said, error = [], ValueError("state: impossible")
    assert command.verify(say=said.append) == 1
    assert "WRONG (seed 0): ValueError: state: impossible\n" in said[-1]
    for error in MemoryError(), BrokenPipeError():
        with pytest.raises(type(error)):
            command.verify(say=said.append)


@pytest.mark.parametrize("name", [name for name in FP_MODES if name != "default"])
def test_a_changed_floating_point_mode_is_found(name):
    said = []
    with fp_mode(name):
        assert command.verify(say=said.append) == 1
    assert "the floating-point mode of this process is not the default" in said[-1]
    assert ("become 0" in said[-1]) == (name == "flush")


@needs_linux
@pytest.mark.skipif(not X86, reason="other machines have no x87")
def test_a_changed_precision_of_long_doubles_is_found():
    libm, env, changed = math_library(), *(ctypes.create_string_buffer(64) for _ in range(2))
    for each in env, changed:
        libm.fegetenv(each)
    changed[1] = ord(changed[1]) & 0xFC  # 24 bits
    libm.fesetenv(changed)
    try:
        found = digests.changed_mode()
    finally:
        libm.fesetenv(env)
    assert found == ["long doubles lose bits"]
    assert digests.changed_mode() == []


def test_a_kernel_that_writes_outside_its_rows_is_found(monkeypatch):
    right = running.run_write

    def wrong(isa, formula, case, operands, *options):
        right(isa, formula, case, operands, *options)
        ctypes.memset(operands["diff_src"].ctypes.data - 1, 0, 1)

    monkeypatch.setattr(running, "run_write", wrong)
    dtype = DTYPES["float64"]
    with pytest.raises(kernels.WrongBitsError, match="wrote outside its rows"):
        kernels.check_write_kernel(bn_ext.get_isa(), "backward", dtype, np.random.default_rng(0))


def test_without_ml_dtypes_bfloat16_has_no_digest(monkeypatch):
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    said = []
    assert command.verify(say=said.append) == 0
    assert "no bfloat16 without ml_dtypes" in said[1]
