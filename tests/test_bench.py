"""bn-ext bench: what it measures and prints, its problems and peers."""

import re
import threading
import time

import numpy as np
import pytest
from command_line import run
from fake_peers import FAKE

from bn_ext import _bench, _core
from bn_ext._bench import Case, Problem
from bn_ext._cli import bench
from bn_ext._dtypes import DTYPES

BRIEFLY = ["--seconds", "1e-9"]


@pytest.fixture
def short(monkeypatch):
    """For tests of what is shown: times do not matter."""
    monkeypatch.setattr(_bench, "wait_until_idle", lambda: None)
    monkeypatch.setattr(_bench, "TURNS", 1)
    monkeypatch.setattr(bench, "BUSY", np.inf)


@pytest.fixture
def fake(monkeypatch, short):
    peers = {name: FAKE[name] for name in ("twice", "adding", "absent", "refusing", "nothing")}
    monkeypatch.setattr(bench, "PEERS", {"bn_ext": _bench.bn_ext_call, **peers})


def test_bench(capsys, fake):
    """Every row, a table for each kind; what a peer refuses is said, what is absent is not."""
    options = "bench --shapes 8x4x5 2,3 --layouts NXC --threads 1 3 --behind"
    status, out, err = run(capsys, *options.split(), *_bench.WORK, *BRIEFLY)
    assert status == 0
    assert {*err.splitlines()} == {"refusing: not today"}
    _, *tables, last = re.split("\n\n", out.strip())
    assert last.startswith("used: ")
    wanted = [(threads, behind) for threads in (1, 3) for behind in _bench.WORK]
    for (threads, behind), table in zip(wanted, tables, strict=True):
        facts, heading, *rows = table.splitlines()
        assert facts == (
            f"backward, dtype: float32, layout: NXC, threads: {threads}, behind: {behind}"
        )
        pair = ["pair"] * (behind != "nothing")
        names = ["used", "ms", "shortest", "GB/s", *pair, "twice", "adding", "refusing", "nothing"]
        assert heading.split()[3:] == names
        assert [row.split()[0] for row in rows] == ["8x4x5", "2x3"]
        for row in rows:
            assert len(re.findall(r" [\d.]+(?= |$)", row)) == 4 + len(pair)
            assert len(re.findall(r" [\d./]+x", row)) == 2


@pytest.mark.parametrize(
    ("behind", "slow", "busy"), [("pass", 2.5, True), ("pass", 1.9, False), ("product", 2.5, False)]
)
def test_a_busy_machine_is_named(capsys, behind, slow, busy):
    """Whichever package's calls are spread; behind a product, BLAS's threads spread them."""
    times = {"bn_ext": [_bench.Times(1.1, 1)], "numpy": [_bench.Times(slow, 1)]}
    row = _bench.row_of(Case((4, 3), "NXC", "float32", behind=behind), times, 1)
    quiet = row | {"behind": "pass", "medians": {"bn_ext": 1.1}}
    bench.show([each | {"shortest": {"bn_ext": 1, "numpy": 1}} for each in (quiet, row)], times)
    text = "BUSY: in 1 of 2 rows, medians are up to 2.5 times"
    assert (text in capsys.readouterr().out) == busy


@pytest.mark.parametrize("names", [[], ["numpy"], list(_bench.PEERS)])
def test_the_table_fits_80_columns_and_says_all(names):
    times = {"bn_ext": 0.0123, "numpy": 0.456, "torch": 0.456}
    row = {"title": "50x2048x7x7", "dtype": "bfloat16", "layout": "NXC", "threads": 16}
    row |= {"op": "backward", "behind": "product", "threads_used": 2, "bytes_moved": 3 * 10**7}
    row |= {"medians": times, "shortest": {"bn_ext": 0.0119}}
    row["pairs"] = {name: 2 * time + 0.1 for name, time in times.items()}
    lines = list(bench.table([row, row, {**row, "behind": "nothing"}], names))
    assert max(map(len, lines)) <= 80
    facts = "backward, dtype: bfloat16, layout: NXC, threads: 16, behind: "
    assert [line for line in lines if ":" in line] == [f"{facts}product", f"{facts}nothing"]
    cells, others = ["50x2048x7x7", "2", "12.3000", "11.9000", "2.4"], len({*names} - {"bn_ext"})
    words = [line.split() for line in lines]
    assert words.count([*cells, "124.6000", *["37.1/8.1x"] * others]) == 2
    assert words.count([*cells, *["37.1x"] * others]) == 1


