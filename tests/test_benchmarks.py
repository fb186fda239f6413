"""Rows of python -m benchmarks: packages in processes of their own, views, more operations."""

import json
import math
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
from fake_peers import FAKE
from tree import ROOT

from bn_ext import _bench

sys.path.append(str(ROOT))  # last: the package there may lack a compiled core

from benchmarks import (
    __main__ as command,
    compare,
    pages,
    peers,
    problems,
    rows,
    views,
)
from benchmarks.problems import Case, Problem

BRIEFLY = ["--seconds", "1e-9"]


@pytest.fixture(autouse=True)
def short(monkeypatch):
    """Here times do not matter."""
    monkeypatch.setattr(_bench, "wait_until_idle", lambda: None)
    monkeypatch.setattr(_bench, "TURNS", 1)


@pytest.fixture
def fake(monkeypatch):
    for module in (command, rows):
        monkeypatch.setattr(module, "PEERS", FAKE)


def test_rows(capsys, fake, tmp_path):
    """The table and the file have every row; what a peer refuses is said."""
    path = tmp_path / "rows.json"
    options = "--shapes 8x4x5 2,3 --layouts NXC --behind pass nothing --threads 1 3 --peers"
    peers = FAKE.keys() - {"absent"}
    command.main([*options.split(), *peers, *BRIEFLY, "--json", str(path)])
    out, err = capsys.readouterr()
    assert "refusing: float32 NXC (2, 3): RuntimeError" in err
    assert "ending: float32 NXC (8, 4, 5): ChildProcessError" in err
    results = json.loads(path.read_text())
    assert [(tuple(r["shape"]), r["threads"], r["behind"]) for r in results] == [
        (shape, threads, behind)
        for threads in (1, 3)
        for behind in ("pass", "nothing")
        for shape in ((8, 4, 5), (2, 3))
    ]
    lines = [line.split() for line in out.splitlines()]
    for r in results:
        for times in ("medians", "shortest", "pairs"):
            assert set(r[times]) == {"bn_ext", "twice", "adding"}
        assert r["threads_used"] == 1
        cells = [f"{1e3 * r[key]['bn_ext']:.4f}" for key in ("medians", "shortest")]
        assert [r["title"], "1", *cells] in [line[:4] for line in lines]


def test_a_peer_that_is_not_installed(capsys, fake):
    """It is left out, but an error if it was asked for."""
    command.main(["--shapes", "4x4", *BRIEFLY])
    assert "absent" not in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        command.main(["--shapes", "4x4", *BRIEFLY, "--peers", "twice", "absent"])
    message = "error: --peers: absent is not installed (No module named 'absent')\n"
    assert capsys.readouterr().err.endswith(message)


def test_every_row_is_a_case():
    """Of sets and shapes, one that is the same in all layouts once; kinds stand together."""
    options = {"sets": ["mlp", "odd"], "shapes": [(4, 3, 2)], "layouts": ["NCX", "NXC"]}
    options |= {"op": ["backward", "training"], "threads": [None, 2]}
    options |= {"behind": ["pass", "nothing"], "dtypes": ["float32", "float64"]}
    options = command.argparse.Namespace(**options)
    cases = rows.chosen_cases(options)
    sets = {"mlp": problems.SETS["mlp"], "odd": problems.SETS["odd"], "": options.shapes}
    assert Counter((c.set, c.shape, c.layout) for c in cases) == {
        (name, shape, layout): 2**4
        for name, shapes in sets.items()
        for shape in shapes
        for layout in options.layouts[: 2 if len(shape) > 2 else 1]
    }
    assert len({*cases}) == len(cases)
    kinds = [(c.op, c.threads, c.behind, c.dtype, c.layout) for c in cases]
    assert sorted(kinds, key=kinds.index) == kinds


