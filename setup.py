"""The note that what is built from the source archive lacks the weights; all else is in pyproject.toml."""

import sys
from pathlib import Path

from setuptools import setup

WEIGHTS = Path(__file__).parent / "npm" / "assets" / "encoder-mini" / "model.safetensors"

if not WEIGHTS.is_file():
    sys.stderr.write(
        "npmlm: note: the weights of the shipped encoder are not here (the source archive leaves them out).\n"
        "  What is built from it needs encoder=DIR or encoder=HUB_NAME; the released wheel and a clone have them.\n"
    )

setup()
