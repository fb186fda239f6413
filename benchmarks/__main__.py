"""Times as multiples of the memory floor, next to peers.

    python -m benchmarks                                   resnet set, float32 and bfloat16
    python -m benchmarks --sets mlp odd --dtypes float16 --peers numpy torch
    python -m benchmarks --op training inference           operations other than the gradient
    python -m benchmarks --report kernels                  GB/s of each kernel at each level
    python -m benchmarks --report ladder                   from the plain loop on, step by step
    python -m benchmarks --report accuracy                 errors, also of peers: docs/numerics.md
    python -m benchmarks --report exact                    cost of exact sums: docs/exact.md
    python -m benchmarks --report memory                   of training steps: docs/howto
    python -m benchmarks --report networks --threads 1 2   steps of networks in torch: docs/howto
    python -m benchmarks --write                           writes rows to docs/figures.csv
    python -m benchmarks --report figures                  from these: docs/figures.md, README

Arrays lie where NumPy puts large ones, 16 bytes past a page. The floor is a loop that reads and
writes what the operation must, and nothing else, on the same arrays; it runs on one thread and on
as many as bn_ext, and the faster one counts. For each problem, bursts of calls of bn_ext, the floor
and peers are interleaved. A pause before each burst lets the idle threads of other pools go to
sleep. The minimum counts. Problems and timing are those of `bn-ext bench`; there are more peers.
With BN_EXT_ISA=v3, torch, oneDNN and JAX are also limited to AVX2; NumPy and TensorFlow are not.
oneDNN is PyPI's onednn-devel if that is installed in this environment, else the system's.
"""

import argparse
import os

from rich.console import Console

import bn_ext
from bn_ext._bench.problems import DTYPES, LAYOUTS, OPS, SETS

from . import accuracy, exact, figures, kernels, ladder, memory, rows


def networks(options, console):
    """The only report that needs torch."""
    from .networks import report

    report(options, console)


#: Environment variables that limit peers to a level, set before they are imported.
LIKEWISE = {
    "v3": {
        "ATEN_CPU_CAPABILITY": "avx2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "XLA_FLAGS": "--xla_cpu_max_isa=AVX2",
    }
}

REPORTS = {
    "accuracy": accuracy.report,
    "exact": exact.report,
    "figures": figures.report,
    "kernels": kernels.report,
    "ladder": ladder.report,
    "memory": memory.report,
    "networks": networks,
    "rows": rows.report,
}


def main(arguments=None):
    """Run the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    every = bn_ext.show_config(mode="dicts")["default_threads"]
    parser.add_argument("--report", choices=REPORTS, default="rows")
    parser.add_argument("--sets", nargs="+", choices=SETS, default=["resnet"])
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=["float32", "bfloat16"])
    parser.add_argument("--layouts", nargs="+", choices=LAYOUTS, default=list(LAYOUTS))
    parser.add_argument("--threads", nargs="+", type=int, default=[every], help="default: all")
    parser.add_argument("--op", nargs="+", choices=OPS, default=["backward"])
    parser.add_argument("--peers", nargs="*", choices=rows.ALL_PEERS, default=list(rows.ALL_PEERS))
    parser.add_argument("--seconds", type=float, default=1.0, help="per row, approximately")
    parser.add_argument("--write", action="store_true", help="write rows to docs/figures.csv")
    options = parser.parse_args(arguments)
    os.environ.update(LIKEWISE.get(bn_ext.get_isa(), {}))
    REPORTS[options.report](options, Console())


if __name__ == "__main__":
    main()
