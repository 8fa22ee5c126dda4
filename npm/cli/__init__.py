"""The command line: the only package that knows all settings."""

from npm.cli.main import main

__all__ = ["main"]
