"""The command line: what it prints, what it writes, how it ends."""

import importlib.metadata
import os
import re
import signal
import subprocess
import sys
from contextlib import suppress

import numpy as np
import pytest
from command_line import run
from processes import python

import bn_ext
from bn_ext import _cli
from bn_ext._cli import bench, verify
from bn_ext.testing import check_backward


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
        word in out for word in ("info", "verify", "bench", "check", "Exit status: 0", "130")
    )
    for name in ("info", "verify", "bench", "check"):
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
        (["bench", "--seconds", "0"], "expected a number of seconds, more than 0, got '0'"),
        (["bench", "--seconds", "soon"], "expected a number of seconds, more than 0, got 'soon'"),
        (["bench", "--threads", "two"], "expected a whole number, 1 or more, got 'two'"),
        (["bench", "--threads", "0"], "expected a whole number, 1 or more, got '0'"),
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


def test_a_missing_package_is_named(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    status, _, err = run(capsys, "bench", "--dtypes", "bfloat16")
    assert status == 2
    assert "--dtypes: bfloat16 needs ml_dtypes: python -m pip install ml_dtypes" in err


def test_interrupted(capsys, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(verify, "changed_mode", interrupt)
    status, _, err = run(capsys, "verify")
    assert (status, err) == (130, "interrupted\n")


def test_the_reader_closes_the_pipe():
    code = "import sys; from bn_ext._cli import main; sys.exit(main(['info']))"
    read, write = os.pipe()
    os.close(read)
    for arguments in (["-u", "-c", code], ["-c", code]):
        done = subprocess.run(
            [sys.executable, "-P", *arguments], stdout=write, stderr=subprocess.PIPE, text=True
        )
        assert (done.returncode, done.stderr) == (130, "")
    os.close(write)


#: Every command, with words with which it takes a moment: most cases have an "a" in their names.
COMMANDS = {
    "info": [],
    "verify": [],
    "bench": ["--shapes", "4x4", "--seconds", "1e-9"],
    "check": ["mine:wrong", "--quick", "--skip", "a"],
}


def ended(folder, line, command, **environment):
    text = "def wrong(*_, **__):\n    raise RuntimeError('gr\xf6\xdfer als 0 \u2260 1')\n"
    (folder / "mine.py").write_text(text, encoding="utf-8")
    done = subprocess.run(
        ["sh", "-c", line, sys.executable, "-P", "-m", "bn_ext", command, *COMMANDS[command]],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
    )
    return done.returncode, *(text.decode(errors="replace") for text in (done.stdout, done.stderr))


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
@pytest.mark.parametrize(
    ("to", "message"),
    [
        (">&-", "standard output is closed"),
        (">/dev/full", "[Errno 28] No space left on device"),
        ("1</dev/null", "[Errno 9] Bad file descriptor"),
    ],
)
@pytest.mark.parametrize("command", COMMANDS)
def test_an_output_that_cannot_be_written(tmp_path, command, to, message):
    """One line, whether Python notices at once or when the buffer is written."""
    unbuffered = "1" * ((len(to) + [*COMMANDS].index(command)) % 2)
    line, environment = f'"$0" "$@" {to}', {"PYTHONUNBUFFERED": unbuffered}
    status, _, err = ended(tmp_path, line, command, **environment)
    assert status == 2
    assert re.fullmatch(rf"bn-ext( {command})?: {re.escape(message)}\n", err)


@pytest.mark.parametrize(("encoding", "shown"), [("ascii", "\\u2260"), ("utf-8", "\u2260")])
def test_an_output_that_cannot_encode(tmp_path, encoding, shown):
    """It gets escapes, as standard error does, and the status tells of results alone."""
    status, out, err = ended(tmp_path, 'exec "$0" "$@"', "check", PYTHONIOENCODING=encoding)
    assert (status, "Error" in err) == (1, False)
    assert shown in out


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
    assert err == f"bn-ext bench: {message}\n"


def test_info(capsys):
    status, out, _ = run(capsys, "info")
    assert status == 0
    for value in (bn_ext.__version__, bn_ext.get_isa(), np.__version__, "threads"):
        assert value in out


SPINS = """
import itertools, os, subprocess, sys
def spins(*_, **__):
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    print("called in", os.getpid(), flush=True)
    sum(itertools.repeat(0))  # in C, with the GIL
"""


#: What a shell tells the programs in its background to ignore, and these tests, if they are there.
IGNORED = [signal.SIGINT, *([signal.SIGQUIT] if hasattr(signal, "SIGQUIT") else [])]


@pytest.mark.parametrize("name", ["SIGHUP", "SIGINT", "SIGQUIT", "SIGKILL", "SIGTERM"])
def test_a_function_ends_with_its_check(tmp_path, name):
    """So does what it has started. They share a pipe, which ends with the last of them. A terminal
    sends its signals to all processes that it has started.
    """
    (tmp_path / "mine.py").write_text(SPINS)
    line = [sys.executable, "-P", "-m", "bn_ext", "check", "mine.py:spins", "--quick"]
    options = {"cwd": tmp_path, "stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    options["preexec_fn"] = lambda: [signal.signal(n, signal.SIG_DFL) for n in IGNORED]
    with subprocess.Popen(line, start_new_session=True, text=True, **options) as command:
        pid = int(next(text for text in command.stderr if "called in" in text).split()[-1])
        try:
            os.killpg(command.pid, getattr(signal, name))
            command.communicate(timeout=60)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
    assert command.returncode == (130 if name == "SIGINT" else -getattr(signal, name))


def test_a_program_replaces_nothing_but_such_a_program(tmp_path, capsys, monkeypatch):
    """Not the function's file, by whatever name or module; not even an empty file."""
    monkeypatch.chdir(tmp_path)
    kernel = tmp_path / "mine.py"
    kernel.write_text("def wrong(src, diff_dst, *_, **__):\n    return 2 * diff_dst\n")
    (tmp_path / "linked.py").symlink_to("mine.py")
    (tmp_path / "again.py").hardlink_to(kernel)
    (tmp_path / "__init__.py").touch()
    (tmp_path / "folder").mkdir()
    before = {path: path.read_bytes() for path in tmp_path.glob("*.py")}
    check = ["check", "mine.py:wrong", "--quick", "--script"]
    refused = {
        **dict.fromkeys(["mine.py", "./linked.py", "again.py"], "the function's own file"),
        "__init__.py": "another file",
        "folder": "a folder",
    }
    for name, got in refused.items():
        status, out, err = run(capsys, *check, name)
        expected = "expected a new file, or a program of an earlier check"
        message = f"bn-ext check: --script {name.removeprefix('./')}: {expected}, got {got}\n"
        assert (status, out, err) == (2, "", message)
    status, _, err = run(capsys, "check", "mine:wrong", "--script", "mine.py")
    assert (status, "got another file" in err) == (2, True)
    assert {path: path.read_bytes() for path in tmp_path.glob("*.py")} == before
    for _ in range(2):
        assert run(capsys, *check, "new.py")[::2] == (1, "")
    kernel.write_bytes((tmp_path / "new.py").read_bytes())
    assert run(capsys, *check, "mine.py")[0] == 2


HOSTILE = "\x1b[31m\x00\x07\x9b\u202e"
ESCAPED = r"\x1b[31m\x00\x07\x9b\u202e"


def test_control_characters_are_escaped(capsys):
    """In reports, and in errors of the command line."""

    def fails(*_, **__):
        raise ValueError(HOSTILE)

    with pytest.raises(AssertionError) as raised:
        check_backward(fails, quick=True)
    report = raised.value.report
    for text in (str(raised.value), str(report), *report.lines(verbose=True)):
        assert text.replace("\n", "").isprintable()
    assert f"raised ValueError: {ESCAPED}" in str(report)
    for arguments in (
        ["check", f"{HOSTILE}:f"], ["check", "math:sqrt", "--script", f"{HOSTILE}/x.py"],
        ["check", "math:sqrt", f"--{HOSTILE}"], [HOSTILE],
    ):  # fmt: skip
        status, _, err = run(capsys, *arguments)
        assert status == 2
        assert ESCAPED in err
        assert err.replace("\n", "").isprintable()
