"""bn-ext bench: what it measures, prints and writes, and its problems and peers."""

import itertools
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from command_line import run

from bn_ext import _core
from bn_ext._bench import peers, problems, timing
from bn_ext._cli import bench, commands, table, usage


def twice(problem, threads):
    """A peer that makes bn_ext's call twice."""
    call = peers.bn_ext_call(problem, threads)
    return lambda: (call(), call())


def absent(problem, threads):
    raise ImportError("No module named 'absent'")


def refusing(problem, threads):
    raise RuntimeError


FAKE = {"twice": twice, "absent": absent, "refusing": refusing, "none": lambda *_: None}


def test_bench(capsys, monkeypatch, tmp_path):
    for module in (bench, commands):
        monkeypatch.setattr(module, "PEERS", FAKE)
    status, out, err = run(
        capsys, "bench", "--shapes", "8x4x5", "2,3", "--sets", "odd", "--layouts", "NXC",
        "--seconds", "1e-9", "--threads", "1", "3",
        "--json", str(tmp_path / "b.json"), "--peers", *(FAKE.keys() - {"absent"}),
    )  # fmt: skip
    assert status == 0
    assert "refusing: float32 NXC (2, 3): RuntimeError" in err
    found = json.loads((tmp_path / "b.json").read_text())
    assert found["complete"]
    shapes = [tuple(r["shape"]) for r in found["rows"]]
    assert shapes == 2 * [*problems.SETS["odd"], (8, 4, 5), (2, 3)]
    for r in found["rows"]:
        assert set(r["seconds"]) == set(r["medians"]) == {"bn_ext", "twice"}
        assert all(r["seconds"][name] <= r["medians"][name] for name in r["seconds"])
        shape = "x".join(map(str, r["shape"]))
        lines = [line.split() for line in out.splitlines() if line.startswith(f"{shape} ")]
        ours = [f"{1e3 * r[key]['bn_ext']:.4f}" for key in ("seconds", "medians")]
        assert ours in [line[-4:-2] for line in lines]


def test_a_peer_that_is_not_installed(capsys, monkeypatch):
    """It is left out, but an error if it was asked for."""
    for module in (bench, commands):
        monkeypatch.setattr(module, "PEERS", FAKE)
    some = ["bench", "--shapes", "4x4", "--seconds", "1e-9"]
    status, _, err = run(capsys, *some)
    assert status == 0
    assert "absent" not in err
    status, out, err = run(capsys, *some, "--peers", "twice", "absent")
    assert (status, out) == (2, "")
    assert "bench: --peers: absent is not installed (No module named 'absent')" in err


def test_bench_alone_and_of_every_operation(capsys, monkeypatch):
    monkeypatch.setitem(problems.SETS, "resnet", [(4, 3, 2)])
    status, out, _ = run(capsys, "bench", "--seconds", "1e-9", "--peers", "--op", *problems.OPS)
    assert status == 0
    ops = re.findall(r"^op: (.+), dtype: float32, layout: (\w+), threads: \d+$", out, re.MULTILINE)
    assert ops == [*itertools.product(problems.OPS, problems.LAYOUTS)]
    assert len(re.findall(r"^4x3x2 ", out, re.MULTILINE)) == len(ops)


@pytest.mark.parametrize("layouts", [["NXC"], ["NCX"], ["NXC", "NCX"], ["NCX", "NXC"]])
def test_every_shape_is_measured(capsys, layouts):
    """One that is the same in all layouts, once."""
    ops = "backward", "inference-add-relu"
    status, out, _ = run(
        capsys, "bench", "--shapes", "4x3", "4x3x2", "--layouts", *layouts, "--seconds", "1e-9",
        "--peers", "numpy", "--op", *ops, "--json", "-",
    )  # fmt: skip
    assert status == 0
    found = {(r["op"], r["layout"], tuple(r["shape"])) for r in json.loads(out)["rows"]}
    shapes = [(layouts[0], (4, 3)), *((layout, (4, 3, 2)) for layout in layouts)]
    assert found == {(op, *shape) for op in ops for shape in shapes}
    assert len(found) == len(json.loads(out)["rows"])


def a_row(shape=(50, 2048, 7, 7), dtype="bfloat16", layout="NXC", op="backward", used=2, **more):
    """A row with made-up times."""
    seconds = {"bn_ext": 0.0123, **dict.fromkeys(peers.PEERS, 0.456)}
    return {
        "shape": shape, "dtype": dtype, "layout": layout, "op": op, "threads": 2,
        "threads_used": used, "bytes": 10**7, "bytes_moved": len(problems.OPS[op]) * 10**7,
        "seconds": seconds, "medians": seconds, **more,
    }  # fmt: skip


