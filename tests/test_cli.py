"""The command line: what it prints, what it writes, how it ends."""

import importlib.metadata
import json
import os
import subprocess
import sys

import numpy as np
import pytest

import bn_ext
from bn_ext import _cli, _runtime, _verify
from bn_ext._bench import peers, problems, timing


def run(capsys, *arguments):
    """(exit status, standard output, standard error)"""
    try:
        status = _cli.main(list(arguments))
    except SystemExit as end:
        status = end.code
    return status, *capsys.readouterr()


@pytest.fixture
def narrow(monkeypatch):
    """A terminal on which no column of the table is cut."""
    monkeypatch.setenv("COLUMNS", "200")


def test_as_a_module_and_as_a_script():
    done = subprocess.run(
        [sys.executable, "-P", "-m", "bn_ext", "--version"], capture_output=True, text=True
    )
    assert done.stdout == f"bn_ext {bn_ext.__version__}\n"
    assert done.returncode == 0
    try:
        importlib.metadata.distribution("bn_ext")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("run from a folder, not installed")
    (script,) = importlib.metadata.entry_points(group="console_scripts", name="bn-ext")
    assert script.load() is _cli.main


def test_help_names_every_command_and_exit_status(capsys):
    status, out, _ = run(capsys, "--help")
    assert status == 0
    assert all(word in out for word in ("info", "verify", "bench", "Exit status: 0", "130"))
    for command in ("info", "verify", "bench"):
        status, out, _ = run(capsys, command, "--help")
        assert status == 0
        assert out.startswith(f"usage: bn-ext {command}")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "the following arguments are required"),
        (["prove"], "verify"),
        (["bench", "--shapes", "4"], "each at least 1, as 8x64x28x28, got '4'"),
        (["bench", "--shapes", "4x0"], "each at least 1, as 8x64x28x28, got '4x0'"),
        (["bench", "--shapes", "ax3"], "each at least 1, as 8x64x28x28, got 'ax3'"),
        (["bench", "--seconds", "0"], "expected seconds, more than 0, got '0'"),
        (["bench", "--seconds", "soon"], "expected seconds, more than 0, got 'soon'"),
        (["bench", "--threads", "two"], "expected a whole number, 1 or more, got 'two'"),
        (["bench", "--threads", "0"], "expected a whole number, 1 or more, got '0'"),
        (["bench", "--shapes", "4x4", "--layouts", "NCX"], "have the layout NXC alone"),
        (["bench", "--plot", "no/such/folder/x.png"], "there is no folder"),
        (["info", "--with", "no_such_module"], "--with no_such_module: cannot be imported"),
    ],
)
def test_wrong_usage_ends_with_2(capsys, arguments, message):
    status, out, err = run(capsys, *arguments)
    assert status == 2
    assert message in err
    assert "Traceback" not in out + err


@pytest.mark.parametrize(
    ("missing", "arguments", "message"),
    [
        ("rich", [], "bench needs rich: pip install 'bn_ext[cli]'"),
        ("matplotlib", ["--plot", "x.png"], "--plot needs matplotlib: pip install 'bn_ext[bench]'"),
        ("ml_dtypes", ["--dtypes", "bfloat16"], "bfloat16 needs ml_dtypes"),
    ],
)
def test_a_missing_extra_is_named(capsys, monkeypatch, missing, arguments, message):
    monkeypatch.setitem(sys.modules, missing, None)
    status, _, err = run(capsys, "bench", *arguments)
    assert status == 2
    assert message in err


def test_interrupted(capsys, monkeypatch):
    def interrupt(seed):
        raise KeyboardInterrupt

    monkeypatch.setattr(_verify, "verify", interrupt)
    assert run(capsys, "verify") == (130, "", "interrupted\n")


def test_nobody_reads_on():
    code = "import sys; from bn_ext._cli import main; sys.exit(main(['info']))"
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-P", "-u", "-c", code], stdout=write, stderr=subprocess.PIPE, text=True
    )
    os.close(write)
    assert done.returncode == 130
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("error", "message"),
    [(MemoryError(), "not enough memory"), (OSError("the disk is full"), "the disk is full")],
)
def test_no_memory_and_no_disk_are_sentences(capsys, monkeypatch, error, message):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr(_cli, "row", fail)
    status, _, err = run(capsys, "bench", "--shapes", "4x4")
    assert status == 2
    assert err == f"bn-ext bench: {message}\n"


# ---- info -------------------------------------------------------------------


def test_info(capsys):
    status, out, _ = run(capsys, "info", "--with", "json")
    assert status == 0
    for value in (bn_ext.__version__, bn_ext.get_isa(), np.__version__, "threads"):
        assert value in out
    status, out, _ = run(capsys, "info", "--json")
    assert status == 0
    assert json.loads(out)["isa"] == bn_ext.get_isa()


def test_info_without_openmp(capsys, monkeypatch):
    monkeypatch.setattr(_runtime._core, "_has_openmp", lambda: False)
    monkeypatch.setattr(_runtime._core, "_default_threads", lambda: 1)
    monkeypatch.setattr(_runtime, "_openmp_libraries", lambda: [])
    _, out, _ = run(capsys, "info")
    assert "1 thread, set by built without OpenMP" in out
    assert "idle threads" not in out


