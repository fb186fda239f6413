"""Random problems from several threads for some time: memory stays flat, bits as in serial calls.

python tests/soak.py 600
"""

import os
import sys
import threading
import time
from pathlib import Path

import numpy as np
from cases import DATA_DTYPES, FORMATS, Problem

import bn_ext

CALLERS = 4
#: Resident memory may grow by this much after the first tenth: malloc's arenas, not a leak.
SLACK = 48 << 20


def resident():
    """Bytes of memory this process holds."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE")


def problem(rng):
    """A problem and options of a random call, of any form, with few elements."""
    data_format = str(rng.choice(list(FORMATS)))
    shape = tuple(int(n) for n in np.exp(rng.uniform(0, 5, rng.integers(2, 5))))
    while np.prod(shape) > 200_000:
        shape = tuple(max(1, n // 2) for n in shape)
    p = Problem(rng, shape, data_format, str(rng.choice(DATA_DTYPES)))
    return p, {"data_format": data_format, "is_training": bool(rng.integers(2))}


def call_until(end, seed, counts, errors):
    rng = np.random.default_rng(seed)
    while time.monotonic() < end and not errors:
        p, options = problem(rng)
        alone = p.run(bn_ext.batch_norm_backward, **options, num_threads=1)
        threads = int(rng.integers(1, 17))
        found = p.run(bn_ext.batch_norm_backward, **options, num_threads=threads)
        for a, b, name in zip(alone, found, found._fields, strict=True):
            if a.tobytes() != b.tobytes():
                errors.append(f"{name}, {p.src.shape} {p.src.dtype} {options}")
        counts[seed] += 1


def main(seconds):
    """Run; return the exit status."""
    start = time.monotonic()
    counts, errors = [0] * CALLERS, []
    callers = [
        threading.Thread(target=call_until, args=(start + seconds, i, counts, errors))
        for i in range(CALLERS)
    ]
    for caller in callers:
        caller.start()
    time.sleep(seconds / 10)
    settled = most = resident()
    while any(caller.is_alive() for caller in callers):
        time.sleep(0.5)
        most = max(most, resident())
    for caller in callers:
        caller.join()
    print(
        f"{sum(counts)} problems twice in {time.monotonic() - start:.0f} s from {CALLERS} threads; "
        f"resident {settled >> 20} MiB after a tenth of it, {most >> 20} MiB at most"
    )
    for error in errors:
        print(f"WRONG: {error}")
    if most > settled + SLACK:
        print("memory grew")
    return int(bool(errors) or most > settled + SLACK)


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1])))
