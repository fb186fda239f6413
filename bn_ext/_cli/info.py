"""`bn-ext info`: what is in use here, and a warning if several OpenMP runtimes are loaded."""

import argparse
import contextlib
import importlib
import json
import sys

from bn_ext._cli.usage import UsageError
from bn_ext._runtime import show_config

POOLS = """warning: {} OpenMP runtimes are loaded. Each has its own threads, and idle threads that
spin, waiting for work, slow down the others. If calls that alternate between them are slow,
start Python with OMP_WAIT_POLICY=passive, or give one of them fewer threads (threadpoolctl,
num_threads=)."""


def info(options: argparse.Namespace) -> int:
    """Show the version, the instruction-set level, the number of threads and what sets it, the
    caches, and the OpenMP runtimes that are loaded.
    """
    for name in options.together_with:
        try:
            with contextlib.redirect_stdout(sys.stderr):
                importlib.import_module(name)
        except Exception as error:  # a module may fail in any way
            raise UsageError(f"--with {name or repr(name)}: cannot be imported ({error})") from None
    config = show_config(mode="dicts")
    assert config is not None
    if options.json:
        print(json.dumps(config, indent=1))
        return 0
    show_config()
    if len(config["openmp_libraries"]) > 1:
        print("\n" + POOLS.format(len(config["openmp_libraries"])))
    return 0
