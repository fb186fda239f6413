"""How far a long command is, on standard error."""

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

__all__ = ["counted"]

_Item = TypeVar("_Item")


def counted(
    items: Sequence[_Item], said: Callable[[_Item], str] = str, lines: bool = True
) -> Iterator[_Item]:
    """The items, each shown when it begins: on a terminal by a bar, if rich is installed; else in a
    line of its own, unless the caller writes lines.
    """
    if sys.stderr.isatty():
        try:
            from rich.console import Console
            from rich.progress import Progress
        except ImportError:
            pass
        else:
            # Redrawn seldom, so that it does not disturb what is measured.
            console = Console(stderr=True)
            with Progress(console=console, transient=True, refresh_per_second=1) as bar:
                task = bar.add_task("", total=len(items))
                for item in items:
                    bar.update(task, description=said(item), refresh=True)
                    yield item
                    bar.advance(task)
            return
    for number, item in enumerate(items, 1):
        if lines:
            print(f"{number} of {len(items)}: {said(item)}", file=sys.stderr)
        yield item
