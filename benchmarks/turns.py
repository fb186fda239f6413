"""Steps of programs in processes of their own, which take turns; imports nothing of bn_ext."""

import json
import os
import subprocess
import sys
import time
from collections import deque
from contextlib import ExitStack
from pathlib import Path
from statistics import median

#: In seconds. The pause outlasts the spinning of idle threads.
PAUSE, BURST, TURNS = 0.03, 0.05, 3
#: A median of more than this many times the shortest time: other programs are running.
BUSY = 2


def busy(ratios):
    """What to say of rows, each the median as a multiple of the shortest time, that tell of other
    programs; "" if none does.
    """
    above = [ratio for ratio in ratios if ratio > BUSY]
    if not above:
        return ""
    return (
        f"BUSY: in {len(above)} of {len(ratios)} rows a median is over {BUSY} times the shortest "
        f"time, {max(above):.1f} times at most. Other programs are running: measure again without "
        "them.\n"
    )


def serve(step):
    """In a process: for each line that comes, time some steps and answer with their seconds."""
    step()
    print("ready", flush=True)
    for _ in sys.stdin:
        times, end = [], time.perf_counter() + BURST
        while not times or time.perf_counter() < end:
            start = time.perf_counter()
            step()
            times.append(time.perf_counter() - start)
        print(json.dumps(times), flush=True)


def medians(programs, seconds, **environment):
    """{name: the median of its steps' seconds} of {name: Python code that calls `serve`}."""
    root = Path(__file__).resolve().parent.parent
    with ExitStack() as stack:
        running = {}
        for name, code in programs.items():
            running[name] = stack.enter_context(subprocess.Popen(
                [sys.executable, "-c", code], cwd=root, env={**os.environ, **environment},
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1,
            ))  # fmt: skip
            stack.callback(running[name].kill)

        def answer(name):
            line = running[name].stdout.readline()
            if not line:
                raise ChildProcessError(f"{name}: the process ended")
            return line

        seconds_of = {name: [] for name in running if answer(name)}
        order, turns, end = deque(seconds_of), 0, time.perf_counter() + seconds
        while turns < TURNS or time.perf_counter() < end:
            for name in order:
                time.sleep(PAUSE)
                print(file=running[name].stdin)
                seconds_of[name] += json.loads(answer(name))
            order.rotate(1)
            turns += 1
    for name, times in seconds_of.items():
        if median(times) > 2 * min(times):
            print(f"BUSY: {name}: the median is over twice the shortest time", file=sys.stderr)
    return {name: median(times) for name, times in seconds_of.items()}
