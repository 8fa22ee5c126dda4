"""Scopes of the tensors of an encoder by their names, family by family.

Names are those of the module tree, without the prefix that a masked language model puts before those of its encoder
(`bert.`, `roberta.`, `model.`), so that they are the same with and without a head.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from npm.core.errors import EncoderError, SettingError
from npm.models.edits.settings import Scope


@dataclass(frozen=True, slots=True)
class Family:
    """Names of the tensors of a family."""

    prefix: str
    """What stands before the names of the encoder within a masked language model."""
    layers: str
    """What stands before the number of a layer."""
    patterns: Mapping[Scope, str]
    """Regular expressions of whole names; `{i}` is the number of a layer. A scope that is lacking has no tensor."""
    words: str
    """The word embeddings."""
    output: str
    """The output matrix of the masked-token head, which stands in the file only where it is not the word embeddings."""
    bias: tuple[str, ...]
    """The output bias; where the output matrix is tied, the first of these names alone is there."""
    layers_differ: bool = False
    """Whether a layer cannot stand in the place of any other."""

    def layer_of(self, name: str) -> int | None:
        """The number of the layer that a tensor belongs to."""
        found = re.match(rf"{re.escape(self.layers)}(\d+)\.", name)
        return int(found[1]) if found else None


def _bert_like(prefix: str, head: str, head_parts: str) -> Family:
    layer = r"encoder\.layer\.{i}"
    either = r"\.(weight|bias)"
    return Family(
        prefix=prefix,
        layers="encoder.layer.",
        patterns={
            Scope.word_embeddings: r"embeddings\.word_embeddings\.weight",
            Scope.position_embeddings: r"embeddings\.position_embeddings\.weight",
            Scope.token_type_embeddings: r"embeddings\.token_type_embeddings\.weight",
            Scope.embedding_norm: r"embeddings\.LayerNorm" + either,
            Scope.layers: layer + r"\..+",
            Scope.attention: layer + r"\.attention\.(self\.(query|key|value)|output\.dense)" + either,
            Scope.feed_forward: layer + r"\.(intermediate|output)\.dense" + either,
            Scope.norms: rf"(embeddings|{layer}\.(attention\.)?output)\.LayerNorm{either}",
            Scope.head: rf"{re.escape(head)}\.({head_parts}|bias|decoder\.bias)",
            Scope.all: ".+",
        },
        words="embeddings.word_embeddings.weight",
        output=f"{head}.decoder.weight",
        bias=(f"{head}.bias", f"{head}.decoder.bias"),
    )


_ROBERTA = _bert_like("roberta", "lm_head", r"(dense|layer_norm)\.(weight|bias)")
FAMILIES = {
    "bert": _bert_like("bert", "cls.predictions", r"transform\..+"),
    "roberta": _ROBERTA,
    "xlm-roberta": _ROBERTA,
    "modernbert": Family(
        prefix="model",
        layers="layers.",
        patterns={
            Scope.word_embeddings: r"embeddings\.tok_embeddings\.weight",
            Scope.embedding_norm: r"embeddings\.norm\.(weight|bias)",
            Scope.layers: r"layers\.{i}\..+",
            Scope.attention: r"layers\.{i}\.attn\..+",
            Scope.feed_forward: r"layers\.{i}\.mlp\..+",
            Scope.norms: r"(embeddings\.norm|layers\.{i}\.(attn|mlp)_norm|final_norm)\.(weight|bias)",
            Scope.head: r"(head\..+|decoder\.bias)",
            Scope.all: ".+",
        },
        words="embeddings.tok_embeddings.weight",
        output="decoder.weight",
        bias=("decoder.bias",),
        layers_differ=True,  # the first has no norm before its attention, and some read their neighbours only
    ),
}
"""By `model_type`."""


def family_of(model_type: str, *, where: str) -> Family:
    """The names of a family. Raises EncoderError for one that is not known here."""
    if model_type not in FAMILIES:
        raise EncoderError(
            f"{where}: unknown model type {model_type!r}; choose one of {', '.join(FAMILIES)}, "
            "or add it to npm/models/edits/scopes.py"
        )
    return FAMILIES[model_type]


def names_in(family: Family, scope: Scope, layers: Collection[int], names: Collection[str]) -> list[str]:
    """Those of `names` that belong to a scope, in their order; `layers` empty stands for all.

    >>> names_in(FAMILIES["modernbert"], Scope.norms, [1], ["final_norm.weight", "layers.1.mlp_norm.weight"])
    ['layers.1.mlp_norm.weight']
    """
    pattern = family.patterns.get(scope)
    if pattern is None:
        return []
    is_named = re.compile(pattern.replace("{i}", r"\d+")).fullmatch
    return [name for name in names if is_named(name) and (not layers or family.layer_of(name) in layers)]


def check_layers(layers: Collection[int], count: int, *, where: str) -> None:
    """Raise SettingError unless all of `layers` differ and are among the `count` of an encoder."""
    if len(set(layers)) < len(layers) or not set(layers) <= set(range(count)):
        raise SettingError(f"{where} must be different numbers from 0 to {count - 1}, got {list(layers)}")
