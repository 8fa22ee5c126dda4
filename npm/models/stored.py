"""A Hugging Face model with its tokenizer, whatever it computes: saved, and told apart from others by fingerprints."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import torch

from index.files import storage_errors
from npm.corpus.blocks import tokenizer_fingerprint
from npm.models.loading import quiet_transformers, safetensors_errors

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast


class StoredModel:
    """What encoders and encoder-decoders share."""

    FINGERPRINTED_KEYS: ClassVar[tuple[str, ...]] = ()
    """What of the config changes outputs without changing the shape of a weight."""

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, *, name: str) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.name = name
        self._weights_digest: str | None = None
        self._tokenizer_digest: tuple[int, str] | None = None

    @property
    def whole_model(self) -> PreTrainedModel:
        """What is saved: `model`, or the model around it."""
        return self.model

    def save(self, folder: Path, *, dtype: torch.dtype = torch.float32) -> None:
        """Write config, weights (safetensors) and tokenizer so that `transformers` loads them unchanged.

        An encoder with a head attached is written with it, which loads as an encoder too. Raises StorageError when the
        operating system refuses a write.
        """
        with storage_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
        saved = self.whole_model
        state = {
            name: tensor.detach().to("cpu", dtype if tensor.is_floating_point() else None).contiguous()
            for name, tensor in saved.state_dict().items()
            if name not in saved.all_tied_weights_keys  # the same tensor under a second name
        }
        with storage_errors(folder):
            with quiet_transformers(), safetensors_errors():
                saved.save_pretrained(folder, state_dict=state)
            self.tokenizer.save_pretrained(folder)
            config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
            config["dtype"] = str(dtype).removeprefix("torch.")
            (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")
            for weights in folder.glob("*.safetensors"):  # written for their owner alone, whatever the umask says
                weights.chmod((folder / "config.json").stat().st_mode & 0o777)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.model.parameters()).device

    @property
    def fingerprint(self) -> str:
        """SHA-256 over weights (as float32), architecture and scale: equal for equal outputs, wherever it was loaded.

        The weights are hashed once, so that a later cast does not count; `weights_changed` makes it hash them again.
        """
        if self._weights_digest is None:
            self._weights_digest = _weights_digest(self.model)
        facts = {key: getattr(self.model.config, key, None) for key in self.FINGERPRINTED_KEYS}
        return hashlib.sha256(json.dumps([facts, self._weights_digest], sort_keys=True).encode()).hexdigest()

    def weights_changed(self) -> None:
        """To be called by whoever has changed the weights, as training does."""
        self._weights_digest = None

    @property
    def tokenizer_fingerprint(self) -> str:
        """SHA-256 of the tokenizer's whole definition, computed once for each size of its vocabulary."""
        size = len(self.tokenizer)
        if self._tokenizer_digest is None or self._tokenizer_digest[0] != size:
            self._tokenizer_digest = size, tokenizer_fingerprint(self.tokenizer)
        return self._tokenizer_digest[1]


def _weights_digest(model: PreTrainedModel) -> str:
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name}{tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().to("cpu", torch.float32).contiguous().numpy().tobytes())
    return digest.hexdigest()
