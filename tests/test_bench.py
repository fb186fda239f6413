"""bn-ext bench: what it measures, prints and writes, and its problems and peers."""

import json
import os
import re
import signal
import subprocess
import sys

import numpy as np
import pytest
from command_line import run
from fake_peers import FAKE

from bn_ext import _core
from bn_ext._bench import peers, problems, table, timing
from bn_ext._bench.problems import Case, Problem
from bn_ext._cli import bench, commands, usage
from bn_ext._dtypes import DTYPES

BRIEFLY = ["--seconds", "1e-9"]


@pytest.fixture(autouse=True)
def short(monkeypatch):
    """Here times do not matter."""
    monkeypatch.setattr(timing, "PAUSE", 0)
    monkeypatch.setattr(timing, "TURNS", 1)


@pytest.fixture
def fake(monkeypatch):
    for module in (bench, commands):
        monkeypatch.setattr(module, "PEERS", FAKE)


def test_bench(capsys, fake, tmp_path):
    """The table and the file have every row; what a peer refuses is said."""
    status, out, err = run(
        capsys, "bench", "--shapes", "8x4x5", "2,3", "--layouts", "NXC", *BRIEFLY,
        "--behind", *problems.BEHIND, "--threads", "1", "3",
        "--json", str(tmp_path / "b.json"), "--peers", *(FAKE.keys() - {"absent"}),
    )  # fmt: skip
    assert status == 0
    assert "refusing: float32 NXC (2, 3): RuntimeError" in err
    assert "ending: float32 NXC (8, 4, 5): ChildProcessError" in err
    found = json.loads((tmp_path / "b.json").read_text())
    assert found["complete"]
    kinds = [(tuple(r["shape"]), r["threads"], r["behind"]) for r in found["rows"]]
    assert kinds == [
        (shape, threads, behind)
        for threads in (1, 3) for behind in problems.BEHIND for shape in ((8, 4, 5), (2, 3))
    ]  # fmt: skip
    for r in found["rows"]:
        for times in ("medians", "shortest", "pairs"):
            assert set(r[times]) == {"bn_ext", "twice", "other"}
        assert all(r["shortest"][name] <= r["medians"][name] for name in r["medians"])
        assert all(r["medians"][name] <= r["pairs"][name] for name in r["medians"])
        shape = "x".join(map(str, r["shape"]))
        lines = [line.split() for line in out.splitlines() if line.startswith(f"{shape} ")]
        ours = [f"{1e3 * r[key]['bn_ext']:.4f}" for key in ("medians", "shortest", "pairs")]
        alone = r["behind"] == "nothing"
        assert [*ours[:2], *ours[2:][alone:]] in [line[2:4] + line[5:-2] for line in lines]


def test_a_peer_that_is_not_installed(capsys, fake):
    """It is left out, but an error if it was asked for."""
    some = ["bench", "--shapes", "4x4", *BRIEFLY]
    status, _, err = run(capsys, *some)
    assert status == 0
    assert "absent" not in err
    status, out, err = run(capsys, *some, "--peers", "twice", "absent")
    assert (status, out) == (2, "")
    assert "bench: --peers: absent is not installed (No module named 'absent')" in err


def test_every_operation_on_views(capsys, monkeypatch):
    """Next to the same on dense arrays, and on copies that NumPy makes first."""
    monkeypatch.setitem(problems.SETS, "views", [((4, 3, 2), ("NXC",), "crop")])
    status, out, _ = run(
        capsys, "bench", "--sets", "views", *BRIEFLY, "--peers", "--op", *problems.OPS
    )
    assert status == 0
    assert re.findall(r"^(.+), dtype: float32, layout: NXC", out, re.M) == [*problems.OPS]
    rows = re.findall(r"GB/s +pair +dense +copied\n4x3x2 crop .*x .*x$", out, re.M)
    assert len(rows) == len(problems.OPS)


