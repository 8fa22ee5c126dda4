"""Settings of `npmlm edit`: the edits, in order, and the tensors that they change."""

from __future__ import annotations

import re
from dataclasses import asdict, field, fields
from enum import Enum
from typing import Annotated, Any

from pydantic import Field, NonNegativeInt

from npm.core.errors import SettingError, missing
from npm.core.settings import PathText, Settings, as_json, read_settings


class EditName(Enum):
    """Edits of a checkpoint."""

    reverse_layers = "reverse_layers"  # the last layer first
    keep_layers = "keep_layers"  # some of the layers, in any order
    reinitialize = "reinitialize"  # tensors of a scope are drawn again, by a scheme
    permute_rows = "permute_rows"  # word vectors are permuted among tokens of letters
    swap_embeddings = "swap_embeddings"  # tokenizer and word vectors of a donor
    new_vocabulary = "new_vocabulary"  # another tokenizer, with newly drawn word vectors
    average = "average"  # of its tensors and those of a donor
    untie = "untie"  # the masked-token head gets its own output matrix


class Scope(Enum):
    """Tensors by their role."""

    word_embeddings = "word_embeddings"
    position_embeddings = "position_embeddings"
    token_type_embeddings = "token_type_embeddings"
    embedding_norm = "embedding_norm"
    layers = "layers"
    attention = "attention"  # query, key, value and output, without norms
    feed_forward = "feed_forward"  # without norms
    norms = "norms"  # all but the head's
    head = "head"  # transform and bias of the masked-token head
    all = "all"  # a matrix with two names once


class Scheme(Enum):
    """Schemes that redraw a tensor."""

    default = "default"  # as a newly made model of this config has it
    match_norm = "match_norm"  # normal numbers with the norm of the old matrix
    match_std = "match_std"  # normal numbers with the standard deviation of the old matrix
    permute_elements = "permute_elements"  # the old numbers in random order


class LayerChoice(Enum):
    """Layers by a rule."""

    listed = "listed"  # those of `layers`
    first_half = "first_half"
    every_second = "every_second"  # the first one, the third one, …


NEEDED = {"reinitialize": "scope", "swap_embeddings": "donor", "average": "donor", "new_vocabulary": "tokenizer"}
"""Required setting of an edit."""


class EditStep(Settings):
    """One edit."""

    name: EditName
    """Name of the edit."""
    layers: list[NonNegativeInt] = field(default_factory=list)
    """Layers by number, from 0: those that are kept, in this order; or those that `reinitialize` draws, empty: all."""
    keep: LayerChoice = LayerChoice.listed
    """Layers that `keep_layers` keeps."""
    force: bool = False
    """Move layers of a family whose layers differ too: a norm that a position lacks is dropped, a missing one is 1."""
    scope: Scope | None = None
    """Tensors that `reinitialize` draws."""
    scheme: Scheme = Scheme.default
    """Distribution that it draws them from."""
    keep_mean: bool = False
    """With `match_std`: add the mean of the old matrix."""
    matrices_only: bool = False
    """With `permute_elements`: keep biases and norms unchanged."""
    filter: str = ""
    """Regular expression of the tokens whose rows are permuted; empty: those of Latin letters alone."""
    others: bool = False
    """Permute the rows of all other tokens among each other too; special tokens never move."""
    donor: PathText = ""
    """Encoder whose tokenizer and word vectors are taken, or whose tensors are averaged with."""
    fraction: Annotated[float, Field(gt=0, le=1)] = 0.5
    """Weight of the donor's tensors in an average; the encoder's own have the rest."""
    tokenizer: PathText = ""
    """Folder or name of the tokenizer that is taken."""

    def check(self) -> None:
        """Raise SettingError for an edit without its required settings."""
        if self.name is EditName.keep_layers and bool(self.layers) is not (self.keep is LayerChoice.listed):
            raise SettingError("keep_layers requires either layers=[0,1,…], or keep=first_half or every_second")
        needed = NEEDED.get(self.name.value)
        if needed and not getattr(self, needed):
            raise missing(f"{needed} of the edit {self.name.value}")
        try:
            re.compile(self.filter)
        except re.error as error:
            raise SettingError(f"filter must be a regular expression, got {self.filter}: {error}") from error

    def record(self) -> dict[str, Any]:
        """Settings that differ from the defaults, as JSON."""
        usual = {item.name: item.default for item in fields(EditStep)} | {"layers": []}
        return {key: value for key, value in as_json(asdict(self)).items() if getattr(self, key) != usual[key]}


class EditSettings(Settings):
    """Change a checkpoint without training it: layers, weights, embeddings, vocabulary; writes an encoder folder."""

    encoder: PathText = ""
    """The encoder that is edited, of the family of BERT, RoBERTa, XLM-R or ModernBERT; empty: the shipped one."""
    out: PathText = ""
    """New folder for the edited encoder. Required."""
    edits: list[dict[str, Any]] = field(default_factory=list)
    """The edits, in order, such as [{name: keep_layers, layers: [0,1]}, {name: reinitialize, scope: head}], unless
    edit=NAME gives them; docs/studies.md lists them."""
    donor: PathText = ""
    """Donor of an edit swap_embeddings or average that names none."""
    tokenizer: PathText = ""
    """Folder or name of the tokenizer of an edit new_vocabulary that names none."""
    seed: NonNegativeInt = 0
    """Seed of all draws."""

    def steps(self) -> list[EditStep]:
        """The edits, checked. Raises SettingError for unusable edits, and for none."""
        if not self.edits:
            raise missing("edit or edits", "edit=NAME; npmlm edit --help lists them")
        steps = []
        for position, given in enumerate(self.edits):
            needed = NEEDED.get(str(given.get("name")), "")
            usual = {needed: value} if (value := getattr(self, needed, "")) else {}
            steps.append(read_settings(EditStep, usual | given, f"edits[{position}]."))
        return steps
