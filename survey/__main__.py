"""Other packages and ways to test, judged; survey/README.md says what to install for it.

    python -m survey packages paddle torch    calls these, and runs their programs of findings/
    python -m survey packages                 calls all that are installed here
    python -m survey page                     from their results: docs/who_passes.md, its picture
    python -m survey practices                who finds how many mistakes: docs/howto
    python -m survey accuracy                 errors next to NumPy's and torch's: docs/numerics.md

Results are written to survey/results.
"""

import argparse
import importlib

from . import conformance


def main(arguments=None):
    """Run the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m survey",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    packages = commands.add_parser("packages", help="call packages that are installed here")
    known = conformance.modules()
    text = f"any of {', '.join(known)}"
    packages.add_argument("modules", nargs="*", metavar="MODULE", help=f"{text} (default: all)")
    commands.add_parser("page", help="make page and picture of the results")
    for name in ("practices", "accuracy"):
        commands.add_parser(name, help="measure; write table and picture")
    options = parser.parse_args(arguments)
    if options.command == "packages":
        for name in options.modules:
            if name not in known:
                packages.error(f"MODULE: expected {text}, got {name!r}")
        conformance.measure(options.modules or known)
    elif options.command == "page":
        conformance.write()
    else:
        importlib.import_module(f".{options.command}", __package__).report()


if __name__ == "__main__":
    main()