@pytest.mark.parametrize("layouts", [["NXC"], ["NCX"], ["NXC", "NCX"], ["NCX", "NXC"]])
def test_every_row_is_a_case(layouts):
    """One that is the same in all layouts, once; a view in its own."""
    views = problems.SETS["views"]
    rows = [*problems.dense((4, 3), (4, 3, 2)), *views]
    cases = problems.cases_of(
        [("", row) for row in rows], ["backward"], [None], ["nothing"], ["float32"], layouts
    )
    wanted = [((4, 3), layouts[0], ""), *(((4, 3, 2), layout, "") for layout in layouts)]
    wanted += [(shape, own, view) for shape, (own,), view in views if own in layouts]
    assert sorted((c.shape, c.layout, c.view) for c in cases) == sorted(wanted)


@pytest.mark.parametrize("names", [[], ["numpy"], list(peers.PEERS)])
def test_the_table_fits_80_columns_and_says_all(names):
    times = {"bn_ext": 0.0123, **dict.fromkeys(peers.PEERS, 0.456)}
    row = {
        "shape": (50, 2048, 7, 7), "dtype": "bfloat16", "layout": "NXC", "threads": 16,
        "op": "inference-add-relu", "view": "crop", "behind": "product", "threads_used": 2,
        "bytes_moved": 3 * 10**7, "medians": times, "shortest": times,
        "pairs": {name: 2 * time + 0.1 for name, time in times.items()},
    }  # fmt: skip
    lines = list(table.table([row, row, {**row, "behind": "nothing"}], names))
    assert max(map(len, lines)) <= 80
    facts = "inference-add-relu, dtype: bfloat16, layout: NXC, threads: 16, behind: "
    assert [line for line in lines if ":" in line] == [f"{facts}product", f"{facts}nothing"]
    cells = ["50x2048x7x7", "crop", "2", "12.3000", "12.3000", "2.4"]
    found = [line.split() for line in lines]
    assert found.count([*cells, "124.6000", *["37.1/8.1x"] * len(names)]) == 2
    assert found.count([*cells, *["37.1x"] * len(names)]) == 1
    assert "\n".join(lines).count("geometric mean") == (2 if names else 0)


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
    assert table.noise([quiet, row]).startswith(said)
    assert bool(table.noise([quiet, row])) == bool(said)


def row_of(*facts):
    with timing.packages_of({}) as packages:
        return timing.row(Case(*facts), packages, 1e-9, print)


def test_bytes_of_an_operation():
    found = row_of((4, 3), "NXC", "float32", "double-backward")
    assert (found["bytes"], found["bytes_moved"]) == (48, 5 * 48)


@pytest.mark.skipif(_core.default_threads() == 1, reason="one thread by default here")
def test_threads_are_those_that_took_part():
    default = _core.default_threads()
    small, large = (row_of(shape, "NXC", "float32") for shape in ((2, 3), (64, 64, 56, 56)))
    assert (small["threads"], small["threads_used"]) == (default, 1)
    assert 1 < large["threads_used"] <= default


