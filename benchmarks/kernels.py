"""Speed of each kernel by itself, at each instruction-set level: for who tunes one loop."""

from bn_ext._bench.timing import markdown
from bn_ext._verify import speeds


def count(dtypes):
    return len(speeds.TIMED) * len(dtypes)


def measure(dtypes, seconds, advance):
    """{(dtype, kernel): {level: GB/s}}"""
    found = {}
    for dtype in dtypes:
        for what, of_levels in speeds.speeds(dtype, seconds):
            found[dtype, what] = of_levels
            advance()
    return found


def table(found):
    isas = list(next(iter(found.values())))
    lines = [[*key, *(f"{of_levels[isa]:.0f}" for isa in isas)] for key, of_levels in found.items()]
    return markdown(["dtype", "kernel", *isas], lines)