ROWS = [
    a_row(shape, dtype, layout, op, used)
    for op in ("backward", "backward-frozen", "inference-add-relu")
    for dtype in problems.DTYPES
    for layout in problems.LAYOUTS
    for shape, used in (((50, 2048, 7, 7), 2), ((8, 64, 28, 28), 1))
]


@pytest.mark.parametrize("names", [[], ["numpy"], ["numpy", "torch"], list(peers.PEERS)])
@pytest.mark.parametrize("rows", [ROWS[:1], ROWS[:4], ROWS], ids=len)
def test_the_table_fits_80_columns_and_says_all(rows, names):
    lines = list(table.table(rows, names))
    assert max(map(len, lines)) <= 80
    found, facts, means = [], "", 0
    for words in map(str.split, lines):
        if words[:1] == ["op:"]:
            facts = [word.rstrip(",") for word in words[1::2]]
        elif words[:1] in (["50x2048x7x7"], ["8x64x28x28"]):
            assert words[2:] == ["12.3000", "12.3000", "2.4", *["37.1x"] * len(names)]
            found.append([*facts, *words[:2]])
        elif words[:1] == ["geometric"]:
            means += 1
            assert words[2:] == ["37.1x"] * len(names)
    assert sorted(found) == sorted(
        [r["op"], r["dtype"], r["layout"], "2", "x".join(map(str, r["shape"])),
         str(r["threads_used"])]
        for r in rows
    )  # fmt: skip
    assert means == len({tuple(line[:3]) for line in found}) * bool(names)


