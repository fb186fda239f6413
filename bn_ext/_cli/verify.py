"""`bn-ext verify`: whether this CPU gives the bits that all others give."""

import argparse
import time

from bn_ext._cli import whole_calls
from bn_ext._runtime import available_isas, spelled
from bn_ext._version import __version__

VERIFY = """Check that results have the same bits here as on every other machine. At each
instruction-set level of this CPU, whole calls of every kind are compared with known digests, in a
few seconds. The floating-point mode of the process is checked, too."""

REPORT = "This breaks the promise of equal bits: please report it, and what `bn-ext info` says."


def wrong() -> str:
    """The first thing that is wrong, or nothing."""
    if changed := whole_calls.changed_mode():
        return f"the floating-point mode is not the default: {', '.join(changed)}"
    known = whole_calls.known()
    missing = "" if any("bfloat16" in key for key in known) else " (no bfloat16 without ml_dtypes)"
    for isa in available_isas():
        found = whole_calls.digests(isa)
        if found != known:
            differ, right = dict(found.items() - known.items()), dict(known.items() - found.items())
            return f"{spelled(isa)}: digests of whole calls: {differ}, expected {right}"
        print(f"{spelled(isa):>15}: {len(found)} digests correct{missing}", flush=True)
    return ""


def verify(_: argparse.Namespace) -> int:
    print(f"bn_ext {__version__}", flush=True)
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
