"""Random problems from several threads for some time: flat memory, the serial result's bits.

python -P tests/soak.py 600
"""

import sys
import threading
import time
from pathlib import Path

import ml_dtypes
import numpy as np

import bn_ext

CALLERS = 4
DTYPES = [np.dtype(d) for d in (np.float32, np.float64, np.float16, ml_dtypes.bfloat16)]
#: Resident memory may grow by so much after the first tenth: arenas of malloc, no leak.
SLACK = 48 << 20


def resident():
    """Bytes of memory this process holds."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


def problem(rng):
    """Arguments of a random call; few elements, any form."""
    layout = ("NXC", "NCX")[rng.integers(2)]
    shape = tuple(int(n) for n in np.exp(rng.uniform(0, 5, rng.integers(2, 5))))
    while np.prod(shape) > 200_000:
        shape = tuple(max(1, n // 2) for n in shape)
    dtype = DTYPES[rng.integers(4)]
    number = np.float64 if dtype == np.float64 else np.float32
    channels = shape[-1] if layout == "NXC" else shape[1]
    src, diff_dst = (rng.standard_normal(shape).astype(dtype) for _ in range(2))
    vectors = [np.abs(rng.standard_normal(channels)).astype(number) for _ in range(3)]
    options = {
        "epsilon": 1e-3,
        "data_format": layout,
        "is_training": bool(rng.integers(2)),
    }
    return (src, diff_dst, *vectors), options


def call_until(end, seed, counts, errors):
    rng = np.random.default_rng(seed)
    while time.monotonic() < end and not errors:
        arguments, options = problem(rng)
        alone = bn_ext.batch_norm_backward(*arguments, **options, num_threads=1)
        threads = int(rng.integers(1, 17))
        found = bn_ext.batch_norm_backward(*arguments, **options, num_threads=threads)
        for a, b, name in zip(alone, found, found._fields, strict=True):
            if a.tobytes() != b.tobytes():
                errors.append(f"{name}, {arguments[0].shape} {arguments[0].dtype} {options}")
        counts[seed] += 1


def main(seconds):
    """Run; the exit status."""
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
