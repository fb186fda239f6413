"""bn_ext compared with the memory floor and with its peers: python -m benchmarks."""

import sys
from pathlib import Path

# For the reference and the bounds.
sys.path.append(str(Path(__file__).parent.parent / "tests" / "shared"))
