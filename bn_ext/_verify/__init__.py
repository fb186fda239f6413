"""`bn-ext verify`: are the bits what they must be, on this CPU?

    command.py      the command: every level, its kernels, then whole calls
    digests.py      whole calls against known digests
    problems.py     what whole calls are given: the same bits on every machine
    kernels.py      kernels against the arithmetic, bit for bit
    running.py      one kernel, run by itself
    arithmetic.py   what a kernel makes of a formula: the order of sums, rounding
    formulas.py     what each formula sums and writes, in NumPy: to add one, begin here
    values.py       what kernels are given: numbers of every kind
    dtypes.py       storage types as bits, and how each is computed and summed

Each knows only those named below it, and kernels.h by `_core`.
"""