def test_info_warns_of_two_pools(capsys, monkeypatch):
    monkeypatch.setattr(_runtime, "_openmp_libraries", lambda: ["/a/libgomp.so", "/b/libiomp5.so"])
    _, out, _ = run(capsys, "info")
    assert "warning: 2 OpenMP runtimes" in out
    monkeypatch.setattr(_runtime, "_openmp_libraries", lambda: ["/a/libgomp.so"])
    _, out, _ = run(capsys, "info")
    assert "warning" not in out


# ---- verify -----------------------------------------------------------------


def test_verify(capsys):
    status, out, _ = run(capsys, "verify", "--seed", "7")
    assert status == 0
    for isa in bn_ext.available_isas():
        assert f"{isa}: " in out
    assert "every bit as promised" in out


def test_verify_with_speeds_and_digests(capsys, monkeypatch):
    monkeypatch.setattr(_verify, "verify", lambda seed: 0)
    monkeypatch.setattr(_verify._kernels, "speeds", lambda dtype: [("reduce", {"v": 12.0})])
    status, out, _ = run(capsys, "verify", "--bench")
    assert status == 0
    assert "float32 reduce" in out
    status, out, _ = run(capsys, "verify", "--digests")
    assert status == 0
    pytest.importorskip("ml_dtypes")
    assert out.splitlines() == [f'    "{k}": "{v}",' for k, v in _verify.DIGESTS.items()]


def test_a_wrong_bit_ends_with_1_and_no_speeds(capsys, monkeypatch):
    monkeypatch.setattr(_verify, "verify", lambda seed: 1)
    assert run(capsys, "verify", "--bench") == (1, "", "")


# ---- bench ------------------------------------------------------------------


def twice(problem, threads, mode):
    """A peer: ours, twice."""
    call = peers.bn_ext_call(problem, threads, mode)
    return lambda: (call(), call())


def absent(problem, threads, mode):
    raise ImportError("No module named 'absent'")


def refusing(problem, threads, mode):
    raise RuntimeError


FAKE = {"twice": twice, "absent": absent, "refusing": refusing, "none": lambda *_: None}


def test_bench(capsys, monkeypatch, narrow, tmp_path):
    monkeypatch.setattr(_cli, "PEERS", FAKE)
    status, out, err = run(
        capsys, "bench", "--shapes", "8x4x5", "2,3", "--sets", "odd", "--layouts", "NXC",
        "--seconds", "1e-9", "--threads", "1", "2",
        "--json", str(tmp_path / "b.json"), "--plot", str(tmp_path / "b.png"),
    )  # fmt: skip
    assert (status, err) == (0, "")
    assert out.count("absent: not installed") == 1
    assert "refusing: float32 NXC (2, 3): RuntimeError" in out
    found = json.loads((tmp_path / "b.json").read_text())
    shapes = [tuple(r["shape"]) for r in found["rows"]]
    assert shapes == 2 * [*problems.SETS["odd"], (8, 4, 5), (2, 3)]
    for r in found["rows"]:
        assert set(r["seconds"]) == {"bn_ext", "twice"}
        shape = "x".join(map(str, r["shape"]))
        lines = [line for line in out.splitlines() if line.startswith(f"│ {shape} ")]
        assert f"{1e3 * r['seconds']['bn_ext']:.3f}" in lines[r["threads"] - 1]
    assert (tmp_path / "b.png").read_bytes()[:4] == b"\x89PNG"


def test_bench_alone_and_in_every_mode(capsys, monkeypatch, narrow, tmp_path):
    monkeypatch.setitem(problems.SETS, "resnet", [(4, 3, 2)])
    status, out, _ = run(
        capsys, "bench", "--seconds", "1e-9", "--peers", "--modes", "training", "frozen",
        "--plot", str(tmp_path / "b.png"),
    )  # fmt: skip
    assert status == 0
    status, out, _ = run(
        capsys, "bench", "--seconds", "1e-9", "--peers", "--modes", "training", "frozen",
    )  # fmt: skip
    assert status == 0
    assert out.count("4x3x2") == 4
    assert out.count(", frozen") == 2


@pytest.mark.parametrize("dtype", problems.DTYPES)
@pytest.mark.parametrize("layout", problems.LAYOUTS)
def test_the_numpy_peer_computes_the_same(dtype, layout):
    problem = problems.Problem((4, 3, 5, 6), layout, dtype)
    peers.bn_ext_call(problem, 1, "training")()
    diff_src, diff_gamma, diff_beta = peers.numpy_call(problem, 1, "training")()
    rtol = {"float64": 1e-12, "float32": 1e-4}.get(dtype, 2e-2)
    for ours, theirs in zip(problem.out, (diff_src, diff_gamma, diff_beta), strict=True):
        np.testing.assert_allclose(
            ours.astype(float), theirs.reshape(ours.shape).astype(float), rtol=rtol, atol=rtol
        )
    assert peers.numpy_call(problem, 1, "frozen") is None


def test_frozen_src_asks_for_no_parameter_gradients():
    problem = problems.Problem((4, 3), "NXC", "float32")
    assert peers.bn_ext_call(problem, 1, "frozen-src")().diff_gamma is None


def test_a_problem_in_a_layout_it_has_not():
    with pytest.raises(ValueError, match=r"expected \(N, C, X, ...\) for NCX, got \(4, 3\)"):
        problems.Problem((4, 3), "NCX", "float32")
    assert not timing.Case((4, 3), "NCX", "float32", 1).exists()


def test_markdown():
    assert timing.markdown(["a", "b"], [[1, 2]]) == "| a | b |\n|---|---|\n| 1 | 2 |"
