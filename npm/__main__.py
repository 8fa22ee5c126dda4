"""`python -m npm` is `npmlm`."""

import sys

from npm.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
