"""Ends a process with what it has started. Run as a program, it does so when the process that runs
it ends, in whatever way: SIGKILL leaves that process no time to do so, and the one that is to end
may be in C code that holds the GIL. It imports nothing of bn_ext, to start soon.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress


@contextmanager
def watching() -> Iterator[Callable[[int], None]]:
    """Run the watcher. The function tells it the pid of the process that is to end if this one
    does, or 0: none any more.
    """
    watcher = subprocess.Popen(
        [sys.executable, "-I", "-S", __file__],
        bufsize=0,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # a terminal's signals go to the programs that run in it
    )

    def watch(pid: int) -> None:
        with suppress(OSError):  # someone has ended the watcher: go on without
            watcher.stdin.write(b"%d\n" % pid)  # type: ignore[union-attr]

    with watcher:
        yield watch


def end_group(pid: int) -> None:
    """End the processes of the group; on Windows, this process and those that it has started."""
    if sys.platform == "win32":
        command = ["taskkill", "/F", "/T", "/PID", str(pid)]
        subprocess.run(command, capture_output=True, check=False)
        return
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def main() -> None:
    """Read pids until the pipe ends, as it does when the process that writes them has ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a console of Windows sends it to all
    pid = 0
    for line in sys.stdin:
        pid = int(line)
    if pid:
        end_group(pid)
        with suppress(OSError):
            os.kill(pid, signal.SIGTERM)  # it may not have made its group yet


if __name__ == "__main__":
    main()
