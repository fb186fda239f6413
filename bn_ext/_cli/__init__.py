"""The command line: `bn-ext info`, `bn-ext verify`, `bn-ext bench`.

commands.py   what there is to ask, and how each command ends
info.py       what is in use here
bench.py      rows measured, shown and written
table.py      rows as text
usage.py      what a user may write, and messages where it cannot be
"""

import sys

__all__ = ["main"]


def main(arguments: list[str] | None = None) -> int:
    """Run a command; return the exit status."""
    try:
        # Here, so that an interrupt while Python still imports ends as a later one does.
        from bn_ext._cli import commands

        return commands.run(arguments)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
