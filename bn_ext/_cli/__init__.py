"""The command line: `bn-ext info`, `bn-ext verify`, `bn-ext bench`, `bn-ext check`.

commands.py   the commands, their options, and their exit status
info.py       what is in use here
verify.py     are the bits what they must be? Whole calls with known digests
bench.py      rows: measured, shown and written
reference.py  other implementations are checked
child.py      a function's cases in a process that it may crash
usage.py      conversion of arguments
"""

from bn_ext._cli.commands import main

__all__ = ["main"]
