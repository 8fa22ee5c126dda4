"""Entry point for launchers and job arrays: the same as `npmlm delete`."""

import sys

from npm.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["delete", *sys.argv[1:]]))
