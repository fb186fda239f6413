"""The command line: what it prints, what it writes, how it ends."""

import importlib.metadata
import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest
from command_line import run
from processes import python

import bn_ext
from bn_ext import _cli, _runtime, _verify
from bn_ext._cli import bench


def test_as_a_module_and_as_a_script():
    done = python("-P", "-m", "bn_ext", "--version")
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
    assert all(
        word in out
        for word in ("info", "verify", "bench", "cases", "check", "Exit status: 0", "130")
    )
    for name in ("info", "verify", "bench", "cases", "check"):
        status, out, _ = run(capsys, name, "--help")
        assert status == 0
        assert out.startswith(f"usage: bn-ext {name}")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "usage: bn-ext"),
        ([], "with no command, this help is printed"),
        (["prove"], "verify"),
        (["bench", "--shapes", "4"], "each at least 1, like 8x64x28x28, got '4'"),
        (["bench", "--shapes", "4x0"], "each at least 1, like 8x64x28x28, got '4x0'"),
        (["bench", "--shapes", "ax3"], "each at least 1, like 8x64x28x28, got 'ax3'"),
        (["bench", "--shapes", "x".join(["9" * 10] * 2)], "fewer than 2**60 elements, got '999"),
        (["bench", "--shapes", "x".join("1" * 71)], "expected at most 32 sizes"),
        (["bench", "--threads", "z" * 99], f"got '{'z' * 57}...'"),
        (["bench", "--seconds", "0"], "expected a number of seconds, more than 0, got '0'"),
        (["bench", "--seconds", "soon"], "expected a number of seconds, more than 0, got 'soon'"),
        (["bench", "--threads", "two"], "expected a whole number, 1 or more, got 'two'"),
        (["bench", "--threads", "0"], "expected a whole number, 1 or more, got '0'"),
        (["bench", "--json", "no/such/folder/x.json"], "No such file or directory"),
        (["bench", "--json", "."], "--json .: cannot be written (Is a directory)"),
        (["bench", "--json", "x" * 300], "File name too long"),
        (["bench", "--plot", "no/such/folder/x.png"], "No such file or directory"),
        (["bench", "--plot", "x.foo"], "--plot: expected a file name that ends in "),
        (["info", "--with", "no_such_module"], "--with no_such_module: cannot be imported"),
        (["info", "--with", ""], "--with '': cannot be imported (Empty module name)"),
        (["info", "--with", ".."], "--with ..: cannot be imported"),
    ],
)
def test_wrong_usage_ends_with_2(capsys, monkeypatch, tmp_path, arguments, message):
    def measured_in_vain(*_):
        raise AssertionError

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(bench, "row", measured_in_vain)
    status, out, err = run(capsys, *arguments)
    assert status == 2
    assert message in err
    assert "Traceback" not in out + err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("by", ["script", "module"])
def test_an_unknown_isa_is_a_sentence(tmp_path, by):
    # The script as pip writes it.
    script = tmp_path / "bn-ext"
    script.write_text("import sys\nfrom bn_ext._cli import main\nsys.exit(main())\n")
    what = [script] if by == "script" else ["-P", "-m", "bn_ext"]
    done = python(*what, "info", BN_EXT_ISA="foo")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("bn-ext: BN_EXT_ISA: expected one of baseline")
    assert done.stderr.endswith("got 'foo'\n")


@pytest.mark.parametrize(
    ("argv", "original", "command"),
    [
        (["-m", "info"], ["python", "-P", "-m", "bn_ext", "info"], True),
        (["-m"], ["python", "-mbn_ext"], True),
        (["/usr/bin/bn-ext", "info"], ["python", "/usr/bin/bn-ext", "info"], True),
        (["-m", "bn_ext"], ["python", "-m", "pytest", "bn_ext"], False),
        (["-c", "-m", "bn_ext"], ["python", "-c", "import bn_ext", "-m", "bn_ext"], False),
        (["bn_ext.py"], ["python", "bn_ext.py"], False),
        ([""], ["python"], False),
        ([], [], False),
    ],
)
def test_which_process_is_the_command_line(monkeypatch, argv, original, command):
    monkeypatch.setattr(sys, "argv", argv)
    monkeypatch.setattr(sys, "orig_argv", original)
    assert _runtime._is_command() == command


