"""Entry point for launchers and job arrays: the same as `npmlm inspect`."""

import sys

from npm.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["inspect", *sys.argv[1:]]))