def test_bytes_of_each_operation():
    one = 4 * 3 * 4
    for op, tensors in (("backward", 3), ("backward-frozen-src", 2), ("double-backward", 5)):
        found = timing.row(timing.Case((4, 3), "NXC", "float32", 1, op), 1e-9, print, {})
        assert (found["bytes"], found["bytes_moved"]) == (one, tensors * one)
    speeds = [table.cells(a_row(op=op), [])["GB/s"] for op in ("training", "inference-add-relu")]
    assert speeds == [f"{x / 0.0123:.1f}" for x in (0.02, 0.03)]


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="cannot set CPU affinity")
def test_the_default_is_what_this_process_may_use(tmp_path):
    code = (
        "import os, sys\n"
        "os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])\n"
        "from bn_ext._cli import main\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    path = tmp_path / "b.json"
    subprocess.run(
        [sys.executable, "-P", "-c", code, "bench", "--shapes", "64x64x28x28", "--layouts", "NXC",
         "--seconds", "1e-9", "--peers", "--json", str(path)],
        check=True,
    )  # fmt: skip
    (found,) = json.loads(path.read_text())["rows"]
    assert (found["threads"], found["threads_used"]) == (1, 1)


@pytest.mark.skipif(_core._default_threads() == 1, reason="one thread by default here")
def test_threads_are_those_that_took_part():
    default = _core._default_threads()
    small, large = (
        timing.row(timing.Case(shape, "NXC", "float32", default), 1e-9, print, {})
        for shape in ((2, 3), (64, 64, 56, 56))
    )
    assert small["threads_used"] == 1
    assert 1 < large["threads_used"] <= default


def test_json_to_standard_output(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    status, out, err = run(
        capsys, "bench", "--shapes", "4x4", "--seconds", "1e-9", "--peers", "--json", "-"
    )
    assert status == 0
    assert [r["shape"] for r in json.loads(out)["rows"]] == [[4, 4]]
    assert "GB/s" in err
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no full device here")
def test_a_full_disk_is_named(capsys):
    some = ["bench", "--shapes", "4x4", "--seconds", "1e-9", "--peers"]
    status, _, err = run(capsys, *some, "--json", "/dev/full")
    message = "bn-ext bench: --json /dev/full: cannot be written (No space left on device)\n"
    assert (status, err) == (2, message)


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
    found, out, err = run(
        capsys, "bench", "--shapes", "4x4", "5x5", "6x6", "--seconds", "1e-9", "--peers",
        "--json", str(tmp_path / "b.json"),
    )  # fmt: skip
    assert found == status
    assert err == f"{after} of 3 rows were measured\n{last}\n"
    assert sum(line.startswith(("4x4 ", "5x5 ", "6x6 ")) for line in out.splitlines()) == after
    assert (tmp_path / "b.json").exists() == bool(after)
    if after:
        written = json.loads((tmp_path / "b.json").read_text())
        assert not written["complete"]
        assert len(written["rows"]) == after


def test_files_are_tried_before_measuring(tmp_path):
    kept = tmp_path / "kept.json"
    kept.write_text("as it was")
    usage.demand_writable("--json", kept)
    usage.demand_writable("--json", tmp_path / "new.json")
    assert kept.read_text() == "as it was"
    assert list(tmp_path.iterdir()) == [kept]


@pytest.mark.skipif(not os.path.exists("/dev/null"), reason="no devices as files here")
def test_devices_are_not_opened_to_try_them(monkeypatch):
    monkeypatch.setattr(Path, "open", None)
    usage.demand_writable("--json", Path("/dev/null"))


@pytest.mark.parametrize("op", ["backward", "training", "inference"])
@pytest.mark.parametrize("dtype", problems.DTYPES)
@pytest.mark.parametrize("layout", problems.LAYOUTS)
def test_the_numpy_peer_computes_the_same(dtype, layout, op):
    problem = problems.Problem((4, 3, 5, 6), layout, dtype, op=op)
    peers.bn_ext_call(problem, 1)()
    found = peers.numpy_call(problem, 1)()
    rtol = {"float64": 1e-12, "float32": 1e-4}.get(dtype, 2e-2)
    found = found if isinstance(found, tuple) else (found,)
    for ours, theirs in zip(problem.out, found, strict=True):
        np.testing.assert_allclose(
            ours.astype(float), theirs.reshape(ours.shape).astype(float), rtol=rtol, atol=rtol
        )


def test_numpy_users_write_no_others():
    problem = problems.Problem((4, 3), "NXC", "float32", op="double-backward")
    assert peers.numpy_call(problem, 1) is None


@pytest.mark.parametrize("op", problems.OPS)
def test_given_and_fresh_outputs_are_the_same(op):
    problem = problems.Problem((4, 3, 5), "NXC", "float32", op=op)
    given, fresh = (peers.bn_ext_call(problem, 1, fresh)() for fresh in (False, True))
    given, fresh = ((a,) if isinstance(a, np.ndarray) else a for a in (given, fresh))
    for ours, theirs, out in zip(fresh, given, problem.out, strict=True):
        assert (ours is theirs is None) or (theirs is out and (ours.astype(out.dtype) == out).all())


@pytest.mark.parametrize("op", ["backward", "training"])
def test_a_call_with_exact_sums(op):
    problem = problems.Problem((400, 3, 5), "NXC", "float32", op=op)
    digests = set()
    for exact in (False, True):
        peers.bn_ext_call(problem, 1, exact=exact)()
        digests.add(b"".join(a.tobytes() for a in problem.out))
    assert len(digests) == 2


def test_operations_differ():
    digests = set()
    for op in problems.OPS:
        problem = problems.Problem((40, 3, 5), "NXC", "float32", op=op)
        problem.src[::2] += 1
        peers.bn_ext_call(problem, 1)()
        digests.add(problem.out[0].tobytes())
    # backward-frozen and backward-frozen-src give the same diff_src.
    assert len(digests) == len(problems.OPS) - 1


def test_frozen_src_asks_for_no_parameter_gradients():
    problem = problems.Problem((4, 3), "NXC", "float32", op="backward-frozen-src")
    assert peers.bn_ext_call(problem, 1)().diff_gamma is None


def test_the_least_of_calls_in_turn():
    order = []
    calls = {name: lambda name=name: order.append(name) for name in "ab"}
    times = timing.call_seconds(calls, 1e-9, after=order.append)
    assert [len(found) + 5 for found in times.values()] == [order.count(name) for name in "ab"]
    least = timing.least_seconds(calls, 1e-9)
    assert list(least) == ["a", "b"]
    assert all(value > 0 for value in least.values())


def test_markdown():
    assert timing.markdown(["a", "b"], [[1, 2]]) == "| a | b |\n|---|---|\n| 1 | 2 |"


def test_what_is_as_large_as_the_problem():
    problem = problems.Problem((6, 5), "NXC", "float32")
    assert list(problem.tensors) == ["src", "diff_dst", "diff_src"]
    assert [a.shape for a in problem.tensors.values()] == [(6, 5)] * 3


@pytest.mark.parametrize("places", [(), (0, 1536, 2560), (48, 4000, 16)])
def test_arrays_lie_where_they_shall(places):
    """By default, arrays begin where NumPy's large ones do."""
    problem = problems.Problem((6, 5), "NXC", "float32", *[places] * bool(places))
    found = tuple(a.ctypes.data % 4096 for a in problem.tensors.values())
    assert found == (places or (16, 16, 16))
