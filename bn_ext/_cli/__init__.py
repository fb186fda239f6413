"""The command line: `bn-ext info`, `verify`, `bench` and `check`."""

from bn_ext._cli.commands import main

__all__ = ["main"]
