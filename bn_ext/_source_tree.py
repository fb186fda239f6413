"""What an import from a clone tells the user; an installed package does not import this."""

# Not by pathlib, which would double the time of the import.
import os
import sys
import warnings

__all__ = ["not_compiled", "warn_if_older"]

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
COMMAND = "python -m pip install -e ."


def not_compiled(in_source_tree: bool) -> ImportError:
    """The error that says what to do about a core that is not there."""
    python = f"Python {sys.version_info.major}.{sys.version_info.minor}"
    if not in_source_tree:
        return ImportError(f"bn_ext in {ROOT} has no compiled part for {python}: reinstall it")
    return ImportError(
        f"bn_ext in {ROOT} is source code that has not been compiled for {python}: run "
        f"'{COMMAND}' there, or start Python in another folder to import an installed bn_ext"
    )


def warn_if_older(core: str) -> None:
    """Name the sources that were changed after the core was linked, and what compiles them."""
    names = ["build_c.py", "setup.py"]
    names += [
        f"bn_ext/{name}"
        for name in os.listdir(f"{ROOT}/bn_ext")
        if name.endswith((".pyx", ".pxd", ".pxi"))
    ]
    for folder, _, files in os.walk(f"{ROOT}/src_c"):
        inside = folder[len(ROOT) + 1 :].replace(os.sep, "/")
        names += [f"{inside}/{name}" for name in files]
    built = os.stat(core).st_mtime
    newer = sorted(name for name in names if os.stat(f"{ROOT}/{name}").st_mtime > built)
    if newer:
        warnings.warn(
            f"bn_ext in {ROOT} was compiled before {', '.join(newer)} changed: run '{COMMAND}' "
            "there to compile it again",
            stacklevel=6,
        )
