"""Each two options of the judge at once, with each mistake that it may meet: its verdict."""

import functools
import itertools

import ml_dtypes
import numpy as np
import pytest
from allpairspy import AllPairs
from cases import DATA_DTYPES
from needs import LONG_DOUBLE
from remembered import long_double

import bn_ext
from bn_ext._dtypes import dtype_of
from bn_ext.testing import check_backward, check_double_backward, check_forward
from bn_ext.testing._case import OPERANDS, Case, Kind
from bn_ext.testing._cases import RECIPES
from bn_ext.testing._exact import ARITHMETICS, exact

pytestmark = [pytest.mark.fast, pytest.mark.any_level]

CHECKS = {
    "training": (check_forward, {}),
    "inference": (check_forward, {"is_training": False}),
    "backward": (check_backward, {}),
    "frozen": (check_backward, {"is_training": False}),
    "own": (check_backward, {"own_statistics": True}),
    "double": (check_double_backward, {}),
    "double, frozen": (check_double_backward, {"is_training": False}),
}
#: Two cases: what one call leaves, the next may spoil.
TWO = [name for name in RECIPES if name not in ("two axes", "three rows")]


class Call:
    """A call of the function under test: the case that it gets, its arguments, how many calls there
    were before, what they returned; and what it returns itself, which a mistake changes.
    """

    def __init__(self, case, arrays, results, count, earlier):
        self.case, self.arrays, self.results = case, arrays, results
        self.count, self.earlier = count, earlier

    def add_one(self, place=None):
        if place in (None, self.count):
            self.results[0].flat[-1] += 2 * abs(self.results[0]).max() + 1

    def cast(self, kind):
        self.results = [a.astype(kind) for a in self.results]

    def narrow(self):
        self.cast(np.float16 if self.case.data != "float16" else ml_dtypes.bfloat16)

    def change_bits(self):
        if self.count % 2:
            self.cast(np.longdouble if LONG_DOUBLE else np.float64)

    def move(self, kind):
        """Some results as far off as this kind of arithmetic may be, and no stronger one."""
        place, moved = [*ARITHMETICS].index(kind), False
        for k, (right, limits) in enumerate(exact(self.case).values()):
            if place < len(limits):
                wider = limits[place] > limits[place - 1] * 1.01
                step = long_double(np.where(wider, 0.999 * limits[place], 0))
                self.results[k] = long_double(right) + step
                moved |= wider.any()
        return moved

    def spoil_earlier(self):
        for results in self.earlier:
            results[0][...] = 7

    def write(self):
        self.arrays[0][..., -1] = 3

    def fail(self, error):
        raise error("as told")


def calls_of(o):
    return o["repeats"] * (2 if o["data"] == "standard" else 1)


def is_weaker(kind, o):
    return [*ARITHMETICS].index(kind) > [*ARITHMETICS].index(o["arithmetic"])


def always(o):
    return True


#: What a function does: (what changes in a call, the verdict, what the message says, whether the
#: mistake shows with these options).
MISTAKES = {
    "none": (lambda call: None, "right", "", always),
    "a number": (Call.add_one, "wrong", "wrong:", always),
    "the second call": (lambda call: call.add_one(1), "wrong", "wrong:", lambda o: calls_of(o) > 1),
    "the third call": (lambda call: call.add_one(2), "wrong", "wrong:", lambda o: calls_of(o) > 2),
    "other bits": (Call.change_bits, "right", "", always),
    "a narrow dtype": (Call.narrow, "wrong", "expected at least", always),
    "a shared buffer": (Call.spoil_earlier, "wrong", "a later call", lambda o: calls_of(o) > 1),
    "writing": (Call.write, "wrong", "wrote to src", always),
    "an error": (lambda call: call.fail(ValueError), "raised", "ValueError: as told", always),
    "a refusal": (lambda call: call.fail(NotImplementedError), "refused", "NotImplemented", always),
}
for kind in [*ARITHMETICS][1:4]:
    move, shows = functools.partial(Call.move, kind=kind), functools.partial(is_weaker, kind)
    MISTAKES[f"{kind} arithmetic"] = move, "weaker", "have it:|has it:", shows

IN_LONG_DOUBLES = "other bits", *(f"{kind} arithmetic" for kind in [*ARITHMETICS][1:4])

OPTIONS = {"arithmetic": [*ARITHMETICS][:4], "data_format": ["NXC", "NCX", "NCHW"]}
OPTIONS |= {"repeats": [1, 2, 3], "data": ["standard", "own"], "gate": ["", "relu", "relu and add"]}


