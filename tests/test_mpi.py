"""With exact sums, bits do not depend on how samples are dealt to ranks; no rank waits forever.

mpiexec starts the ranks, which run on_ranks.py. Most tests marked "engines" use more or fewer
than two ranks; .ci/mpi runs all tests of this file, with each MPI that has a wheel.
"""

import re

import numpy as np
import pytest
from dealt import DEALS, KINDS, wanted
from engines import if_mpi, needs_mpi, on_ranks, run
from processes import in_new_process, printed_by
from tree import ROOT

from bn_ext._mpi import agreement
from bn_ext.mpi import BatchNorm

RANKS = [2, *(pytest.param(n, marks=pytest.mark.engines) for n in (1, 3, 7))]
quick = pytest.mark.quick


# ---- what ranks exchange besides sums -----------------------------------------------------


def told(values, failed=(), dtype=np.int64):
    """What each rank learns from the sums of words, and from gathered rows of hashes."""
    size = len(values)
    prints = [
        None if r in failed else agreement.fingerprints(each) for r, each in enumerate(values)
    ]
    words = [np.array(agreement.words(p, r), dtype) for r, p in enumerate(prints)]
    rows, total = np.array([agreement.row(p) for p in prints]), np.sum(words, axis=0)
    good = [(prints[r], r, values[r]) for r in range(size) if r not in failed]
    return (
        [agreement.judge(total, p, r, size, each) for p, r, each in good],
        [agreement.compare(rows, r, each) for _, r, each in good],
    )


@quick
@pytest.mark.parametrize("dtype", [np.int64, np.float64])
@pytest.mark.parametrize("size", [2, 3, 7, 1000])
def test_the_rank_that_differs_is_named(rng, size, dtype):
    """Rows tell which rank differs; words only tell that one does."""
    mean = rng.standard_normal(5)
    values = [{"call": 9, "epsilon": 1e-5, "mean": mean} for _ in range(size)]
    assert told(values, dtype=dtype) == ([""] * size, [""] * size)
    odd = int(rng.integers(size))
    other = mean + np.eye(5)[-1]  # only its last number differs
    values[odd] = {"call": 9, "epsilon": 1e-3, "mean": other}
    words, rows = told(values, dtype=dtype)
    assert words == [
        "ranks differ in epsilon or mean; pass check=True on all ranks to learn "
        "which rank, and in what"
    ] * size  # fmt: skip
    who = f"rank {1 - odd} differs" if size == 2 else "all other ranks differ"
    assert rows.pop(odd) == (
        f"epsilon: {who} from rank {odd}, which has 0.001; mean: {who} from rank {odd}"
    )
    for rank, found in zip([r for r in range(size) if r != odd], rows, strict=True):
        assert found == (
            f"epsilon: rank {odd} differs from rank {rank}, which has 1e-05; "
            f"mean: rank {odd} differs from rank {rank}"
        )


@quick
def test_several_that_differ_are_named():
    _, rows = told([{"epsilon": e} for e in (1, 2, 1, 2, 1)])
    assert rows[0] == "epsilon: ranks 1, 3 differ from rank 0, which has 1"
    assert rows[1] == "epsilon: ranks 0, 2, 4 differ from rank 1, which has 2"
    _, rows = told([{"epsilon": rank > 1} for rank in range(12)])
    assert rows[0].startswith("epsilon: ranks 2, 3, 4, 5, 6, 7, 8, 9 and 2 more differ from")


@quick
@pytest.mark.parametrize("failed", [(0,), (2,), (1, 2), (0, 1, 2, 3)])
def test_those_that_failed_are_named_or_counted(failed):
    who = f"rank {failed[0]} failed" if len(failed) == 1 else f"{len(failed)} of 5 ranks failed"
    for found in told([{"epsilon": r} for r in range(5)], failed):
        assert [each.partition(",")[0] for each in found] == [who] * (5 - len(failed))


@quick
def test_a_size_that_differs_is_told_first():
    _, rows = told([{"channels": c, "mean": np.zeros(c)} for c in (4, 5)])
    assert rows == [
        f"channels: rank {1 - r} differs from rank {r}, which has {4 + r}" for r in (0, 1)
    ]