def test_no_other_program_is_ended_by_an_unknown_isa(tmp_path):
    program = tmp_path / "program.py"
    program.write_text("try: import bn_ext\nexcept ImportError: print('goes on')\n")
    for what in ([program], ["-c", program.read_text(), "-m", "bn_ext"]):
        done = python(*what, BN_EXT_ISA="foo")
        assert (done.returncode, done.stdout) == (0, "goes on\n")


def test_a_missing_package_is_named(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    status, _, err = run(capsys, "bench", "--dtypes", "bfloat16")
    assert status == 2
    assert "--dtypes: bfloat16 needs ml_dtypes: python -m pip install ml_dtypes" in err


def test_interrupted(capsys, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(_verify, "changed_mode", interrupt)
    status, _, err = run(capsys, "verify")
    assert (status, err) == (130, "interrupted\n")


def test_the_reader_closes_the_pipe():
    code = "import sys; from bn_ext._cli import main; sys.exit(main(['info']))"
    read, write = os.pipe()
    os.close(read)
    for arguments in (["-u", "-c", code], ["-c", code], ["-c", code.replace("info", "--help")]):
        done = subprocess.run(
            [sys.executable, "-P", *arguments], stdout=write, stderr=subprocess.PIPE, text=True
        )
        assert (done.returncode, done.stderr) == (130, "")
    os.close(write)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize(
    "arguments", ["--help", "--version", "info", "info --json", "bench --help", "verify"]
)
def test_standard_output_that_is_full(arguments, unbuffered):
    """Whether Python notices at once or when the buffer is written."""
    code = "import sys; from bn_ext._cli import main; sys.exit(main(sys.argv[1:]))"
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-P", "-c", code, *arguments.split()],
            stdout=full, stderr=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
        )  # fmt: skip
    assert done.returncode == 2
    assert re.fullmatch(r"bn-ext( \w+)?: .*No space left on device\n", done.stderr)


def test_standard_output_that_is_closed():
    code = "import sys; from bn_ext._cli import main; sys.exit(main(['info']))"
    done = subprocess.run(
        ["sh", "-c", 'exec "$0" -P -c "$1" >&-', sys.executable, code], stderr=subprocess.PIPE
    )
    assert (done.returncode, done.stderr) == (2, b"bn-ext: standard output is closed\n")


@pytest.mark.parametrize(
    ("error", "message"),
    [(MemoryError(), "not enough memory"), (OSError("the disk is full"), "the disk is full")],
)
def test_no_memory_and_no_disk_are_sentences(capsys, monkeypatch, error, message):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr(bench, "row", fail)
    status, _, err = run(capsys, "bench", "--shapes", "4x4")
    assert status == 2
    assert err.endswith(f"\n0 of 1 rows were measured\nbn-ext bench: {message}\n")


# ---- info -------------------------------------------------------------------


def test_info(capsys, monkeypatch):
    monkeypatch.delitem(sys.modules, "this", raising=False)
    status, out, _ = run(capsys, "info", "--with", "json")
    assert status == 0
    for value in (bn_ext.__version__, bn_ext.get_isa(), np.__version__, "threads"):
        assert value in out
    status, out, err = run(capsys, "info", "--json", "--with", "this")
    assert status == 0
    assert json.loads(out)["isa"] == bn_ext.get_isa()
    assert err.startswith("The Zen of Python")  # what the module prints


def test_info_warns_of_two_pools(capsys, monkeypatch):
    monkeypatch.setattr(_runtime, "_openmp_libraries", lambda: ["/a/libgomp.so", "/b/libiomp5.so"])
    _, out, _ = run(capsys, "info")
    assert "warning: 2 OpenMP runtimes" in out
    monkeypatch.setattr(_runtime, "_openmp_libraries", lambda: ["/a/libgomp.so"])
    _, out, _ = run(capsys, "info")
    assert "warning" not in out
