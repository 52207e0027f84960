"""``python -m maskprior`` is the command ``maskprior``."""

import sys

from maskprior.cli import main

if __name__ == "__main__":
    sys.exit(main())
