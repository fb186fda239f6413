"""Times next to the memory floor and more peers, and the other measurements of the docs.

    python -m benchmarks                                   rows of the sets, as `bn-ext bench` does
    python -m benchmarks --sets mlp odd --behind nothing pass product --peers floor torch
    python -m benchmarks --write                           writes them to docs/figures.csv
    python -m benchmarks --report figures                  from these: docs/figures.md, README
    python -m benchmarks --report accuracy                 errors, also of peers: docs/numerics.md
    python -m benchmarks --report exact                    cost of exact sums: docs/exact.md
    python -m benchmarks --report conformance              who passes: docs/who_passes.md
    python -m benchmarks --report memory                   of training steps: docs/howto
    python -m benchmarks --report networks                 steps of networks in torch: docs/howto
    python -m benchmarks --report numpy_networks           in NumPy: docs/figures.md

Problems, timing and table are those of `bn-ext bench`. The floor is a loop that reads and writes
what the operation must, and nothing else, on one thread or on all, whichever is faster. With
BN_EXT_ISA=v3, torch, oneDNN and JAX are also limited to AVX2; NumPy and TensorFlow are not. oneDNN
is PyPI's onednn-devel if that is installed in this environment, else the system's.
"""

import argparse
import importlib
import os

import bn_ext
from bn_ext._bench.table import noise, table
from bn_ext._cli.bench import add_options, measured

from . import figures, pages
from .peers import PEERS

#: Environment variables that limit peers to a level, set before their processes start.
LIKEWISE = {
    "v3": {
        "ATEN_CPU_CAPABILITY": "avx2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "XLA_FLAGS": "--xla_cpu_max_isa=AVX2",
    }
}
REPORTS = "accuracy", "conformance", "exact", "figures", "memory", "networks", "numpy_networks"


def rows(options):
    """Measure and print the rows that are asked for; with --write, write them."""
    _, found, stopped = measured(options, PEERS)
    names = dict.fromkeys(name for r in found for name in r["medians"] if name != "bn_ext")
    print(pages.run(names), "", *table(found, names), noise(found), sep="\n")
    if options.write:
        figures.add(found)
    if stopped:
        raise stopped


def main(arguments=None):
    """Run the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--report", choices=REPORTS, help="instead of rows")
    parser.add_argument("--write", action="store_true", help="write rows to docs/figures.csv")
    add_options(parser.add_argument, PEERS)
    options = parser.parse_args(arguments)
    os.environ.update(LIKEWISE.get(bn_ext.get_isa(), {}))
    if options.report:
        importlib.import_module(f".{options.report}", __package__).report(options)
    else:
        rows(options)


if __name__ == "__main__":
    main()
