"""Speed of each kernel by itself, at each instruction-set level: for who tunes one loop."""

import bn_ext
from bn_ext import _kernels

from . import rows


def measure(dtypes, seconds, advance=lambda: None):
    """{(dtype, kernel): {level: GB/s}}"""
    found = {}
    for dtype in dtypes:
        for kernel, uniform in _kernels.TIMED:
            line = found[dtype, f"{kernel}, one channel" if uniform else kernel] = {}
            for isa in bn_ext.available_isas():
                line[isa] = _kernels.speed(isa, dtype, kernel, uniform, seconds)
                advance()
    return found


def table(found):
    isas = list(next(iter(found.values())))
    lines = [[*key, *(f"{speeds[isa]:.0f}" for isa in isas)] for key, speeds in found.items()]
    return rows.markdown(["dtype", "kernel", *isas], lines)
