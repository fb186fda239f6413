"""`python -m bn_ext verify`: check the promise of equal bits on this CPU.

First, every kernel of every instruction-set level is compared, bit for bit,
with NumPy doing the same arithmetic: all numbers of rows, all lengths up to
four times the widest unit, all alignments, values of every kind. Then exact
sums are compared with those of Python's integers, and whole calls, in every
form and with every way of splitting their sums, with digests that are the same
on every machine.
"""

import time
from collections.abc import Callable

import bn_ext
from bn_ext._verify import digests, exact, kernels
from bn_ext._verify.kernels import WrongBitsError

__all__ = ["print_digests", "verify"]

REPORT = (
    "This breaks the promise of equal bits: please report it to the project's issue tracker,\n"
    "with the lines above and the output of `python -c 'import bn_ext; bn_ext.show_config()'`."
)


def verify(seed: int = 0, say: Callable[[str], object] = print) -> int:
    """Check every level this CPU has; return the exit status.

    Prints a line for each level; for the first wrong bit, what was expected and what came.
    """
    say(f"bn_ext {bn_ext.__version__}, levels: {', '.join(bn_ext.available_isas())}")
    start = time.perf_counter()
    try:
        for isa in bn_ext.available_isas():
            runs = kernels.check_level(isa, seed)
            sums = exact.check_level(isa, seed)
            found = digests.digests(isa)
            known = digests.DIGESTS
            wrong = {k: v for k, v in found.items() if known.get(k) != v}
            if wrong:
                raise WrongBitsError(f"{isa}: digests of whole calls: {wrong}, expected {known}")
            missing = "" if len(found) == len(known) else " (no bfloat16 without ml_dtypes)"
            checked = f"{runs} kernel runs, {sums} exact sums and {len(found)} digests"
            say(f"{isa:>8}: {checked} correct{missing}")
    except WrongBitsError as error:
        say(f"WRONG (seed {seed}): {error}\n{REPORT}")
        return 1
    say(f"every bit as promised, {time.perf_counter() - start:.1f} s")
    return 0


def print_digests() -> None:
    """Print what DIGESTS should hold, from the lowest level, after the arithmetic has changed."""
    for name, digest in digests.digests(bn_ext.available_isas()[0]).items():
        print(f'    "{name}": "{digest}",')
