"""Put the encoder of a finished run into the package: python scripts/ship_encoder.py RUN

Writes half-precision weights, the run's settings and its metrics to npm/assets/encoder-mini/; the card there
(README.md) is written by hand.
"""

import shutil
import sys
from pathlib import Path

import torch

from npm.models.encoder import Encoder
from npm.models.names import shipped_encoder_folder


def main(run: Path) -> None:
    """Replace the shipped encoder, leaving its card."""
    folder = shipped_encoder_folder()
    encoder = Encoder.load(str(run / "encoder"), device="cpu", dtype="float32")
    encoder.save(folder, dtype=torch.float16)
    for name in ("settings.json", "metrics.jsonl"):
        shutil.copy(run / name, folder / f"training-{name}")
    sys.stdout.write(f"{folder}: {sum(file.stat().st_size for file in folder.iterdir()) / 1e6:.1f} MB\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
