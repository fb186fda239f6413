"""`bn-ext verify`: whether this CPU gives the bits that all others give."""

import argparse
import time

import bn_ext
from bn_ext import _verify

__all__ = ["VERIFY", "verify"]

VERIFY = """At every instruction-set level of this CPU, compare whole calls with digests that are
the same on every machine. The calls cover every way to split a problem and its sums, exact sums
included. Importing bn_ext must not have changed the process's floating-point mode, either."""

REPORT = """This breaks the promise of equal bits: please report it to the project's issue tracker,
with the lines above and the output of `bn-ext info`."""


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
    if fault := wrong():
        print(f"WRONG: {fault}\n{REPORT}")
        return 1
    print(f"every bit as promised, {time.perf_counter() - start:.1f} s")
    return 0
