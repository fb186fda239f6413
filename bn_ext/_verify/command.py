"""`bn-ext verify`: check the promise of equal bits on this CPU.

At every instruction-set level, whole calls are compared with digests that are the
same on every machine. The calls cover every way to split a problem and its sums,
exact sums included. That takes seconds. The import must not have changed the
process's floating-point mode.

With --all, the kernels of every formula are also compared, bit for bit, with NumPy doing the same
arithmetic: for many lengths, alignments, numbers of rows and kinds of values. That takes about a
minute.
"""

import time
from collections.abc import Callable

import bn_ext
from bn_ext._verify import digests, kernels
from bn_ext._verify.dtypes import DTYPES
from bn_ext._verify.kernels import WrongBitsError

__all__ = ["print_digests", "verify"]

REPORT = (
    "This breaks the promise of equal bits: please report it to the project's issue tracker,\n"
    "with the lines above and the output of `python -c 'import bn_ext; bn_ext.show_config()'`."
)


def _say(line: str) -> None:
    print(line, flush=True)  # a log shows it at once, too


def verify(seed: int = 0, every_kernel: bool = False, say: Callable[[str], object] = _say) -> int:
    """Check every level that this CPU has; return the exit status.

    Prints a line for each level and for each dtype's kernels; at the first wrong bit, the expected
    and the actual result.
    """
    say(f"bn_ext {bn_ext.__version__}, levels: {', '.join(bn_ext.available_isas())}")
    start = time.perf_counter()
    try:
        if changed := digests.changed_mode():
            raise WrongBitsError(
                f"after the import, the floating-point mode of this process is not the default: "
                f"{', '.join(changed)}"
            )
        for isa in bn_ext.available_isas():
            for dtype in DTYPES.values() if every_kernel else ():
                runs = kernels.check_kernels(isa, dtype, seed)
                say(f"{isa:>8}: {runs} kernel runs of {dtype.name} correct")
            found, known = digests.digests(isa), digests.known()
            if found != known:
                wrong, right = (
                    dict(a.items() - b.items()) for a, b in ((found, known), (known, found))
                )
                raise WrongBitsError(f"{isa}: digests of whole calls: {wrong}, expected {right}")
            missing = "" if known is digests.DIGESTS else " (no bfloat16 without ml_dtypes)"
            say(f"{isa:>8}: {len(found)} digests correct{missing}")
    except (MemoryError, OSError):  # no memory, or the output is closed
        raise
    except Exception as error:
        say(f"WRONG (seed {seed}): {type(error).__name__}: {error}\n{REPORT}")
        return 1
    more = "" if every_kernel else "; --all checks the kernels too"
    say(f"every bit as promised, {time.perf_counter() - start:.1f} s{more}")
    return 0


def print_digests() -> None:
    """Print new contents for DIGESTS, from the lowest level, after a change of the arithmetic."""
    for name, digest in digests.digests(bn_ext.available_isas()[0]).items():
        print(f'    "{name}": "{digest}",')
