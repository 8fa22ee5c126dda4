"""Put the encoder of a finished run into the package: python scripts/ship_encoder.py RUN [reader-mini]

Writes half-precision weights, the run's settings and its metrics to npm/assets/encoder-mini/, or the weights of a
reader, which has the word embeddings of encoder-mini, without these to npm/assets/reader-mini/. The cards there
(README.md) are written by hand.
"""

import json
import shutil
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file

from npm.models.bert import WORD_EMBEDDINGS
from npm.models.encoder import Encoder
from npm.models.names import CONFIG, SHIPPED, WEIGHTS, shipped_folder
from npm.models.settings import OWN_KEY
from npm.models.stored import save_tensors


def main(run: Path, name: str = SHIPPED) -> None:
    """Replace a shipped model, leaving its card."""
    folder = shipped_folder(name)
    encoder = Encoder.load(str(run / "encoder"), device="cpu", dtype="float32")
    encoder.save(folder, dtype=torch.float16)
    if name != SHIPPED:
        leave_word_embeddings(folder)
    for file in ("settings.json", "metrics.jsonl"):
        shutil.copy(run / file, folder / f"training-{file}")
    sys.stdout.write(f"{folder}: {sum(file.stat().st_size for file in folder.iterdir()) / 1e6:.1f} MB\n")


def leave_word_embeddings(folder: Path) -> None:
    """Take the word embeddings, which are those of encoder-mini, out of a saved encoder."""
    tensors = load_file(folder / WEIGHTS)
    shared = load_file(shipped_folder() / WEIGHTS)[WORD_EMBEDDINGS]
    if not torch.equal(tensors.pop(WORD_EMBEDDINGS), shared):
        raise SystemExit("the run has changed its word embeddings: set start.frozen.word_embeddings=true")
    save_tensors(folder / WEIGHTS, tensors, {"format": "pt"})
    config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    config[OWN_KEY]["word_embeddings"] = SHIPPED
    (folder / CONFIG).write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