@quick
def test_another_call_is_told_before_another_function():
    words, rows = told([{"call": n, "function": f} for n, f in ((1, "f"), (2, "g"))])
    end = "some rank has made a call that others have not"
    assert words[0] == f"call: rank 0 is in call number 1, others are not: {end}"
    assert rows[0] == f"call: rank 1 differs from rank 0, which has 1: {end}"
    # Unequal call numbers are noticed even if equal ones have the same sum.
    words, _ = told([{"call": n, "function": "f", "exact": True} for n in (1, 2, 3)])
    assert all(words)


@quick
def test_every_name_counts():
    """If ranks differ in one name alone, the message has that name."""
    for name in agreement.NAMES:
        words, rows = told([{"call": 1, "check": False, name: n} for n in (1, 2)])
        assert all(name in each for each in words)
        assert rows[0].startswith(f"{name}: rank 1 differs from rank 0, which has 1")
        assert rows[1].startswith(f"{name}: rank 0 ")


# ---- imports ------------------------------------------------------------------------------


def test_mpi_is_not_initialized_by_an_import():
    code = "import sys, bn_ext, bn_ext.mpi; print('mpi4py' in sys.modules)"
    assert in_new_process(code) == ["False"]


def test_without_mpi4py_an_error_says_what_to_install():
    code = (
        "import sys; sys.modules['mpi4py'] = None\n"
        "import numpy as np, bn_ext.mpi as mpi\n"
        "try: mpi.batch_norm_training(np.ones((2, 3)), epsilon=0, comm=None)\n"
        "except ImportError as error: print(error)\n"
    )
    message = "bn_ext.mpi needs mpi4py and an MPI: python -m pip install mpi4py mpich"
    assert printed_by(code).startswith(message)


# ---- bits ---------------------------------------------------------------------------------


@if_mpi
@pytest.mark.parametrize("ranks", RANKS)
def test_exact_sums_give_one_calls_bits_however_samples_are_dealt(ranks, tmp_path):
    found = on_ranks(ranks, "digests", tmp_path, 1).returned
    assert all(each == found[0] for each in found)
    for data, layout in KINDS:
        one = wanted(data, layout)
        for deal in DEALS:
            for how in ("", " started"):
                assert found[0][f"{data} {layout} {deal}{how}"] == one


@needs_mpi
@pytest.mark.parametrize("ranks", RANKS)
def test_plain_sums_give_the_same_bits_on_every_rank_and_every_time(ranks, tmp_path):
    """Not all bits are those of exact sums: else the test above could pass with plain ones."""
    folders = [tmp_path / name for name in "abc"]
    for folder in folders:
        folder.mkdir()
    runs = [on_ranks(ranks, "digests", folder, 0).returned for folder in folders[:2]]
    assert all(each == runs[0][0] for run in runs for each in run)
    exact = on_ranks(ranks, "digests", folders[2], 1).returned[0]
    differ = [name for name, digest in runs[0][0].items() if digest != exact[name]]
    assert any(name.startswith("float64") for name in differ)


@needs_mpi
@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.engines)])
def test_plain_statistics(ranks, tmp_path):
    """Far from 0, statistics are as exact as the parts' means allow. These are doubles, here up to
    1/16 of a deviation off.
    """
    for far, near, *constants in on_ranks(ranks, "plain_statistics", tmp_path).returned:
        assert far < 1 / 16**2
        assert near < 1e-12
        assert constants == [0.0] * 18


@needs_mpi
@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.engines)])
def test_the_layer_has_the_same_bits_on_any_number_of_ranks(ranks, tmp_path):
    one = on_ranks(1, "layers", tmp_path, 1).returned[0]
    assert one[-1] == len(DEALS)
    assert len({*one}) > 15
    assert on_ranks(ranks, "layers", tmp_path, ranks).returned == [one] * ranks


def test_to_call_a_layer_is_its_forward():
    """The __call__ of bn_ext.BatchNorm would not tell the other ranks of all errors."""
    assert BatchNorm.__call__ is BatchNorm.forward


# ---- faults -------------------------------------------------------------------------------


