"""Compare the kernels of every formula, at every level, with NumPy doing the same arithmetic.

    python tests/oracle [--seed N]        about half a minute
    python tests/oracle --digests         digests of whole calls, for bn_ext/_cli/verify.py

For many lengths, alignments, numbers of rows and kinds of values. It ends at the first wrong bit.
"""

import argparse
import sys
from itertools import product
from pathlib import Path

import bn_ext
from bn_ext._cli import verify
from bn_ext._runtime import spelled

sys.path.append(str(Path(__file__).parent.parent))
from oracle.dtypes import DTYPES
from oracle.kernels import WrongBitsError, check_kernels


def print_digests() -> None:
    """Print new contents for DIGESTS, from the lowest level, after a change of the arithmetic."""
    digests = verify.digests(bn_ext.available_isas()[0])
    for mode in verify.DIGESTS:
        print(f'    "{mode}": "{" ".join(digests[f"{name} {mode}"] for name in DTYPES)}",')


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="oracle", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=0, help="of random values (default: 0)")
    parser.add_argument("--digests", action="store_true", help="print these, check nothing")
    options = parser.parse_args()
    if options.digests:
        print_digests()
        return 0
    seed = options.seed
    print(f"bn_ext {bn_ext.__version__}", flush=True)
    for isa, name in product(bn_ext.available_isas(), DTYPES):
        try:
            runs = check_kernels(isa, DTYPES[name], seed)
        except WrongBitsError as error:
            print(f"WRONG (seed {seed}): {error}")
            return 1
        print(f"{spelled(isa):>15}: {runs} kernel runs of {name} correct", flush=True)
    print("every bit as promised")
    return 0


if __name__ == "__main__":
    sys.exit(main())
