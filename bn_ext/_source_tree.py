"""What an import from a clone has to say; an installed package does not import this."""

import sys
import warnings
from pathlib import Path

__all__ = ["not_compiled", "warn_if_older"]

ROOT = Path(__file__).resolve().parent.parent
COMMAND = "python -m pip install -e ."
#: What the compiled core is made from.
MADE_FROM = ("src_c/*", "bn_ext/_core.pyx", "bn_ext/_core.pxd", "build_c.py", "setup.py")


def not_compiled(in_source_tree: bool) -> ImportError:
    """The error that says what to do about a core that is not there."""
    python = f"Python {sys.version_info.major}.{sys.version_info.minor}"
    if not in_source_tree:
        return ImportError(f"bn_ext in {ROOT} has no compiled part for {python}: install it again")
    return ImportError(
        f"bn_ext in {ROOT} is source code that is not compiled for {python}: run '{COMMAND}' "
        "there, or import an installed bn_ext from elsewhere"
    )


def warn_if_older(core: str) -> None:
    """Name the sources that were changed after the core was linked, and what compiles them."""
    built = Path(core).stat().st_mtime
    found = (path for pattern in MADE_FROM for path in ROOT.glob(pattern))
    newer = sorted(p.relative_to(ROOT).as_posix() for p in found if p.stat().st_mtime > built)
    if newer:
        warnings.warn(
            f"bn_ext in {ROOT} was compiled before {', '.join(newer)} changed: '{COMMAND}' there "
            "compiles it again",
            stacklevel=6,
        )
