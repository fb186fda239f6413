"""The tests are collected where the system offers less than Linux: Windows, above all."""

from pathlib import Path

from processes import printed_by
from tree import ROOT

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
    printed = printed_by(PROGRAM, cwd=ROOT, PYTEST_ADDOPTS="", timeout=300)
    assert "test_same_bits.py: " in printed
