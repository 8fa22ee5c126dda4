"""Entry point for launchers and job arrays: the same as `npmlm estimate`."""

import sys

from npm.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["estimate", *sys.argv[1:]]))
