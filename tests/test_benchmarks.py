"""Rows of python -m benchmarks: packages in processes of their own, views, more operations."""

import json
import os
import re
import signal
import subprocess
import sys

import numpy as np
import pytest
from fake_peers import FAKE
from tree import ROOT

from bn_ext import _bench

sys.path.append(str(ROOT))  # last: the package there may lack a compiled core

from benchmarks import __main__ as command, peers, problems, rows
from benchmarks.problems import Case, Problem

BRIEFLY = ["--seconds", "1e-9"]


@pytest.fixture(autouse=True)
def short(monkeypatch):
    """Here times do not matter."""
    monkeypatch.setattr(_bench, "rest", lambda: None)
    monkeypatch.setattr(_bench, "TURNS", 1)


@pytest.fixture
def fake(monkeypatch):
    for module in (command, rows):
        monkeypatch.setattr(module, "PEERS", FAKE)


def test_rows(capsys, fake, tmp_path):
    """The table and the file have every row; what a peer refuses is said."""
    path = tmp_path / "rows.json"
    command.main([
        "--shapes", "8x4x5", "2,3", "--layouts", "NXC", *BRIEFLY, "--behind", "pass", "nothing",
        "--threads", "1", "3", "--json", str(path), "--peers", *(FAKE.keys() - {"absent"}),
    ])  # fmt: skip
    out, err = capsys.readouterr()
    assert "refusing: float32 NXC (2, 3): RuntimeError" in err
    assert "ending: float32 NXC (8, 4, 5): ChildProcessError" in err
    found = json.loads(path.read_text())
    assert [(tuple(r["shape"]), r["threads"], r["behind"]) for r in found] == [
        (shape, threads, behind)
        for threads in (1, 3) for behind in ("pass", "nothing") for shape in ((8, 4, 5), (2, 3))
    ]  # fmt: skip
    lines = [line.split() for line in out.splitlines()]
    for r in found:
        for times in ("medians", "shortest", "pairs"):
            assert set(r[times]) == {"bn_ext", "twice", "other"}
        assert r["threads_used"] == 1
        ours = [f"{1e3 * r[key]['bn_ext']:.4f}" for key in ("medians", "shortest")]
        assert [r["title"], "1", *ours] in [line[:4] for line in lines]


def test_a_peer_that_is_not_installed(capsys, fake):
    """It is left out, but an error if it was asked for."""
    command.main(["--shapes", "4x4", *BRIEFLY])
    assert "absent" not in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        command.main(["--shapes", "4x4", *BRIEFLY, "--peers", "twice", "absent"])
    message = "error: --peers: absent is not installed (No module named 'absent')\n"
    assert capsys.readouterr().err.endswith(message)


def test_every_operation_on_views(capsys, monkeypatch):
    """Next to the same on dense arrays, and on copies that NumPy makes first."""
    monkeypatch.setitem(problems.SETS, "views", [((4, 3, 2), ("NXC",), "crop")])
    command.main(["--sets", "views", *BRIEFLY, "--peers", "--op", *problems.OPS])
    out, _ = capsys.readouterr()
    assert re.findall(r"^(.+), dtype: float32, layout: NXC", out, re.M) == [*problems.OPS]
    found = re.findall(r"GB/s +pair +dense +copied\n4x3x2 crop .*x .*x$", out, re.M)
    assert len(found) == len(problems.OPS)


@pytest.mark.parametrize("layouts", [["NXC"], ["NCX"], ["NXC", "NCX"], ["NCX", "NXC"]])
def test_every_row_is_a_case(layouts):
    """One that is the same in all layouts, once; a view in its own; kinds together."""
    options = command.argparse.Namespace(
        sets=["mlp", "views"], shapes=[(4, 3, 2)], layouts=layouts, op=["backward"],
        threads=[None], behind=["pass", "nothing"], dtypes=["float32"],
    )  # fmt: skip
    cases = rows.chosen_cases(options)
    wanted = {
        (shape, layout, view)
        for shape, own, view in [
            *problems.SETS["mlp"], *problems.SETS["views"], ((4, 3, 2), layouts, "")
        ]
        for layout in (layouts if len(shape) > 2 else layouts[:1]) if layout in own
    }  # fmt: skip
    assert len(cases) == 2 * len(wanted)
    for behind in ("pass", "nothing"):
        assert {(c.shape, c.layout, c.view) for c in cases if c.behind == behind} == wanted
    kinds = [(c.behind, c.layout) for c in cases]
    assert sorted(kinds, key=kinds.index) == kinds


@pytest.mark.parametrize(
    ("medians", "behind", "said"),
    [
        ([1.9, 1.2], "pass", ""),
        ([1.5, 4.7], "product", ""),
        (
            [1.5, 4.7],
            "pass",
            "BUSY: in 1 of 2 rows a median is over 2 times the shortest time, 4.7",
        ),
    ],
)
def test_a_busy_machine_is_named(medians, behind, said):
    """Whichever package's calls are spread; behind a product, BLAS's threads spread them."""
    times = dict(zip(["bn_ext", "numpy"], medians, strict=True))
    row = {"behind": behind, "medians": times, "shortest": {"bn_ext": 1, "numpy": 1}}
    quiet = {**row, "medians": {"bn_ext": 1.1}}
    assert rows.noise([quiet, row]).startswith(said)
    assert bool(rows.noise([quiet, row])) == bool(said)


@pytest.mark.skipif(not hasattr(os, "killpg"), reason="no groups of processes here")
def test_ctrl_c_leaves_no_process(tmp_path):
    bench = subprocess.Popen(
        [sys.executable, "-m", "benchmarks", "--peers", "numpy", "--seconds", "100"],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
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
        peers.bn_ext_call(problem, given=True)()
        digests.add(problem.out[0].tobytes())
    # backward-frozen and backward-frozen-src give the same diff_src.
    assert len(digests) == len(problems.OPS) - 1


@pytest.mark.parametrize("layout", problems.LAYOUTS)
@pytest.mark.parametrize("view", problems.VIEWS[1:])
def test_views_are_compared_with_the_same_dense_data(view, layout):
    problem = Problem(Case((4, 3, 5, 6), layout, "float32", view=view))
    assert not problem.src.flags.c_contiguous
    assert problem.out[0].flags.c_contiguous
    assert np.shares_memory(problem.src, problem.tensors["src"])
    wanted = peers.bn_ext_call(problem)().diff_src.tobytes()
    for peer in peers.OF_VIEWS.values():
        assert peer(Problem(Case((4, 3), layout, "float32"))) is None
        assert peer(problem)().diff_src.tobytes() == wanted