def table():
    """Each mistake meets each pair of options; checks and dtypes, each pair of values."""
    checks = zip(itertools.cycle(CHECKS), itertools.cycle(DATA_DTYPES), strict=True)
    for mistake in MISTAKES:
        for row, (check, data) in zip(AllPairs([*OPTIONS.values()]), checks, strict=False):
            data = "float16" if mistake == "float16 arithmetic" else data
            rest = dict(zip(OPTIONS, row, strict=True))
            yield {"check": check, "mistake": mistake, "dtypes": data, **rest}


ROWS = [*table()]


def test_each_pair_is_in_the_table():
    options = OPTIONS | {"check": CHECKS, "mistake": MISTAKES, "dtypes": DATA_DTYPES}
    for (first, values), (second, others) in itertools.combinations(options.items(), 2):
        met = {(row[first], row[second]) for row in ROWS}
        alone = {("float16 arithmetic", data) for data in DATA_DTYPES if data != "float16"}
        assert met >= {*itertools.product(values, others)} - alone, (first, second)


def right(case, arrays, epsilon, gate):
    kind, names = case.kind, OPERANDS[case.kind.operation]
    options = {"epsilon": epsilon, "data_format": kind.data_format}
    arguments = dict(zip(names, arrays, strict=True))
    if kind.operation == "training":
        return [*bn_ext.batch_norm_training(**arguments, **gate, **options, relu=kind.relu)]
    if kind.operation == "inference":
        return [bn_ext.batch_norm_inference(**arguments, **gate, **options, relu=kind.relu)]
    if kind.own_statistics:
        batch = bn_ext.Statistics(arguments["src"], data_format=kind.data_format)
        arguments |= {"mean": batch.mean, "variance": batch.variance}
    options["is_training"] = kind.is_training
    if kind.operation == "double_backward":
        return [*bn_ext.batch_norm_double_backward(**arguments, **options)]
    if kind.add and gate:
        gate = {**gate, "diff_src_1": True}
    return [*bn_ext.batch_norm_backward(**arguments, **gate, **options, relu=kind.relu)]


def function_of(o, kind, changed):
    """The function under test; `changed` gets what its mistake returned."""
    counts, earlier = itertools.count(), []

    def function(*operands, epsilon, **gate):
        arrays = dict(zip(OPERANDS[kind.operation], operands, strict=True))
        case = Case("", kind, arrays, epsilon, gate)
        results = [np.array(a) for a in right(case, operands, epsilon, gate)]
        call = Call(case, operands, results, next(counts), earlier[:])
        changed.append(MISTAKES[o["mistake"]][0](call))
        earlier.append(call.results)
        return call.results[0] if kind.operation == "inference" else tuple(call.results)

    return function


@pytest.mark.parametrize("o", ROWS, ids=lambda o: ",".join(map(str, o.values())))
def test_options_of_the_judge_in_pairs(o):
    if o["dtypes"] == "float64" and o["mistake"] in IN_LONG_DOUBLES and not LONG_DOUBLE:
        pytest.skip("float64 results in other bits are long doubles")
    check, mode = CHECKS[o["check"]]
    is_double = check is check_double_backward
    flags = {} if is_double else {name: name in o["gate"] for name in ("relu", "add")}
    options = {n: o[n] for n in ("arithmetic", "data_format", "repeats")} | mode | flags
    operation = "training" if mode.get("is_training", True) else "inference"
    if "backward" in check.__name__:
        operation = "double_backward" if is_double else "backward"
    kind = Kind(operation, o["data_format"], **mode, **flags)
    if o["data"] == "own":
        src = np.random.default_rng(0).standard_normal((7, 3, 2, 5)) + 1
        options["src"] = np.moveaxis(src, -1, kind.axis).astype(dtype_of(o["dtypes"]))
    else:
        options |= {"dtypes": o["dtypes"], "skip": TWO}
    changed = []
    try:
        report = check(function_of(o, kind, changed), **options)
        assert report.passed
    except AssertionError as error:
        report = error.report
    print(report)
    _, verdict, text, shows = MISTAKES[o["mistake"]]
    verdicts = {*report.verdicts.values()}
    # 16 bits may hide what the arithmetic may do.
    if verdict == "right" or not shows(o) or (verdict == "weaker" and not any(changed)):
        assert verdicts == {"right"}
        assert report.passed
    else:
        assert verdict in verdicts
        assert not report.passed
        assert any(word in str(report) for word in text.split("|"))
    if o["mistake"] == "other bits":
        assert bool(report.differing) == (o["repeats"] > 1)
        assert ("\nnot the same bits in every call: " in str(report)) == (o["repeats"] > 1)
