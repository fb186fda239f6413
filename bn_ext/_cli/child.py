"""Cases that call a function in a process of its own, since it may crash."""

import math
import multiprocessing
import os
import pickle
import signal
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from itertools import islice
from multiprocessing.connection import Connection, wait
from typing import Any

import numpy as np

from bn_ext._cli.usage import UsageError
from bn_ext._cli.watcher import end_group, watching
from bn_ext.testing._case import Case
from bn_ext.testing._progress import Progress, write
from bn_ext.testing._report import Finding, Report, Trial

MOST = 5  # crashes; further cases are left out


def run(
    load: Callable[[], Any], cases: Callable[[], Iterable[Case]], *, timeout: float = 60,
    script: str = "", **options: Any,
) -> Report:  # fmt: skip
    """As bn_ext.testing._report.run, with a finding for each case that ends the process, or takes
    more than `timeout` seconds. There, load() returns the function; it and cases() may raise
    UsageError. `script`: lines that load the function in Report.script(), which is made there. That
    process ends with this one, however this one ends.
    """
    report, first, finished = Report(), 0, False
    processes = multiprocessing.get_context("spawn")
    with watching() as watch:
        for _ in range(MOST):
            pipe, end = processes.Pipe(duplex=False)
            arguments = end, load, cases, first, script, options
            child: Any = processes.Process(target=work, args=arguments)
            child.start()
            watch(child.pid)
            end.close()
            name, reason, limit = "", "", math.inf
            try:
                while True:
                    # A process that the child has forked may hold the pipe and the sentinel open:
                    # then no EOF comes.
                    while not wait([pipe], 0.1) and child.is_alive() and time.monotonic() < limit:
                        pass
                    if not pipe.poll():
                        reason = f"did not return within {timeout:g} s" * child.is_alive()
                        break
                    kind, value = pipe.recv()
                    if kind == "failed":
                        raise UsageError(value)
                    if kind == "program":
                        report = replace(report, maker=partial(str, value))
                        break
                    if kind == "report":
                        report.add(value)
                    else:
                        finished, limit = kind == "finished", time.monotonic() + timeout
                        name, first = value, first + 1
            except (EOFError, OSError, pickle.UnpicklingError):
                child.join(10)
            finally:
                end_group(child.pid)
                child.kill()
                watch(0)  # before join, after which another process may get the pid
                child.join()
                pipe.close()
            if finished:  # whether it has made the program or not
                break
            write("")
            reason = reason or f"crashed ({ended(child.exitcode or 0)})"
            if not name:
                raise UsageError(f"the function's process {reason} before the first call")
            report.findings.append(
                Finding(name, "function", np.inf, reason=reason, verdict="crashed")
            )
        else:
            reason = f"not called, after {MOST} crashes"
            report.findings.append(
                Finding("further cases", "function", np.nan, reason=reason, verdict="not judged")
            )
    report.settle()
    return report


def ended(status: int) -> str:
    """How a process has ended; real-time signals have no name, and faults of Windows a number."""
    if status >= 0:
        return f"exit status {status:#x}" if status >= 0xC0000000 else f"exit status {status}"
    names = {number.value: number.name for number in signal.Signals}
    return names.get(-status, f"signal {-status}")


def work(end: Connection, load: Any, cases: Any, first: int, script: str, options: Any) -> None:
    """Send which case comes next, and its report; what the function prints is an error's."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever started this process ends it
    os.dup2(2, 1)
    if sys.platform != "win32":
        os.setpgrp()  # with what the function starts
    try:
        trial = Trial(load(), **options)
        with Progress() as progress:
            for count, case in enumerate(islice(cases(), first, None), first):
                progress.text = f"{count} cases, {case.name}"
                end.send(("case", case.name))
                end.send(("report", trial.try_case(case)))
            end.send(("finished", ""))
            progress.text = "which formula it computes"
            end.send(("report", Report(formulas=trial.formulas())))
            progress.text = "the smallest program that shows it"
            end.send(("program", trial.program(script) if script else ""))
    except UsageError as error:
        end.send(("failed", str(error)))
