"""What every kernel must return, bit for bit: the same arithmetic, in NumPy.

    __main__.py     the command: every level, every dtype
    kernels.py      compares kernels with the arithmetic
    running.py      runs a single kernel
    arithmetic.py   how a kernel evaluates a formula: the order of sums, rounding
    values.py       the data of kernels: numbers of every kind
    formulas.py     what each formula sums and writes, in NumPy: to add one, begin here
    dtypes.py       storage types as bits, and how each is computed and summed

    compiled.pyx    calls kernels; a build in place links it from the objects of the extension

Each module here uses only those below it.
"""

import sys

try:
    from oracle import compiled  # noqa: F401
except ImportError as error:
    text = f"{error}; 'python -m pip install -e .' in the clone compiles tests/oracle/compiled.pyx"
    if "pytest" in sys.modules:  # an installed wheel can be tested without it
        sys.modules["pytest"].skip(text, allow_module_level=True)
    raise ImportError(text) from error
