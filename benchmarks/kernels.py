"""Speed of each kernel by itself, at each instruction-set level: for who tunes one loop."""

from bn_ext import _kernels
from bn_ext._bench.timing import markdown


def count(dtypes):
    return len(_kernels.TIMED) * len(dtypes)


def measure(dtypes, seconds, advance):
    """{(dtype, kernel): {level: GB/s}}"""
    found = {}
    for dtype in dtypes:
        for what, speeds in _kernels.speeds(dtype, seconds):
            found[dtype, what] = speeds
            advance()
    return found


def table(found):
    isas = list(next(iter(found.values())))
    lines = [[*key, *(f"{speeds[isa]:.0f}" for isa in isas)] for key, speeds in found.items()]
    return markdown(["dtype", "kernel", *isas], lines)
