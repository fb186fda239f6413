"""The check of kernels passes, and it can fail."""

import ctypes
import itertools
import re
import runpy
from pathlib import Path

import numpy as np
import pytest
from oracle import arithmetic, compiled, formulas, kernels, running
from oracle.__main__ import main
from oracle.dtypes import DTYPES
from processes import python
from tree import TESTS

import bn_ext
from bn_ext._cli import verify

pytestmark = [pytest.mark.fast, pytest.mark.any_level]


@pytest.mark.slow
def test_kernels():
    done = python(TESTS / "oracle", "--seed", 7, timeout=500)
    assert done.returncode == 0, done.stdout
    runs = re.findall(r"(\w+) \(.*\): (\d+) kernel runs of (\w+) correct", done.stdout)
    levels = itertools.product(bn_ext.available_isas(), DTYPES)
    assert [(isa, dtype) for isa, _, dtype in runs] == [*levels]
    assert all(int(number) > 5_000 for _, number, _ in runs)


def test_digests_are_printed_as_they_stand_in_the_source(capsys, monkeypatch):
    pytest.importorskip("ml_dtypes")
    monkeypatch.setattr("sys.argv", ["oracle", "--digests"])
    monkeypatch.setattr(verify, "digests", lambda isa: verify.known())
    assert main() == 0
    lines = capsys.readouterr().out
    assert len(lines.splitlines()) == len(verify.DIGESTS)
    assert lines in Path(verify.__file__).read_text()


def test_every_formula_of_the_table_is_checked(monkeypatch):
    assert [formula for _, formula in formulas.KERNELS] == [*compiled.formulas()]
    monkeypatch.setattr(compiled, "formulas", lambda: {"squares": (0, 0)})
    with pytest.raises(RuntimeError, match=r"expected the formulas of formulas.h .*'squares'"):
        runpy.run_path(formulas.__file__)


@pytest.mark.parametrize("kernel", formulas.KERNELS, ids=" ".join)
def test_a_wrong_bit_is_found(kernel, monkeypatch):
    right = arithmetic.expected

    def wrong(*arguments, **options):
        results = right(*arguments, **options)
        array = next(iter(results.values()))
        array.reshape(-1).view(f"u{array.itemsize}")[-1:] ^= 1
        return results

    monkeypatch.setattr(arithmetic, "expected", wrong)
    isa, dtype = bn_ext.get_isa(), DTYPES["float64"]
    pass_, formula = kernel
    check = kernels.check_sum_kernel if pass_ == "sum" else kernels.check_write_kernel
    with pytest.raises(kernels.WrongBitsError, match=f"{isa} {pass_} {formula} float64: "):
        check(isa, formula, dtype, np.random.default_rng(0))


@pytest.mark.parametrize(
    ("got", "wanted"),
    [([0.0, -0.0], [0.0, 0.0]), ([np.nan, 1.0], [-np.nan, 2.0]), ([1.0, np.nan], [1.0, 2.0])],
)
def test_a_wrong_bit_is_found_where_it_is(got, wanted):
    """== would not do: zeros of either sign are equal, and NaN is not equal to itself."""
    got, wanted = np.array([got]), np.array([wanted])
    with pytest.raises(kernels.WrongBitsError, match=r"here: at \(0, 1\) got .*, expected"):
        kernels.demand(got, wanted, "here")
    kernels.demand(wanted, wanted.copy(), "here")


def test_a_kernel_that_writes_outside_its_rows_is_found(monkeypatch):
    right = running.run_write

    def wrong(isa, formula, case, operands, *options):
        right(isa, formula, case, operands, *options)
        ctypes.memset(operands["diff_src"].ctypes.data - 1, 0, 1)

    monkeypatch.setattr(running, "run_write", wrong)
    dtype = DTYPES["float64"]
    with pytest.raises(kernels.WrongBitsError, match="wrote outside its rows"):
        kernels.check_write_kernel(bn_ext.get_isa(), "backward", dtype, np.random.default_rng(0))
