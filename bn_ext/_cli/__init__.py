"""The command line: `bn-ext info`, `bn-ext verify`, `bn-ext bench`, `bn-ext cases`, `bn-ext check`.

commands.py   the commands, their options, and their exit status
info.py       what is in use here
verify.py     are the bits what they must be?
bench.py      rows: measured, shown and written
reference.py  cases for other implementations, and their check
progress.py   how far that is
usage.py      conversion of arguments, and error messages
"""

import sys

__all__ = ["main"]


def main(arguments: list[str] | None = None) -> int:
    """Run a command; return the exit status."""
    try:
        # Imported here, so that an interrupt during the import is handled like a later one.
        from bn_ext._cli import commands

        return commands.run(arguments)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
