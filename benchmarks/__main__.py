"""What calls cost: times next to the memory floor and more peers; memory.

    python -m benchmarks                                   rows of the sets, as `bn-ext bench` does
    python -m benchmarks --sets mlp odd --behind nothing pass product --peers floor torch
    python -m benchmarks --write                           writes them to docs/figures.csv
    python -m benchmarks --report figures                  from these: docs/figures.md, README
    python -m benchmarks --report exact                    cost of exact sums: docs/exact.md
    python -m benchmarks --report memory                   of training steps: docs/howto
    python -m benchmarks --report numpy_networks           steps of training: docs/figures.md

Timing and table are those of `bn-ext bench`, but each package runs in a process of its own; these
take turns. The floor is a loop that reads and writes what the operation must, and nothing else, on
one thread or on all, whichever is faster. With BN_EXT_ISA=v3, torch, oneDNN and JAX are also
limited to AVX2; NumPy and TensorFlow are not. oneDNN is PyPI's onednn-devel if that is installed in
this environment, else the system's. Whether results are right is another matter: python -m survey.
"""

import argparse
import importlib
import json
import os
from pathlib import Path

import bn_ext
from bn_ext._cli.bench import add_options, show
from bn_ext._cli.usage import UsageError

from . import figures, pages
from .peers import PEERS
from .problems import OPS, SETS
from .rows import chosen_cases, chosen_peers, measured, packages_of

#: Environment variables that limit peers to a level, set before their processes start.
LIKEWISE = {
    "v3": {
        "ATEN_CPU_CAPABILITY": "avx2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "XLA_FLAGS": "--xla_cpu_max_isa=AVX2",
    }
}
REPORTS = "exact", "figures", "memory", "numpy_networks"


def rows(options):
    """Measure and print rows; also if interrupted, keep those that were measured."""
    kept, cases = [], chosen_cases(options)
    try:
        with packages_of(chosen_peers(options)) as packages:
            show((kept.append(r) or r for r in measured(options, cases, packages)), packages)
    finally:
        names = dict.fromkeys(name for r in kept for name in r["medians"] if name != "bn_ext")
        print(pages.run(names))
        if kept and options.write:
            figures.add(kept)
        if kept and options.json:
            Path(options.json).write_text(json.dumps(kept, indent=1) + "\n")


def main(arguments=None):
    """Run the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--report", choices=REPORTS, help="instead of rows")
    add("--write", action="store_true", help="write rows to docs/figures.csv")
    add("--json", metavar="FILE", help="write rows to FILE")
    text = f"any of {', '.join(SETS)} (default: resnet)"
    add("--sets", nargs="+", choices=SETS, metavar="SET", help=text)
    text = f"any of {', '.join(PEERS)} (default: all that are installed)"
    add("--peers", nargs="*", choices=PEERS, metavar="PEER", help=text)
    add_options(add, OPS)
    options = parser.parse_args(arguments)
    os.environ.update(LIKEWISE.get(bn_ext.get_isa(), {}))
    try:
        if options.report:
            importlib.import_module(f".{options.report}", __package__).report(options)
        else:
            rows(options)
    except UsageError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