@needs_mpi
@pytest.mark.parametrize("exact", [1, 0], ids=["exact", "plain"])
@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.engines)])
def test_every_rank_raises_and_the_next_call_works(ranks, exact, tmp_path):
    *others, odd = on_ranks(ranks, "faults", tmp_path, exact, timeout=60).returned
    assert len(odd) > 70
    for case, (error, after) in odd.items():
        function, kind, when = case.split(", ")
        assert after == "", case
        if kind.startswith("refused"):
            assert re.match("(TypeError|ValueError): ", error), (case, error)
        else:
            assert error.startswith("CollectiveError: batch_norm_"), (case, error)
        for error, after in (each[case] for each in others):
            assert after == "", case
            name = "batch_norm_" + {"started": "backward_start"}.get(function, function)
            assert error.startswith(f"CollectiveError: {name}: "), (case, error)
            if kind.startswith("refused"):
                assert f"rank {ranks - 1} failed, and its error says why" in error, (case, error)
            elif when == "later":
                assert re.search(f"ranks differ in .*{kind}.*check=True", error)
            else:
                assert f"{kind}: rank {ranks - 1} differs from" in error, (case, error)


@needs_mpi
def test_a_rank_that_never_calls_is_an_error_in_time(tmp_path):
    ended = on_ranks(2, "no_call", tmp_path, 3, status=None, timeout=90)
    error, waited, next_error = ended.returned[0]
    assert error.startswith("CollectiveTimeoutError: timeout: not all ranks made this call within")
    assert 3 <= waited < 8
    assert next_error == (
        "CollectiveError: comm: cannot be used any more: a call timed out after 3 s"
    )
    # After a timeout, MPI cannot be finalized.
    assert ended.status != 0
    assert "bn_ext.mpi: rank 0 of MPI.COMM_WORLD ends, but" in ended.printed


@needs_mpi
def test_wrong_options_are_refused_at_once(tmp_path):
    (found,) = on_ranks(1, "refused_at_once", tmp_path).returned
    assert found == [
        "TypeError: comm: expected an mpi4py communicator, got NoneType",
        "ValueError: comm: expected a communicator that this rank is in, got COMM_NULL",
        "TypeError: comm: expected an mpi4py communicator, got str",
        "TypeError: exact: expected True or False, got 2",
        "TypeError: check: expected True or False, got None",
        "ValueError: timeout: expected a positive number of seconds, got 0",
        "TypeError: timeout: expected seconds or None, got 'soon'",
        "ValueError: timeout: expected a positive number of seconds, got nan",
        "TypeError: timeout: expected seconds or None, got True",
    ]


# ---- interrupted --------------------------------------------------------------------------

WAYS = [
    pytest.param(2, 0, 23, 0, id="2"),
    pytest.param(2, 0, 31, 9, id="2, twice"),
    *(
        pytest.param(*way, marks=pytest.mark.engines)
        for way in [(2, 1, 97, 0), (3, 0, 5, 0), (5, 0, 29, 0), (2, 0, 11, 1), (3, 1, 307, 40)]
    ),
]


@needs_mpi
@pytest.mark.parametrize("exact", [1, 0], ids=["exact", "plain"])
@pytest.mark.parametrize("function", ["training", "backward", "started"])
@pytest.mark.parametrize(("ranks", "instructions", "step", "again"), WAYS)
def test_a_call_interrupted_anywhere_ends_on_all_ranks(
    ranks, instructions, step, again, function, exact, tmp_path
):
    """No result is wrong. All other ranks end a call the same way: with an error or results."""
    program = "interrupted", tmp_path, function, exact, instructions, step, again
    found = on_ranks(ranks, *program, timeout=600).returned
    assert len(found[0]) > 12
    told = set()
    for where in found[0]:
        k = int(where.split()[-1])
        *others, odd = (found[(k + r + 1) % ranks][where] for r in range(ranks))
        assert len({tuple(each) for each in others}) == 1, (where, found)
        (first, second, third) = others[0]
        assert odd[0] in ("Interrupted", "right"), (where, odd, others)
        assert first in ("CollectiveError", "right"), (where, odd, others)
        # An error that came too late for this call is raised in the next one.
        assert second in ("CollectiveError", "right"), (where, odd, others)
        assert odd[1] == second, (where, odd, others)
        assert odd[2] == third == "right", (where, odd, others)
        if odd[0] == "right":
            assert first == second == "right", (where, odd, others)
        told.add((odd[0], first, second))
    assert ("Interrupted", "CollectiveError", "right") in told
    assert ("right", "right", "right") in told
    assert function == "started" or ("Interrupted", "right", "CollectiveError") in told