def test_ctrl_c_leaves_no_process():
    bench = subprocess.Popen(
        [sys.executable, "-m", "benchmarks", "--peers", "numpy", "--seconds", "100"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert bench.stderr.readline().startswith("1 of ")
    os.killpg(bench.pid, signal.SIGINT)
    # Its pipes end once no process of a package has them either.
    _, err = bench.communicate(timeout=120)
    assert bench.returncode == -signal.SIGINT
    assert err.count("Traceback") == 1  # processes of packages are deaf to it


def test_operations_differ_and_write_to_given_outputs():
    digests = set()
    for op in problems.OPS:
        problem = Problem(Case((40, 3, 5), "NXC", "float32", op))
        problem.src[::2] += 1
        peers.bn_ext_call(problem, with_out=True)()
        digests.add(problem.out[0].tobytes())
    # backward-frozen and backward-frozen-src give the same diff_src.
    assert len(digests) == len(problems.OPS) - 1


def test_views_next_to_copying_first(capsys, monkeypatch, tmp_path):
    """A row for each kind, dtype, layout and number of threads; on the page, a line for each kind
    with both ratios of each operation, and how many rows are slow.
    """
    (tmp_path / "docs").mkdir()
    page = tmp_path / "docs" / "figures.md"
    page.write_text("a\n<!-- views: begin -->\nold\n<!-- views: end -->\nb\n")
    monkeypatch.setattr(pages, "ROOT", tmp_path)
    monkeypatch.setattr(views, "row", lambda *_: ([2.2, 3.3], [2, 1.1], [1, 0.55]))
    views.main(["--write", "--shapes", "2x4x3x5"])
    out, err = capsys.readouterr()
    line = "      2x4x3x5 transposed-columns bfloat16 NCX 2   2.00   4.00"
    last = (
        "56 rows, 56 above 1.05 of copying first, worst 2.00, geometric means 2.000 of copying "
        "first, 4.000 of dense"
    )
    assert out.count(f"{line}\n{last}\n") == len(views.OPS)
    assert not err
    text = page.read_text()
    assert re.fullmatch(r"a\n<!-- views: begin -->\n.*<!-- views: end -->\nb\n", text, re.DOTALL)
    assert "old" not in text
    assert "| crop | 2.00 / 4.00 | 2.00 / 4.00 | 2.00 / 4.00 | 2.00 / 4.00 |" in text
    assert "double-backward 56 of 56, worst 2.00." in text


@pytest.mark.parametrize("layout", views.LAYOUTS)
@pytest.mark.parametrize("op", views.OPS)
def test_calls_on_views_do_what_calls_on_copies_do(op, layout):
    """Each kind has other strides; all write to the given arrays."""
    for kind in views.KINDS:
        operands = views.Operands(op, (3, 4, 5, 6), layout, "bfloat16", kind)
        dense = views.Operands(op, (3, 4, 5, 6), layout, "bfloat16")
        for a, b in zip(operands.read, dense.read, strict=True):
            assert not a.flags.c_contiguous
            assert b.flags.c_contiguous
            b[...] = a
        operands.call(num_threads=1)()
        dense.call(num_threads=1)()
        assert operands.written[0].any()
        for a, b in zip(operands.written, dense.written, strict=True):
            if kind.startswith("transposed"):  # another order of axes, so of sums
                np.testing.assert_allclose(a.astype(float), b.astype(float), rtol=0.02, atol=1e-6)
            else:
                assert a.tobytes() == b.tobytes()
        times = views.row(operands, 1, 1e-9)
        assert all(len(results) >= 3 and min(results) > 0 for results in times)


def test_two_revisions_are_compared(capsys):
    """Here one with itself, so times do not matter: each row has a line or is in a group."""
    compare.main([sys.executable] * 2 + [" backward", "2x64", "float32", "--seconds", "1e-9"])
    group, *slower, last = capsys.readouterr().out.splitlines()
    assert group.startswith("small       4 rows, geometric mean ")
    assert all(" small backward float32 N" in line for line in slower)
    assert f", {len(slower)} beyond 1.05, " in last
    with pytest.raises(SystemExit, match="2"):
        compare.main([sys.executable] * 2 + ["no such row"])
    assert "no row has no such row, such as: small " in capsys.readouterr().err
    with pytest.raises(ChildProcessError, match="the process ended"):
        compare.main([sys.executable, "true", "small"])


def test_every_row_of_a_comparison_is_a_call():
    """Of each operation in two dtypes, on one thread and on two."""
    titles = compare.rows()
    counts = {
        "small": 80,
        "dense": 64,
        "fresh": 32,
        "views": 224,
        "outputs": 32,
        "places": 64,
        "exact": 16,
    }
    assert Counter(title.split()[0] for title in titles) == counts
    for row in titles.values():
        compare.prepared(**row | {"shape": (2, 4, 3, 3)})()


def times_of(*shortest):
    """A side whose batches take so long, one after the other."""
    batches = iter([[1.5 * each, each] for each in shortest for _ in range(compare.ROUNDS)])
    return SimpleNamespace(ask=lambda asked: [] if isinstance(asked, dict) else next(batches))


@pytest.mark.parametrize(
    ("before", "after", "least"),
    [
        ([1.0], [1.04], 1.04),  # not slower: measured once
        ([1.0, 1.0], [1.3, 1.02], 1.02),
        ([1.0] * 4, [1.4, 1.3, 1.2, 1.25], 1.2),
    ],
)
def test_a_slower_row_is_measured_again(before, after, least):
    """Up to three times; the least ratio counts, but not once the time is up."""
    for deadline, ratio in ((math.inf, least), (-math.inf, after[0])):
        sides = [times_of(*before), times_of(*after)]
        assert compare.compared(sides, {}, 1, deadline) == (pytest.approx(ratio), 1.25)


@pytest.mark.parametrize(("worst", "status"), [(1.09, 0), (1.11, 1)])
def test_a_row_that_stays_slower_fails(capsys, monkeypatch, worst, status):
    monkeypatch.setattr(compare, "Side", lambda *_: None)
    results = iter([(1.0, 1.2), (worst, 2.5), (0.8, 1.1), (0.8, 1.1)])
    monkeypatch.setattr(compare, "compared", lambda *_: next(results))
    assert compare.main(["a", "b", "small", " backward", "float32", "4x6x300"]) == status
    out, err = capsys.readouterr()
    _, slower, last = out.splitlines()
    assert slower == f"{worst:.2f} small backward float32 NXC 4x6x300 2t"
    assert last == (
        f"4 rows, geometric mean {(worst * 0.64) ** 0.25:.3f}, worst {worst:.2f}, "
        f"1 beyond 1.05, {status} beyond 1.10"
    )
    assert err.startswith("BUSY: in 1 of 4 rows a median is over 2 times")
