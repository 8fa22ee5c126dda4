"""Settings of `npmlm edit`: the edits, in order, and the tensors that they change."""

from __future__ import annotations

import re
from dataclasses import asdict, field, fields
from typing import Annotated, Any, Literal

from pydantic import Field, NonNegativeInt

from npm.core.errors import SettingError, exclusive, missing, unknown
from npm.core.settings import PathText, Settings, as_json, read_settings

EditName = Literal[
    "reverse_layers",  # the last layer first
    "keep_layers",  # some of the layers, in any order
    "reinitialize",  # tensors of a scope are drawn again, by a scheme
    "permute_rows",  # word vectors are permuted among tokens of letters
    "swap_embeddings",  # tokenizer and word vectors of a donor
    "new_vocabulary",  # another tokenizer, with newly drawn word vectors
    "average",  # of its tensors and those of a donor
    "untie",  # the masked-token head gets its own output matrix
]
# attention and feed_forward without norms, norms without the head's; head: transform and bias of the masked-token head
Scope = Literal[
    "word_embeddings",
    "position_embeddings",
    "token_type_embeddings",
    "embedding_norm",
    "layers",
    "attention",
    "feed_forward",
    "norms",
    "head",
    "all",
]
# as a newly made model has the tensor; normal numbers with the old norm, or deviation; the old numbers in random order
Scheme = Literal["default", "match_norm", "match_std", "permute_elements"]
LayerChoice = Literal["listed", "first_half", "every_second"]

NEEDED = {"reinitialize": "scope", "swap_embeddings": "donor", "average": "donor", "new_vocabulary": "tokenizer"}
"""Required setting of an edit."""


NAMED: dict[str, dict[str, Any]] = {
    "clean_all": {"name": "reinitialize", "scope": "all"},
    "clean_word_embeddings": {"name": "reinitialize", "scope": "word_embeddings"},
    "every_second": {"name": "keep_layers", "keep": "every_second"},
    "first_half": {"name": "keep_layers", "keep": "first_half"},
    "matched_norm": {"name": "reinitialize", "scope": "all", "scheme": "match_norm"},
    "matched_std": {"name": "reinitialize", "scope": "all", "scheme": "match_std"},
    "new_vocabulary": {"name": "new_vocabulary"},
    "oracle": {"name": "reinitialize", "scope": "all", "scheme": "permute_elements"},
    "reversed": {"name": "reverse_layers"},
    "shuffled_word_embeddings": {"name": "permute_rows"},
    "swapped_embeddings": {"name": "swap_embeddings"},
    "untied": {"name": "untie"},
}
"""Edits of one step by the name of edit=."""


class EditStep(Settings):
    """One edit."""

    name: EditName
    """Name of the edit."""
    layers: list[NonNegativeInt] = field(default_factory=list)
    """Layers by number, from 0: those that are kept, in this order; or those that `reinitialize` draws, empty: all."""
    keep: LayerChoice = "listed"
    """Layers that `keep_layers` keeps."""
    force: bool = False
    """Move layers of a family whose layers differ too: a norm without a counterpart is dropped, a missing one is 1."""
    scope: Scope | None = None
    """Tensors that `reinitialize` draws."""
    scheme: Scheme = "default"
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
        if self.name == "keep_layers" and bool(self.layers) is not (self.keep == "listed"):
            raise SettingError("keep_layers requires either layers=[0,1,…], or keep=first_half or every_second")
        needed = NEEDED.get(self.name)
        if needed and not getattr(self, needed):
            raise missing(f"{needed} of the edit {self.name}")
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
    edit: str = ""
    """One edit by name: clean_all, clean_word_embeddings, every_second, first_half, matched_norm, matched_std,
    new_vocabulary, oracle, reversed, shuffled_word_embeddings, swapped_embeddings or untied."""
    edits: list[dict[str, Any]] = field(default_factory=list)
    """The edits, in order, such as [{name: keep_layers, layers: [0,1]}, {name: reinitialize, scope: head}], in
    place of edit=; docs/studies/interventions.md lists them."""
    donor: PathText = ""
    """Donor of an edit swap_embeddings or average that names none."""
    tokenizer: PathText = ""
    """Folder or name of the tokenizer of an edit new_vocabulary that names none."""
    seed: NonNegativeInt = 0
    """Seed of all draws."""

    def check(self) -> None:
        """Raise SettingError for an unknown name, and for both a name and a list."""
        if self.edit and self.edit not in NAMED:
            raise unknown("edit", self.edit, NAMED)
        if self.edit and self.edits:
            raise exclusive("edit", "edits")

    def steps(self) -> list[EditStep]:
        """The edits, checked. Raises SettingError for unusable edits, and for none."""
        named = [NAMED[self.edit]] if self.edit else self.edits
        if not named:
            raise missing("edit or edits", "edit=NAME; npmlm edit --help lists them")
        steps = []
        for position, given in enumerate(named):
            needed = NEEDED.get(str(given.get("name")), "")
            usual = {needed: value} if (value := getattr(self, needed, "")) else {}
            steps.append(read_settings(EditStep, usual | given, f"edits[{position}]."))
        return steps
