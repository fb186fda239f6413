"""Standard cases of the judge, each made and solved once for all tests of a file."""

import numpy as np
import pytest

from bn_ext.testing import _cases, _report
from bn_ext.testing._case import Kind
from bn_ext.testing._cases import RECIPES, random_case as make, standard_cases
from bn_ext.testing._exact import exact as solve
from bn_ext.testing._report import call, judged
from bn_ext.testing._wide import Wide

KINDS = {
    "training": Kind("training"),
    "inference": Kind("inference", is_training=False),
    "backward": Kind("backward"),
    "frozen": Kind("backward", is_training=False),
    "own": Kind("backward", own_statistics=True),
    "double": Kind("double_backward"),
    "double, frozen": Kind("double_backward", is_training=False),
}
#: By all that makes a case. At most MOST are kept, which takes 400 MB.
CASES: dict = {}
MOST = 600


def made(kind, name, shape, dtype, change=None):
    if name.partition(",")[0] not in RECIPES:  # a caller's own arrays
        return make(kind, name, shape, dtype, change)
    key = repr(kind), name, shape, dtype, change
    if key not in CASES:
        if len(CASES) == MOST:
            CASES.pop(next(iter(CASES)))
        CASES[key] = make(kind, name, shape, dtype, change)
        vars(CASES[key])["solved"] = {}
    return CASES[key]


def solved(case):
    known = vars(case).get("solved")
    if known is None:
        return solve(case)
    if not known:
        known |= solve(case)
        for array in (a for pair in known.values() for a in pair if not isinstance(a, Wide)):
            array.flags.writeable = False
    return known


def long_double(array):
    """Of what is right, or of limits."""
    return np.asarray(array, np.longdouble)


def case_of(kind, name, data="float32"):
    return next(standard_cases(kind, data, skip=[*{*RECIPES} - {name}]))


def is_wrong(function, cases):
    """Is a result of a case wrong? Vectors are judged first: tensors take long."""
    for case in cases:
        results = call(function, case)
        for name in sorted(results, key=lambda name: np.ndim(results[name])):
            if judged(case, {name: results[name]})[0].verdict == "wrong":
                return True
    return False


@pytest.fixture(autouse=True)
def _remembered(monkeypatch):
    monkeypatch.setattr(_cases, "random_case", made)
    monkeypatch.setattr(_report, "solved", solved)
