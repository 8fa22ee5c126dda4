"""Conversion of pickled weights: python -m npm.models.convert FOLDER_OR_NAME OUT

For published encoders that exist as pytorch_model.bin only, such as facebook/npm. The pickle is read with
`torch.load(weights_only=True)`, which makes tensors and runs no code; the tokenizer is written as tokenizer.json.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

from npm.core.errors import ArtifactError, EncoderError, UserError
from npm.core.files import sync_all
from npm.models.names import CONFIG, DATA_FILES, SINGLE_MASK_NAMES, WEIGHTS, locate_encoder, read_json_object
from npm.models.settings import OWN_KEY
from npm.models.tokenizer import load_tokenizer

PICKLES = "pytorch_model*.bin"


def convert(name: str, out: Path) -> None:
    """Write the encoder `name`, a folder or a model of the hub, as the new folder `out` with safetensors."""
    folder = Path(locate_encoder(name, (*DATA_FILES, PICKLES)))
    if out.exists():
        raise ArtifactError(f"{out} exists: choose a new folder")
    pickles = sorted(folder.glob(PICKLES))
    if not pickles:
        raise EncoderError(f"{folder} has no {PICKLES}: nothing to convert")
    state: dict[str, torch.Tensor] = {}
    for pickle in pickles:
        try:
            state |= torch.load(pickle, map_location="cpu", weights_only=True)
        except Exception as error:
            # not the message of torch, which recommends running the code of the pickle
            raise EncoderError(
                f"{pickle} is damaged or has more than tensors, and is not read ({type(error).__name__})"
            ) from None
    config = read_json_object(folder / CONFIG)
    if name.partition("@")[0] in SINGLE_MASK_NAMES:
        config[OWN_KEY] = {"query_masks": 1}
    temporary = out.with_name(f".{out.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)  # of a conversion that was killed
    temporary.mkdir(parents=True)
    # tied weights share their memory, which safetensors refuses
    save_file({key: tensor.clone() for key, tensor in state.items()}, temporary / WEIGHTS, metadata={"format": "pt"})
    load_tokenizer(str(folder)).save_pretrained(temporary)
    (temporary / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    sync_all(temporary)
    temporary.rename(out)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.stderr.write(str(__doc__))
        sys.exit(2)
    try:
        convert(sys.argv[1], Path(sys.argv[2]))
    except (UserError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(2)
