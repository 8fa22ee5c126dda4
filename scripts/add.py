"""Entry point for launchers and job arrays: the same as `npmlm add`."""

import sys

from npm.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["add", *sys.argv[1:]]))
