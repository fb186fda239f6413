"""Cases that call a function in a process of its own, since it may crash."""

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, cast

import numpy as np

from bn_ext._cli.usage import UsageError
from bn_ext.testing._cases import Case
from bn_ext.testing._report import Finding, Report, tried

MOST = 5  # crashes; further cases are left out
CODE = """
import sys, pickle
sys.path[:] = pickle.load(sys.stdin.buffer)
from bn_ext._cli.child import work
work()
"""


def run(load: Callable[[], Any], cases: Callable[[], Iterable[Case]], **how: Any) -> Report:
    """As bn_ext.testing._report.run, with a finding for each case that ends the process. There,
    load() returns the function; it and cases() may raise UsageError.
    """
    report, first = Report(arithmetic=how["arithmetic"]), 0
    for _ in range(MOST):
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        child = subprocess.Popen([sys.executable, "-c", CODE], **pipes)  # type: ignore[call-overload]
        name = ""
        try:
            with child.stdin as file:
                pickle.dump(sys.path, file)
                pickle.dump((load, cases, first, how), file)
            while True:
                what, found = pickle.load(child.stdout)
                if what == "failed":
                    raise UsageError(found)
                if what == "done":
                    return report
                if what == "case":
                    name, first = found, first + 1
                else:
                    report.findings.extend(found[0])
                    report.differing.extend([found[1]] if found[1] else [])
        except (EOFError, BrokenPipeError, pickle.UnpicklingError):
            child.wait(10)
        finally:
            child.kill()
            child.wait()
            child.stdout.close()
        status = child.returncode
        ended = signal.Signals(-status).name if status < 0 else f"exit status {status}"
        reason = f"crashed ({ended})"
        if not name:
            raise UsageError(f"the function's process {reason} before the first call")
        report.findings.append(Finding(name, "function", np.inf, reason=reason, verdict="crashed"))
    reason = f"not called, after {MOST} crashes"
    report.findings.append(
        Finding("further cases", "function", np.nan, reason=reason, verdict="not judged")
    )
    return report


def work() -> None:
    """Write which case comes next, and what was found; what the function prints is an error's."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever started this process ends it
    load, cases, first, how = pickle.load(sys.stdin.buffer)
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)

    def write(what: str, found: Any) -> None:
        pickle.dump((what, found), out)
        out.flush()

    def announced() -> Iterator[Case]:
        for case in islice(cast("Iterable[Case]", cases()), first, None):
            write("case", case.name)
            yield case

    try:
        for found in tried(load(), announced(), **how):
            write("found", found)
        write("done", None)
    except UsageError as error:
        write("failed", str(error))
