"""Run Python code in other processes, with other environment variables."""

import json
import os
import subprocess
import sys

import pytest
from tree import PROGRAMS


def python(*arguments, cwd=None, timeout=120, **environment):
    """Run Python with these arguments; an environment variable that is None is unset."""
    variables = {**os.environ, **environment}
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=cwd,
        env={name: value for name, value in variables.items() if value is not None},
        capture_output=True,
        text=True,
        timeout=timeout,
    )


def python_code(code, *options, **environment):
    """Run code that imports the installed package, not files of the current folder."""
    return python("-P", *options, "-c", code, **environment)


def strict(code, **environment):
    """python_code with warnings as errors, and without a forced level."""
    return python_code(code, "-W", "error", **{"BN_EXT_ISA": None, **environment})


def printed_by(code, *options, **environment):
    """Run code, which must succeed; return what it prints."""
    return printed(python_code(code, *options, **environment))


def printed(done):
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    return done.stdout


def run(program, function, *arguments, **environment):
    """What a function of tests/programs/PROGRAM.py returns in a process of its own.

    The test is skipped if the function needs libgomp, and bn_ext has another runtime.
    """
    path, text = PROGRAMS / f"{program}.py", json.dumps(arguments)
    answer = json.loads(printed(python(path, function, text, **environment)).splitlines()[-1])
    if answer == "no libgomp":
        pytest.skip("not linked against libgomp")
    return answer
