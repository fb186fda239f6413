"""bn_ext against the memory and against what one would use instead: python -m benchmarks."""

import sys
from pathlib import Path

# Run from a clone, the source folder, which has no compiled core, would hide the
# installed package.
_ROOT = Path(__file__).resolve().parent.parent
if not list((_ROOT / "bn_ext").glob("_core.*.so")):
    sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != _ROOT]
