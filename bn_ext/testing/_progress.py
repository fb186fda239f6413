"""What is being done, on a terminal, of what takes longer than two seconds."""

import sys
import threading
from types import TracebackType

#: Before the first line, and between lines.
SECONDS, EVERY = 2.0, 0.2


class Progress:
    """A line on a terminal, which a thread of its own writes: a call may take long, too.

    with Progress() as progress:
        progress.text = "..."
    """

    def __init__(self) -> None:
        self.text = ""
        self.ended = threading.Event()
        self.thread: threading.Thread | None = None

    def __enter__(self) -> "Progress":
        if is_terminal():
            self.thread = threading.Thread(target=self._show, daemon=True)
            self.thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        self.ended.set()
        if self.thread:
            self.thread.join()

    def _show(self) -> None:
        shown, wait = "", SECONDS
        while not self.ended.wait(wait):
            if self.text != shown:
                write(self.text)
            shown, wait = self.text, EVERY
        if shown:
            write("")


def is_terminal() -> bool:
    return bool(sys.stderr and sys.stderr.isatty())


def write(text: str) -> None:
    """In place of the line that is there."""
    if is_terminal():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