def test_a_row(monkeypatch):
    """A pair is the call and the work before it; both take a known time. Threads are the most that
    took part, bytes those that the operation reads and writes.
    """
    monkeypatch.setitem(_bench.WORK, "pass", lambda: time.sleep(0.02))
    counts = iter([1, 2])
    monkeypatch.setattr(_core, "last_call", lambda: {"threads": next(counts, 1)})
    peers = {"bn_ext": lambda _: lambda: None, "slow": lambda _: lambda: time.sleep(0.01)}
    row = _bench.row(Case((4, 3), "NXC", "float64", "training", behind="pass"), peers, 1e-9)
    assert 0 < row["shortest"]["bn_ext"] < 0.01 <= row["shortest"]["slow"] < 0.02
    for name, least in (("bn_ext", 0.02), ("slow", 0.03)):
        assert row["shortest"][name] <= row["medians"][name] <= row["pairs"][name] - 0.02
        assert row["pairs"][name] >= least
    assert (row["threads"], row["threads_used"]) == (_core.default_threads(), 2)
    assert row["bytes_moved"] == 2 * 96


def test_what_stands_before_a_call():
    shapes = [np.shape(work()) for work in _bench.WORK.values()]
    assert shapes == [(), (1_000_000,), (256, 256)]


def test_bursts_take_turns_and_the_first_place_too(monkeypatch):
    monkeypatch.setattr(_bench, "TURNS", 2)
    order = []
    monkeypatch.setattr(_bench, "wait_until_idle", lambda: order.append("."))
    bursts = {name: lambda name=name: [order.append(name)] for name in "abc"}
    _bench.in_turns(bursts, 0)
    assert "".join(order) == ".a.b.c.c.a.b"


@pytest.mark.parametrize(("spins", "most"), [(0.2, 10), (10, 0.2)])
def test_a_burst_begins_when_no_thread_spins(monkeypatch, spins, most):
    """But one that never sleeps is not waited for."""
    monkeypatch.setattr(_bench, "REST", most)
    end, stop = time.perf_counter() + spins, threading.Event()

    def spin():
        while time.perf_counter() < end and not stop.is_set():
            pass

    thread = threading.Thread(target=spin)
    thread.start()
    _bench.wait_until_idle()
    waited = time.perf_counter() >= end
    stop.set()
    thread.join()
    assert waited == (spins < most)


def test_ctrl_c_ends_bench_after_the_rows_it_has(capsys, monkeypatch, short):
    rows = iter([_bench.row, _bench.row])

    def row(*arguments):
        for each in rows:
            return each(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(bench, "row", row)
    status, out, err = run(capsys, "bench", "--shapes", "4x4", "5x5", "6x6", *BRIEFLY)
    assert (status, err) == (130, "interrupted\n")
    assert re.findall(r"^(\dx\d) ", out, re.M) == ["4x4", "5x5"]


@pytest.mark.parametrize("op", _bench.OPS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", _bench.LAYOUTS)
def test_the_numpy_peer_computes_the_same(dtype, layout, op):
    problem = Problem(Case((4, 3, 5, 6), layout, dtype, op))
    results, expected = (
        results if isinstance(results, tuple) else [results]
        for results in (_bench.bn_ext_call(problem)(), _bench.numpy_call(problem)())
    )
    near = {"float64": 1e-12, "float32": 1e-4}.get(dtype, 0.02)
    for a, b in zip(results, expected, strict=True):
        a, b = a.astype(float), b.reshape(a.shape).astype(float)
        np.testing.assert_allclose(a, b, rtol=near, atol=near)
