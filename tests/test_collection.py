"""The tests are collected where the system offers less than Linux: Windows, above all."""

import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parent

# As on Windows: no global library to look into, none of these modules and functions.
PROGRAM = f"""
import ctypes, os, sys
import numpy, pytest, multiprocessing.context

class CDLL(ctypes.CDLL):
    def __init__(self, name, *args, **kwargs):
        if name is None:
            raise TypeError("argument 1 must be str, not None")
        super().__init__(name, *args, **kwargs)

class Plugin:
    @pytest.hookimpl(wrapper=True)
    def pytest_collection(self):
        import hypothesis
        platform = sys.platform
        ctypes.CDLL = CDLL
        for name in ("fork", "sched_getaffinity", "sched_setaffinity"):
            if hasattr(os, name):
                delattr(os, name)
        for name in ("fcntl", "resource", "termios", "pwd"):
            sys.modules[name] = None
        sys.platform = "win32"
        try:
            return (yield)
        finally:
            sys.platform = platform

options = ["--collect-only", "-qq", "-p", "no:cacheprovider", "-p", "no:randomly", {str(TESTS)!r}]
raise SystemExit(pytest.main(options, [Plugin()]))
"""


def test_collected_as_on_windows():
    done = subprocess.run(
        [sys.executable, "-P", "-c", PROGRAM],
        cwd=TESTS.parent,
        env={**os.environ, "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "test_same_bits.py: " in done.stdout
