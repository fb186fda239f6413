"""`python -m bn_ext`, the same as the `bn-ext` script."""

import sys

from bn_ext._cli import main

if __name__ == "__main__":
    sys.exit(main())
