"""The times of two revisions, row by row, and the instructions of small calls.

`.ci/run compare REV` builds both and runs this.

    python -m benchmarks.compare PYTHON PYTHON [word ...]

Each PYTHON is that of an environment with bn_ext, the first the earlier one. Both have a process
for the whole run, which makes a row's call when its turn comes; never do both run. A row's ratio is
that of the shortest times of many. One that looks slower is measured again, because other programs
can slow down one side alone, and the least ratio counts. Instructions are counted by valgrind's
callgrind, which is exact on a busy machine, too. Words choose rows: those with all of them. This
process imports nothing of bn_ext, and the others only what users have.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from itertools import product
from pathlib import Path
from statistics import geometric_mean, median

from .views import KINDS, LAYOUTS, OPS, SLOW, TRIES, Operands, batch, busy

#: A row that stays above this fails the comparison.
FAILS = 1.10
#: Turns of each side; the longest batch of one, in seconds; the share of the time that is kept for
#: making operands and for measuring again.
ROUNDS, LONGEST, KEPT = 7, 0.02, 0.5
MIDDLE, LARGE = (8, 64, 28, 28), (50, 256, 14, 14)
#: A small call that takes more than so many times the instructions fails the comparison.
FAILS_INSTRUCTIONS = 1.02
#: Of this file, where bn_ext is an environment's: the path's last folder is that of benchmarks.
IMPORT = (
    f"import sys; sys.path.append({str(Path(__file__).resolve().parent.parent)!r}); "
    "from benchmarks.compare"
)
#: Calls that are not counted, and calls that are.
WARM, COUNTED = 200, 500


def rows():
    """{title: what `prepared` takes}; the title's first word is the row's group."""
    small = [((16, 64), "NXC")]
    small += [(shape, layout) for shape in ((4, 6, 300), (2, 64, 14, 14)) for layout in LAYOUTS]
    middle = [(MIDDLE, layout) for layout in LAYOUTS]
    dense = [*middle, *((LARGE, layout) for layout in LAYOUTS)]
    groups = [
        ("small", small, OPS, {}),
        ("dense", dense, OPS, {}),
        ("fresh", middle, OPS, {"with_out": False}),
        *(("views", middle, OPS, {"kind": kind}) for kind in KINDS),
        ("outputs", middle, OPS, {"out": "crop"}),
        *(("places", middle, OPS, {"place": place}) for place in (4, 60)),
        ("exact", middle, ("backward", "training"), {"exact": True}),
    ]
    chosen = {}
    for group, shapes, ops, options in groups:
        for (shape, layout), op, dtype, threads in product(
            shapes, ops, ("float32", "bfloat16"), (1, 2)
        ):
            words = [str(options[name]) for name in ("kind", "place", "out") if name in options]
            words += [op, dtype, layout, "x".join(map(str, shape)), f"{threads}t"]
            row = {"op": op, "shape": shape, "layout": layout, "dtype": dtype, "threads": threads}
            chosen[" ".join([group, *words])] = row | options
    return chosen


def counted_rows():
    """The same for rows whose instructions are counted: small float32 calls on one thread."""
    return {
        f"instructions {op} float32 {'x'.join(map(str, shape))}": {
            "op": op, "shape": shape, "layout": "NXC", "dtype": "float32", "threads": 1,
            "with_out": False,
        }
        for shape, op in product([(1, 8), (32, 128)], ("backward", "training", "inference"))
    }  # fmt: skip


# ---- in the process of a revision --------------------------------------------------------


def prepared(
    op, shape, layout, dtype, threads, kind="", place=16, out="", with_out=True, **options
):
    """The call of a row."""
    operands = Operands(op, shape, layout, dtype, kind, place, out)
    return operands.call(with_out=with_out, num_threads=threads, **options)


def work():
    """For each line that comes, make the row's call, or time some, and answer."""
    call = None
    print("[]", flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        if isinstance(asked, dict):
            call = None  # frees the previous operands
            call = prepared(**asked)
        call()  # what others left in caches is not this call's
        print(json.dumps([] if isinstance(asked, dict) else batch(call, asked)), flush=True)


def count(given):
    """Make the calls of each row. At getppid, which nothing else calls, callgrind counts anew."""
    for row in json.loads(given):
        call = prepared(**row)
        for calls in (WARM, COUNTED):
            for _ in range(calls):
                call()
            os.getppid()


# ---- in the process that compares --------------------------------------------------------


def instructions(python, counted):
    """Of one call of each row, in the environment of `python`."""
    code = f"{IMPORT} import count; count(sys.argv[1])"
    # The places of names in dictionaries depend on their hashes.
    variables = {**os.environ, "PYTHONHASHSEED": "0"}
    with tempfile.TemporaryDirectory() as folder:
        options = [
            "--tool=callgrind",
            "--dump-before=getppid",
            f"--callgrind-out-file={folder}/out",
        ]
        command = ["valgrind", *options, python, "-P", "-c", code, json.dumps([*counted.values()])]
        subprocess.run(command, env=variables, check=True, capture_output=True)
        counts = [
            int(re.search(r"^totals: (\d+)", path.read_text(), re.MULTILINE)[1])
            for path in sorted(Path(folder).glob("out.*"), key=lambda path: int(path.suffix[1:]))
        ]
    # Two for each row: until its first counted call, and of the calls that are counted.
    return dict(zip(counted, (n / COUNTED for n in counts[1::2]), strict=True))


class Side:
    """A revision in a process of its own, which waits between its turns."""

    def __init__(self, python, stack):
        code = f"{IMPORT} import work; work()"
        self.process = stack.enter_context(subprocess.Popen(
            [python, "-P", "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            bufsize=1,
        ))  # fmt: skip
        stack.callback(self.process.kill)
        self.answer()  # it has started

    def ask(self, asked):
        print(json.dumps(asked), file=self.process.stdin)
        return self.answer()

    def answer(self):
        line = self.process.stdout.readline()
        if not line:
            raise ChildProcessError(f"{self.process.args[0]}: the process ended")
        return json.loads(line)


def compared(sides, row, seconds, deadline):
    """The least ratio of the second side's shortest time to the first's, and the median of each
    side's times as a multiple of its shortest.
    """
    for side in sides:
        side.ask(row)
    ratios = []
    for _ in range(TRIES + 1):
        times = [[], []]
        for turn in range(ROUNDS):
            for which in (0, 1) if turn % 2 else (1, 0):
                times[which] += sides[which].ask(seconds)
        before, after = map(min, times)
        ratios.append(after / before)
        if ratios[-1] <= SLOW or time.monotonic() > deadline:
            break
    return min(ratios), max(median(side) / min(side) for side in times)


def table(ratios):
    """Lines: each group of {title: ratio}, the rows that are slower, and what all come to."""
    groups = {}
    for title, ratio in ratios.items():
        groups.setdefault(title.split()[0], []).append(ratio)
    lines = [
        f"{group:8} {len(mine):4} rows, geometric mean {geometric_mean(mine):.3f}, "
        f"from {min(mine):.2f} to {max(mine):.2f}"
        for group, mine in groups.items()
    ]
    slower = sorted((title for title in ratios if ratios[title] > SLOW), key=ratios.get)
    lines += [f"{ratios[title]:.2f} {title}" for title in reversed(slower)]
    every = [*ratios.values()]
    return [
        *lines,
        f"{len(every)} rows, geometric mean {geometric_mean(every):.3f}, worst {max(every):.2f}, "
        f"{len(slower)} beyond {SLOW:.2f}, {sum(r > FAILS for r in every)} beyond {FAILS:.2f}",
    ]


def main(arguments=None):
    """Run the command line. Return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("pythons", nargs=2, metavar="PYTHON")
    parser.add_argument("words", nargs="*", metavar="word")
    parser.add_argument(
        "--seconds", type=float, default=300, help="for all rows (default: %(default)s)"
    )
    options = parser.parse_intermixed_args(arguments)

    def chosen_of(every):
        return {t: row for t, row in every.items() if all(word in t for word in options.words)}

    chosen, counted = chosen_of(rows()), chosen_of(counted_rows())
    if not chosen and not counted:
        parser.error(f"no row has {' '.join(options.words)}, such as: {next(iter(rows()))}")
    seconds = min((1 - KEPT) * options.seconds / (len(chosen) or 1) / ROUNDS / 2, LONGEST)
    deadline = time.monotonic() + options.seconds
    ratios, spread = {}, []
    with ExitStack() as stack:
        sides = [Side(python, stack) for python in options.pythons if chosen]
        for title, row in chosen.items():
            ratios[title], ratio = compared(sides, row, seconds, deadline)
            spread.append(ratio)
    if chosen:
        print(*table(ratios), sep="\n")
        print(end=busy(spread), file=sys.stderr)
    fails = any(ratio > FAILS for ratio in ratios.values())
    if counted:
        before, after = (instructions(python, counted) for python in options.pythons)
        for title in counted:
            ratio = after[title] / before[title]
            fails = fails or ratio > FAILS_INSTRUCTIONS
            print(f"{ratio:.3f} {title}: {after[title]:.0f}, {before[title]:.0f} before")
    return int(fails)


if __name__ == "__main__":
    sys.exit(main())
