"""Settings of `npmlm edit`: which edits, in which order, of which tensors."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field, fields
from enum import Enum
from typing import Annotated, Any, ClassVar, get_type_hints

from npm.core.errors import SettingError, check_range, exclusive, missing, put_under
from npm.core.settings import Bounds, CheckedSettings, PathText, as_json, settings_given


class EditName(Enum):
    """What is done to a checkpoint."""

    reverse_layers = "reverse_layers"  # the last layer first
    keep_layers = "keep_layers"  # some of the layers, in an order of their own
    reinitialise = "reinitialise"  # tensors of a scope are drawn anew, by a scheme
    permute_rows = "permute_rows"  # word vectors change places among tokens of letters
    swap_embeddings = "swap_embeddings"  # tokenizer and word vectors of a donor
    new_vocabulary = "new_vocabulary"  # another tokenizer, with word vectors drawn anew
    average = "average"  # of its tensors and those of a donor
    untie = "untie"  # the masked-token head gets an output matrix of its own


class Scope(Enum):
    """Tensors by what they are for."""

    word_embeddings = "word_embeddings"
    position_embeddings = "position_embeddings"
    token_type_embeddings = "token_type_embeddings"
    embedding_norm = "embedding_norm"
    layers = "layers"
    attention = "attention"  # query, key, value and output, without norms
    feed_forward = "feed_forward"  # without norms
    norms = "norms"  # all but the head's
    head = "head"  # transform and bias of the masked-token head
    all = "all"  # a matrix that stands in two places once


class Scheme(Enum):
    """How a tensor is drawn anew."""

    default = "default"  # as a newly made model of this config has it
    match_norm = "match_norm"  # normal numbers with the norm of the old matrix
    match_std = "match_std"  # normal numbers with the standard deviation of the old matrix
    permute_elements = "permute_elements"  # the old numbers in random order


class LayerChoice(Enum):
    """Layers by a rule."""

    listed = "listed"  # those of `layers`
    first_half = "first_half"
    every_second = "every_second"  # the first one, the third one, …


READS: dict[EditName, tuple[str, ...]] = {
    EditName.reverse_layers: ("force",),
    EditName.keep_layers: ("layers", "keep", "force"),
    EditName.reinitialise: ("scope", "layers", "scheme", "keep_mean", "matrices_only"),
    EditName.permute_rows: ("filter", "others"),
    EditName.swap_embeddings: ("donor",),
    EditName.new_vocabulary: ("tokenizer",),
    EditName.average: ("donor", "fraction"),
    EditName.untie: (),
}
"""What each edit has a use for."""
NEEDED = {
    EditName.reinitialise: "scope",
    EditName.swap_embeddings: "donor",
    EditName.average: "donor",
    EditName.new_vocabulary: "tokenizer",
}
"""The setting without which an edit says nothing."""
IN_LAYERS = (Scope.layers, Scope.attention, Scope.feed_forward, Scope.norms)
"""Scopes of which `layers` takes a part."""


@dataclass(kw_only=True, slots=True)
class EditStep(CheckedSettings):
    """One edit."""

    name: EditName | None = None
    """Which edit."""
    layers: Annotated[list[int], Bounds(0)] = field(default_factory=list)
    """Layers by number, from 0: those that are kept, in this order; or those that `reinitialise` draws, empty: all."""
    keep: LayerChoice = LayerChoice.listed
    """Which layers `keep_layers` keeps."""
    force: bool = False
    """Move layers of a family whose layers differ too: a norm that a place lacks is dropped, one it needs is 1."""
    scope: Scope | None = None
    """Which tensors `reinitialise` draws."""
    scheme: Scheme = Scheme.default
    """How it draws them."""
    keep_mean: bool = False
    """With `match_std`: add the mean of the old matrix."""
    matrices_only: bool = False
    """With `permute_elements`: leave biases and norms as they are."""
    filter: str = ""
    """Regular expression of the tokens whose rows change places; empty: those of Latin letters alone."""
    others: bool = False
    """Whether the rows of all other tokens change places among each other too; special tokens never do."""
    donor: PathText = ""
    """Encoder whose tokenizer and word vectors are taken, or whose tensors are averaged with."""
    fraction: Annotated[float, Bounds(above=0, most=1)] = 0.5
    """Weight of the donor's tensors in an average; the encoder's own have the rest."""
    tokenizer: PathText = ""
    """Folder or name of the tokenizer that is taken."""

    def check(self) -> None:
        """Raise SettingError for an edit that is not named, lacks what it needs, or has no use for what is set."""
        names = ", ".join(EditName.__members__)
        check_range(self.name is not None, "name", expected=f"one of {names}", got="nothing", fix="name the edit")
        assert self.name is not None, "checked"
        usual = {item.name: item.default for item in fields(EditStep)} | {"layers": []}
        changed = [key for key, value in usual.items() if key != "name" and getattr(self, key) != value]
        unused = [key for key in changed if key not in READS[self.name]]
        is_drawn = self.name is EditName.reinitialise
        if is_drawn and self.layers and self.scope not in IN_LAYERS:
            unused.append("layers")
        if is_drawn and self.keep_mean and self.scheme is not Scheme.match_std:
            unused.append("keep_mean")
        if is_drawn and self.matrices_only and self.scheme is not Scheme.permute_elements:
            unused.append("matrices_only")
        if self.name is EditName.keep_layers and bool(self.layers) is not (self.keep is LayerChoice.listed):
            raise SettingError(
                "keep_layers needs one choice of layers",
                expected="layers=[0,1,…], or keep=first_half or every_second",
                got=f"layers={self.layers} and keep={self.keep.value}",
                where="layers, keep",
                fix="give one of the two",
            )
        needed = NEEDED.get(self.name)
        if needed is not None and needed not in changed:
            choices = ", ".join(Scope.__members__) if needed == "scope" else "a folder or name"
            check_range(False, needed, expected=f"{choices}, for {self.name.value}", got="nothing", fix="give it")
        if unused:
            raise SettingError(
                f"the edit {self.name.value} has no use for {', '.join(unused)}",
                expected=", ".join(READS[self.name]) or "nothing besides its name",
                got=", ".join(f"{key}={self.record()[key]}" for key in unused),
                where=", ".join(unused),
                fix="leave it out",
            )
        try:
            re.compile(self.filter)
        except re.error as error:
            check_range(False, "filter", expected="a regular expression", got=f"{self.filter}: {error}")

    def record(self) -> dict[str, Any]:
        """What of it is not the default, as JSON."""
        usual = {item.name: item.default for item in fields(EditStep)} | {"layers": []}
        return {key: value for key, value in as_json(asdict(self)).items() if getattr(self, key) != usual[key]}


@dataclass(kw_only=True, slots=True)
class EditSettings(CheckedSettings):
    """Edits of an encoder."""

    given: ClassVar[frozenset[str]] = frozenset()
    """Keys that the command line gave."""
    encoder: PathText = ""
    """The encoder that is edited, of the family of BERT, RoBERTa, XLM-R or ModernBERT; empty: the shipped one."""
    out: PathText = ""
    """Folder for the edited encoder, which is not there yet. Required."""
    edits: list[dict[str, Any]] = field(default_factory=list)
    """The edits, in order, such as [{name: keep_layers, layers: [0,1]}, {name: reinitialise, scope: head}], where
    edit=NAME does not say them; docs/studies.md lists them."""
    donor: PathText = ""
    """Donor of an edit swap_embeddings or average that names none."""
    tokenizer: PathText = ""
    """Folder or name of the tokenizer that an edit new_vocabulary takes that names none."""
    seed: Annotated[int, Bounds(0)] = 0
    """Seed of all that is drawn."""

    def steps(self) -> list[EditStep]:
        """The edits, checked. Raises SettingError for what cannot be read, both edit= and edits=, or neither."""
        if not self.edits:
            raise missing("edit or edits", "edit=NAME; npmlm edit --help lists them")
        if {"edit", "edits"} <= self.given:
            raise exclusive("edit", "edits")
        steps = []
        unused = {name for name in ("donor", "tokenizer") if getattr(self, name)}
        for number, given in enumerate(self.edits):
            needed = NEEDED.get(EditName.__members__.get(str(given.get("name")), EditName.untie), "")
            if needed in unused and needed not in given:
                given = given | {needed: getattr(self, needed)}
                unused -= {needed}
            try:
                steps.append(settings_given(EditStep, given))
            except SettingError as error:
                put_under(error, f"edits[{number}].", get_type_hints(EditStep))
                raise
        for name in sorted(unused):
            raise SettingError(
                f"no edit takes {name}={getattr(self, name)}: "
                f"it is for a {'swap_embeddings or average' if name == 'donor' else 'new_vocabulary'} without one"
            )
        return steps
