"""Cases that call a function in a process of its own, since it may crash."""

import multiprocessing
import os
import pickle
import signal
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from bn_ext._cli.usage import UsageError
from bn_ext.testing._cases import Case
from bn_ext.testing._report import Finding, Report, tried

MOST = 5  # crashes; further cases are left out


def run(load: Callable[[], Any], cases: Callable[[], Iterable[Case]], **how: Any) -> Report:
    """As bn_ext.testing._report.run, with a finding for each case that ends the process. There,
    load() returns the function; it and cases() may raise UsageError.
    """
    report, first = Report(arithmetic=how["arithmetic"]), 0
    processes = multiprocessing.get_context("spawn")
    for _ in range(MOST):
        pipe, end = processes.Pipe(duplex=False)
        child = processes.Process(target=work, args=(end, load, cases, first, how))
        child.start()
        end.close()
        name = ""
        try:
            while True:
                what, found = pipe.recv()
                if what == "failed":
                    raise UsageError(found)
                if what == "done":
                    return report
                if what == "case":
                    name, first = found, first + 1
                else:
                    report.findings.extend(found[0])
                    report.differing.extend([found[1]] if found[1] else [])
        except (EOFError, OSError, pickle.UnpicklingError):
            child.join(10)
        finally:
            child.kill()
            child.join()
            pipe.close()
        status = child.exitcode or 0
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


def work(
    end: Connection, load: Callable[[], Any], cases: Callable[[], Iterable[Case]], first: int,
    how: dict[str, Any],
) -> None:  # fmt: skip
    """Send which case comes next, and what was found; what the function prints is an error's."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever started this process ends it
    os.dup2(2, 1)

    def announced() -> Iterator[Case]:
        for case in islice(cases(), first, None):
            end.send(("case", case.name))
            yield case

    try:
        for found in tried(load(), announced(), **how):
            end.send(("found", found))
        end.send(("done", None))
    except UsageError as error:
        end.send(("failed", str(error)))
