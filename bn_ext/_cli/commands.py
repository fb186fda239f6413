"""The commands, their options, and their exit status (EXIT)."""

import argparse
import io
import os
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from bn_ext._cli.bench import WORDS, add_options, bench
from bn_ext._cli.reference import add_options as add_check_options, check
from bn_ext._cli.usage import UsageError
from bn_ext._cli.verify import verify
from bn_ext._core import escaped
from bn_ext._runtime import show_config
from bn_ext._version import __version__

EXIT = """Exit status: 0 on success; 1 if verify found a wrong bit, or check a wrong result; 2 for
wrong usage (with no command, this help is printed), a missing package, a file or an output that
cannot be read or written, or too little memory; 130 if interrupted, or if the reader of the output
closed the pipe."""


def info(_: argparse.Namespace) -> int:
    """Show the version, the instruction-set level, the number of threads and what sets it, the
    caches, and the OpenMP runtimes that are loaded.
    """
    show_config()
    return 0


class Parser(argparse.ArgumentParser):
    """Its errors repeat what was typed."""

    def error(self, text: str) -> NoReturn:
        super().error(escaped(text))


def parser() -> Parser:
    top = Parser(
        prog="bn-ext",
        description="Batch normalization and its gradients for NumPy arrays: show what is in use "
        "here, check that results have the same bits as on other CPUs, measure the speed, check "
        "kernels of your own.",
        epilog=EXIT,
    )
    top.add_argument("-V", "--version", action="version", version=f"bn_ext {__version__}")
    commands = top.add_subparsers(dest="command", metavar="{info,verify,bench,check}")

    def add_command(run: Callable[..., int], text: str, **options: Any) -> Any:
        command = commands.add_parser(run.__name__, help=text, description=run.__doc__, **options)
        command.set_defaults(run=run)
        return command.add_argument

    add_command(info, "show the build, the CPU and the threads in use")
    add_command(verify, "check that results have the same bits as on other CPUs")
    add = add_command(bench, "time bn_ext on this CPU, next to NumPy and torch", epilog=WORDS)
    add_options(add)
    add_check_options(add_command(check, "check a Python function"))
    return top


def main(arguments: list[str] | None = None) -> int:
    """Run a command; return the exit status."""
    name = "bn-ext"
    if sys.stdout is None:
        print(f"{name}: standard output is closed", file=sys.stderr)
        return 2
    if isinstance(sys.stdout, io.TextIOWrapper):  # what it cannot encode, as stderr shows it
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        top = parser()
        try:
            options = top.parse_args(arguments)
        except SystemExit as end:  # help or an error was printed
            status = int(end.code or 0)
        else:
            if options.command is None:
                top.print_help(sys.stderr)
                status = 2
            else:
                name += f" {options.command}"
                status = options.run(options)
        sys.stdout.flush()
        return status
    except UsageError as error:
        print(f"{name}: {escaped(str(error))}", file=sys.stderr)
        status = 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        status = 130
    except BrokenPipeError:
        status = 130
    except (MemoryError, OSError) as error:
        print(f"{name}: {escaped(str(error)) or 'not enough memory'}", file=sys.stderr)
        status = 2
    try:
        sys.stdout.flush()
    except OSError:  # when Python exits, it would fail again to write what is still in the buffer
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return status
