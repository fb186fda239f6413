"""What ranks gave, as a page: python tests/ranks_page.py FILE ..., one for each MPI, by dealt.py.

The exit status is 1 if exact sums had more than one digest of a dtype, or if engines had other
words for a fault.
"""

import json
import sys
from datetime import date
from pathlib import Path

from dealt import DEALS, SAMPLES

from bn_ext._bench.timing import markdown

HEAD = """# What ranks gave

Written by `.ci/mpi` on {date}: {engines}, on one machine. How to use it stands in
[On several machines](howto/several_machines.md).

## Digests

Of the results of several steps, forward and backward, plain, fused and frozen: {deals} ways of
dealing {samples} samples to so many ranks, in several layouts, by a call or by start and wait. For
each dtype, the digest with `exact=True`, which is also that of one call of the general functions
over all samples; in brackets, how many digests there are with `exact=False`.

{digests}

## Faults

What ranks are told if the last one of three does something else: on a first call, on a later one,
or with `check=True`. Rank 1 is told what rank 0 is, with its own number. Afterwards a good call
succeeds on the same communicator. The words are the same with every engine.

{faults}
"""


def digests(found):
    dtypes = sorted({data for each in found for _, data, *_ in each["digests"]})
    lines = {}
    for each in found:
        for ranks, data, plain, exact in each["digests"]:
            line = lines.setdefault((each["engine"], ranks), {})
            line[data] = f"`{', '.join(exact)}` ({plain})"
    cells = [[*key, *(line[data] for data in dtypes)] for key, line in lines.items()]
    return markdown(["MPI", "ranks", *dtypes], cells)


def faults(found):
    lines = []
    for case, errors in found[0]["faults"].items():
        function, kind, when = case.split(", ")
        first, *_, odd = (error.replace("|", r"\|") for error in errors)
        lines.append([function, kind, when, first, odd])
    return markdown(["function", "what is other", "call", "rank 0", "rank 2"], lines)


def main(paths):
    found = [json.loads(Path(path).read_text()) for path in paths]
    engines = ", ".join(each["engine"] for each in found)
    print(
        HEAD.format(
            date=date.today(), engines=engines, deals=len(DEALS), samples=SAMPLES,
            digests=digests(found), faults=faults(found),
        ).rstrip()
    )  # fmt: skip
    exact = {(data, one) for each in found for _, data, _, all_ in each["digests"] for one in all_}
    if len(exact) > len({data for data, _ in exact}):
        raise SystemExit(f"more than one digest of a dtype: {sorted(exact)}")
    for each in found[1:]:
        for case, errors in each["faults"].items():
            if errors != found[0]["faults"][case]:
                raise SystemExit(f"{each['engine']}: {case}: other words: {errors}")


if __name__ == "__main__":
    main(sys.argv[1:])
