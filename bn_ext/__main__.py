"""The command line: `python -m bn_ext verify`."""

import argparse
import sys

from bn_ext import _verify

__all__ = ["main"]


def main(arguments: list[str] | None = None) -> int:
    """Run a command; returns the exit status: 0 if all is well, 1 if not, 2 on wrong usage."""
    parser = argparse.ArgumentParser(
        prog="python -m bn_ext", description="Batch-normalization gradients for NumPy arrays."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    verify = commands.add_parser(
        "verify",
        help="prove on this CPU that every bit is as promised",
        description=_verify.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verify.add_argument(
        "--seed", type=int, default=0, help="of the random values (default: %(default)s)"
    )
    verify.add_argument(
        "--bench", action="store_true", help="also print each kernel's speed at each level"
    )
    verify.add_argument("--digests", action="store_true", help="print digests and check nothing")
    options = parser.parse_args(arguments)
    if options.digests:
        _verify.print_digests()
        return 0
    status = _verify.verify(options.seed)
    if options.bench and status == 0:
        _verify.print_speeds()
    return status


if __name__ == "__main__":
    sys.exit(main())
