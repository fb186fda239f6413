"""`bn-ext verify`: are the bits what they must be, on this CPU?

    command.py      the command: every level, its kernels, then whole calls
    digests.py      compares whole calls with known digests
    problems.py     the data of whole calls: the same bits on every machine
    kernels.py      compares kernels with the arithmetic, bit for bit
    running.py      runs a single kernel
    arithmetic.py   how a kernel evaluates a formula: the order of sums, rounding
    values.py       the data of kernels: numbers of every kind
    formulas.py     what each formula sums and writes, in NumPy: to add one, begin here
    dtypes.py       storage types as bits, and how each is computed and summed

Each module here uses only those below it, and kernels through `_core`.
"""
