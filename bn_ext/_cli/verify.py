"""`bn-ext verify`: whether this CPU gives the bits that all others give."""

import argparse
import time

import bn_ext
from bn_ext import _verify

__all__ = ["VERIFY", "verify"]

VERIFY = """At every level of this CPU, compare whole calls, of every way to split a problem, with
digests that are the same on every machine; then the process's floating-point mode."""

REPORT = "This breaks the promise of equal bits: please report it, and what `bn-ext info` says."


def wrong() -> str:
    """The first thing that is wrong, or nothing."""
    if changed := _verify.changed_mode():
        return f"the floating-point mode is not the default: {', '.join(changed)}"
    known = _verify.known()
    missing = "" if any("bfloat16" in key for key in known) else " (no bfloat16 without ml_dtypes)"
    for isa in bn_ext.available_isas():
        found = _verify.digests(isa)
        if found != known:
            differ, right = dict(found.items() - known.items()), dict(known.items() - found.items())
            return f"{isa}: digests of whole calls: {differ}, expected {right}"
        print(f"{isa:>8}: {len(found)} digests correct{missing}", flush=True)
    return ""


def verify(_: argparse.Namespace) -> int:
    print(f"bn_ext {bn_ext.__version__}, levels: {', '.join(bn_ext.available_isas())}", flush=True)
    start = time.perf_counter()
    try:
        fault = wrong()
    except (MemoryError, OSError):  # no memory, or the output is closed
        raise
    except Exception as error:
        fault = f"{type(error).__name__}: {error}"
    if fault:
        print(f"WRONG: {fault}\n{REPORT}")
        return 1
    print(f"every bit as promised, {time.perf_counter() - start:.1f} s")
    return 0