def test_json_to_standard_output(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    status, out, err = run(capsys, "bench", "--shapes", "4x4", *BRIEFLY, "--peers", "--json", "-")
    assert status == 0
    assert [r["shape"] for r in json.loads(out)["rows"]] == [[4, 4]]
    assert "GB/s" in err
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no full device here")
def test_a_full_disk_is_named(capsys):
    some = ["bench", "--shapes", "4x4", *BRIEFLY, "--peers", "--json", "/dev/full"]
    status, _, err = run(capsys, *some)
    message = "\nbn-ext bench: --json /dev/full: cannot be written (No space left on device)\n"
    assert (status, err[-len(message) :]) == (2, message)


@pytest.mark.parametrize("after", [0, 2])
@pytest.mark.parametrize(
    ("error", "status", "last"),
    [(KeyboardInterrupt, 130, "interrupted"), (MemoryError, 2, "bn-ext bench: not enough memory")],
)
def test_bench_keeps_what_it_has(capsys, monkeypatch, tmp_path, error, status, last, after):
    count = iter(range(10))

    def row(*arguments):
        if next(count) == after:
            raise error
        return timing.row(*arguments)

    monkeypatch.setattr(bench, "row", row)
    path = tmp_path / "b.json"
    found, out, err = run(
        capsys, "bench", "--shapes", "4x4", "5x5", "6x6", *BRIEFLY, "--peers", "--json", str(path)
    )
    assert found == status
    rows = [f"{k} of 3: {3 + k}x{3 + k}, backward, float32, NXC, behind pass" for k in (1, 2, 3)]
    assert err.splitlines() == [*rows[: after + 1], f"{after} of 3 rows were measured", last]
    assert sum(line.startswith(("4x4 ", "5x5 ", "6x6 ")) for line in out.splitlines()) == after
    assert path.exists() == bool(after)
    if after:
        written = json.loads(path.read_text())
        assert (written["complete"], len(written["rows"])) == (False, after)


@pytest.mark.skipif(not hasattr(os, "killpg"), reason="no groups of processes here")
def test_ctrl_c_ends_bench_in_a_sentence():
    bench = subprocess.Popen(
        [sys.executable, "-P", "-m", "bn_ext", "bench", "--peers", "numpy", "--seconds", "100"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    assert bench.stderr.readline().startswith("1 of ")
    os.killpg(bench.pid, signal.SIGINT)
    # Its pipes end once no process of a package has them either.
    _, err = bench.communicate(timeout=120)
    assert bench.returncode == 130
    assert re.fullmatch(r"0 of \d+ rows were measured\ninterrupted\n", err)


def test_ctrl_c_waits_while_a_process_may_start():
    reached = []

    def start():
        with timing.ctrl_c_waits():
            signal.raise_signal(signal.SIGINT)
            reached.append("the end")

    with pytest.raises(KeyboardInterrupt):
        start()
    assert reached


def test_what_is_left_out_is_said(capsys, monkeypatch):
    rows = [((4, 3, 2), ("NXC",), "crop"), ((5, 3, 2), ("NCX",), "crop")]
    monkeypatch.setitem(problems.SETS, "views", rows)
    some = ["bench", "--sets", "views", "--shapes", "4x4", "--layouts", "NCX", *BRIEFLY, "--peers"]
    status, out, err = run(capsys, *some)
    assert status == 0
    left, *measured = err.splitlines()
    assert left == "4x3x2 crop of views: left out, it is timed in NXC alone"
    assert [line.partition(",")[0] for line in measured] == ["1 of 2: 5x3x2 crop", "2 of 2: 4x4"]
    assert re.findall("^(5x3x2 crop|4x4) ", out, re.M) == ["5x3x2 crop", "4x4"]


def test_files_are_tried_before_measuring(tmp_path):
    kept = tmp_path / "kept.json"
    kept.write_text("as it was")
    for path in (kept, tmp_path / "new.json"):
        usage.demand_writable("--json", path)
    assert kept.read_text() == "as it was"
    assert list(tmp_path.iterdir()) == [kept]


@pytest.mark.parametrize("op", ["backward", "training", "inference"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", problems.LAYOUTS)
def test_the_numpy_peer_computes_the_same(dtype, layout, op):
    problem = Problem(Case((4, 3, 5, 6), layout, dtype, op))
    peers.bn_ext_call(problem, given=True)()
    theirs, near = peers.numpy_call(problem)(), {"float64": 1e-12, "float32": 1e-4}.get(dtype, 0.02)
    for a, b in zip(problem.out, theirs if len(problem.out) > 1 else [theirs], strict=True):
        a, b = a.astype(float), b.reshape(a.shape).astype(float)
        np.testing.assert_allclose(a, b, rtol=near, atol=near)


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
    wanted = peers.bn_ext_call(problem)().diff_src.tobytes()
    for peer in peers.OF_VIEWS.values():
        assert peer(Problem(Case((4, 3), layout, "float32"))) is None
        assert peer(problem)().diff_src.tobytes() == wanted


def test_bursts_take_turns_and_the_first_place_too(monkeypatch):
    monkeypatch.setattr(timing, "TURNS", 2)
    order = []
    bursts = {name: lambda name=name: [order.append(name)] for name in "abc"}
    timing.in_turns(bursts, 0)
    assert "".join(order) == "abccab"


def test_every_call_stands_behind_other_work():
    order = []
    times = timing.burst(lambda: order.append("call"), lambda: order.append("before"))
    assert all(0 < each.call < each.pair for each in times)
    assert order == ["before", "call"] * len(times)
    assert [np.shape(timing.work(name)()) for name in problems.BEHIND] == [
        (), (1_000_000,), (256, 256)
    ]  # fmt: skip