@needs_mpi
def test_what_a_layer_is_refused_is_told(tmp_path):
    other, odd = on_ranks(2, "refused_by_a_layer", tmp_path, status=None).returned
    assert all("rank 1 failed, and its error says why" in each for each in other[:2])
    assert [each.partition(":")[0] for each in odd] == ["ValueError", "TypeError", "right"]
    assert other[2] == "right"


@needs_mpi
def test_the_others_are_told_in_the_exchange_that_they_are_in(tmp_path):
    """The calls before the refused ones differ only in exact and timeout."""
    other, odd = on_ranks(2, "refused_of_several", tmp_path, status=None).returned
    assert all("rank 1 failed, and its error says why" in each for each in other)
    assert all(each.startswith("ValueError: epsilon") for each in odd)


@needs_mpi
def test_ranks_that_have_not_made_the_same_calls_are_told(tmp_path):
    for rank, found in enumerate(on_ranks(2, "apart", tmp_path, timeout=60).returned):
        assert found == [
            "CollectiveError: batch_norm_backward: call: "
            f"rank {rank} is in call number {3 + rank}, others are not: "
            "some rank has made a call that others have not",
            "CollectiveError: comm: cannot be used any more: its ranks have not made the same "
            "calls; go on with a duplicate (comm.Dup())",
            "",
        ]


# ---- small programs -------------------------------------------------------------------------

#: {program, its argument: what it returns on both of two ranks}; the program's docstring says why.
RETURNED = {
    ("functions_mixed",): True,
    ("intercommunicator",): "TypeError: comm: expected an intracommunicator, got Intercomm",
    ("let_go",): True,
    ("zeros_alike",): ["", "", ""],
    ("in_order",): True,
    ("one_element",): [
        "ValueError: src: expected more than one element in each channel with correction=1, got "
        "one; leave such a batch out, or normalize it with the running statistics, as a layer does "
        "after eval()",
        "right",
    ],
    ("no_samples",): [True, [0.0] * 8, [0.0] * 8, [0, 4, 8]],
    **{("never_waited", who): "started" for who in ("all", "late", "finalized")},
    **{
        ("ended_on_one_rank", where): [True, "CollectiveError", "right"]
        for where in ("start", "wait")
    },
}


@needs_mpi
@pytest.mark.parametrize("program", RETURNED, ids=" ".join)
def test_what_a_program_returns_on_both_ranks(program, tmp_path):
    function, *argument = program
    assert on_ranks(2, function, tmp_path, *argument).returned == [RETURNED[program]] * 2


# ---- communicators --------------------------------------------------------------------------


@needs_mpi
@pytest.mark.parametrize("ranks", [2, pytest.param(7, marks=pytest.mark.engines)])
def test_groups_of_ranks(ranks, tmp_path):
    found = on_ranks(ranks, "groups", tmp_path).returned
    # In a duplicate, or a communicator made after another was freed, nothing is agreed on yet.
    assert [each[:2] for each in found] == [[True, [1, 0, 0]]] * ranks
    none = "ValueError: comm: expected a communicator that this rank is in, got COMM_NULL"
    assert [each[2] for each in found] == ["", *[none] * (ranks - 1)]


@needs_mpi
def test_examples_of_the_docstrings(tmp_path):
    (found,) = on_ranks(1, "examples", tmp_path).returned
    failed, attempted = found
    assert failed == 0
    assert attempted > 15


@needs_mpi
def test_examples_of_the_page(tmp_path):
    for failed, attempted in on_ranks(2, "page", tmp_path).returned:
        assert failed == 0
        assert attempted > 10


# ---- the example --------------------------------------------------------------------------


@needs_mpi
@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.engines)])
def test_the_network_has_the_same_weights_on_any_number_of_ranks(ranks, tmp_path):
    pytest.importorskip("sklearn")
    ended = run(ranks, [ROOT / "examples" / "same_bits.py"], tmp_path)
    assert ended.status == 0, ended.printed
    table = (ROOT / "README.md").read_text().partition("digest of the weights")[2]
    digest = re.search("`([0-9a-f]{16})`", table)[1]
    assert f"ranks {ranks}: weights {digest}, " in ended.printed
