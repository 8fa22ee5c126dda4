"""The tokenizer of a BERT for reading, over the library `tokenizers` alone: without the import of `transformers`.

What `transformers` makes of a folder is not always what tokenizer.json says: of a BertTokenizer it takes the
vocabulary and builds the rest anew from tokenizer_config.json, and it adds tokens that other files name. Read here is
a folder only where both are the same, and nothing in it is unusual; all others are left to `transformers`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any

from npm.models.folders import read_json_object

if TYPE_CHECKING:
    from tokenizers import Tokenizer

ROLES = ("unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
REBUILT_CLASSES = ("BertTokenizer", "BertTokenizerFast")
"""Of these `transformers` takes the vocabulary alone out of tokenizer.json."""
READ_CLASSES = ("PreTrainedTokenizerFast", "TokenizersBackend")
"""With these it takes tokenizer.json as it stands."""
FOREIGN_FILES = {"added_tokens.json", "chat_template.jinja", "additional_chat_templates", "processor_config.json"}
"""Files that say more of a tokenizer."""
NORMALIZER_KEYS = {"do_lower_case": "lowercase", "strip_accents": "strip_accents"} | {
    "tokenize_chinese_chars": "handle_chinese_chars"
}
NORMALIZER_DEFAULTS = {"do_lower_case": True, "strip_accents": None, "tokenize_chinese_chars": True}
HARMLESS: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("is_local", "local_files_only", "do_basic_tokenize", "clean_up_tokenization_spaces"), (bool,)),
    **dict.fromkeys(("name_or_path", "truncation_strategy"), (str,)),
    **dict.fromkeys(("max_length", "pad_to_multiple_of"), (int, NoneType)),
    **dict.fromkeys(("stride", "pad_token_type_id"), (int,)),
    **dict.fromkeys(NORMALIZER_KEYS, (bool, NoneType)),  # counted by themselves where they are not
    "never_split": (NoneType,),
    "special_tokens_map_file": (str, NoneType),
}
"""Keys of tokenizer_config.json on which no id and no offset depends: settings of calls that are made otherwise."""
CHOICES: dict[str, tuple[Any, ...]] = {
    "backend": ("tokenizers",),
    "tokenizer_class": (*REBUILT_CLASSES, *READ_CLASSES),
    "padding_side": ("right", "left"),
    "truncation_side": ("right", "left"),
    "additional_special_tokens": (None, []),
    "extra_special_tokens": (None, [], {}),
}
LEAST_MODEL_LENGTH = 16
"""Of a shorter `model_max_length` there are warnings."""
MOST_PIECES = 100_000
"""`transformers` looks at larger vocabularies for a mistake in one of them."""
PLAIN_CONTENT = re.compile(r"[^\s:$]+")
"""A special token that can be named in a template."""
FLAGS = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False}


class PlainTokenizer:
    """What reading asks of a tokenizer of `transformers`, under the same names; it never cuts and never pads."""

    is_fast = True

    def __init__(self, backend: Tokenizer, special_ids: dict[str, int], *, name_or_path: str) -> None:
        backend.no_truncation()
        backend.no_padding()
        self.backend_tokenizer = backend
        self.name_or_path = name_or_path
        self._special_ids = special_ids

    def __len__(self) -> int:
        """How many tokens there are, those added included."""
        return self.backend_tokenizer.get_vocab_size(with_added_tokens=True)

    def __call__(
        self,
        text: str | Sequence[str],
        *,
        add_special_tokens: bool = True,
        split_special_tokens: bool = False,
        return_offsets_mapping: bool = False,
        return_attention_mask: bool = False,
        verbose: bool = False,
    ) -> dict[str, Any]:
        """The `input_ids` of a text, or of several; if asked for, their `offset_mapping` (start, end) in characters.

        The last two are there because tokenizers of `transformers` must be told; other options of theirs raise
        TypeError.
        """
        assert not return_attention_mask and not verbose, "ids alone, without remarks"
        self.backend_tokenizer.encode_special_tokens = split_special_tokens
        texts = [text] if isinstance(text, str) else list(text)
        found = self.backend_tokenizer.encode_batch(texts, add_special_tokens=add_special_tokens)
        values: dict[str, list[Any]] = {"input_ids": [encoding.ids for encoding in found]}
        if return_offsets_mapping:
            values["offset_mapping"] = [encoding.offsets for encoding in found]
        return {name: of_texts[0] if isinstance(text, str) else of_texts for name, of_texts in values.items()}

    @property
    def unk_token_id(self) -> int:
        """Of what the vocabulary has no piece for."""
        return self._special_ids["unk_token"]

    @property
    def pad_token_id(self) -> int:
        """Of padding."""
        return self._special_ids["pad_token"]

    @property
    def mask_token_id(self) -> int:
        """Of a mask."""
        return self._special_ids["mask_token"]

    @property
    def all_special_ids(self) -> list[int]:
        """Of all tokens that have a role."""
        return list(self._special_ids.values())

    def get_vocab(self) -> dict[str, int]:
        """The id of each token, those added included."""
        return self.backend_tokenizer.get_vocab(with_added_tokens=True)

    def num_special_tokens_to_add(self) -> int:
        """How many tokens are put around a text."""
        return self.backend_tokenizer.num_special_tokens_to_add(is_pair=False)


def plain_tokenizer(place: str) -> PlainTokenizer | None:
    """The tokenizer in a folder whose files were checked, if `transformers` makes the same of it; None for all others.

    That is one of the library `tokenizers` with pieces of words or whole words, the five special tokens of BERT and no
    other, CLS and SEP around a text, and nothing in the files beside it that says otherwise.
    """
    from tokenizers import Tokenizer

    folder = Path(place)
    try:
        names = {path.name for path in folder.iterdir()}
        if names & FOREIGN_FILES or not {"tokenizer.json", "tokenizer_config.json"} <= names:
            return None
        about, definition = (read_json_object(folder / name) for name in ("tokenizer_config.json", "tokenizer.json"))
        roles = {role: about.get(role) for role in ROLES}
        if not _is_usual(about, roles) or not _is_as_built(definition, about, roles):
            return None
        if "special_tokens_map.json" in names and not _repeats(
            read_json_object(folder / "special_tokens_map.json"), roles
        ):
            return None
        backend = Tokenizer.from_file(str(folder / "tokenizer.json"))
        ids = {role: definition["model"]["vocab"][token] for role, token in roles.items()}
        return PlainTokenizer(backend, ids, name_or_path=place)
    except Exception:  # whatever is wrong, `transformers` says it; `tokenizers` raises bare ones
        return None


def _same(first: Any, second: Any) -> bool:
    """Whether two values are one in JSON; to Python 1, 1.0 and True are equal."""
    return json.dumps(first, sort_keys=True) == json.dumps(second, sort_keys=True)


def _is_usual(about: dict[str, Any], roles: dict[str, Any]) -> bool:
    """Whether tokenizer_config.json names five tokens, and else says nothing that would change them."""
    for key, value in about.items():
        if key in roles:
            right = isinstance(value, str) and PLAIN_CONTENT.fullmatch(value) is not None
        elif key == "model_max_length":
            right = type(value) in (int, float) and value >= LEAST_MODEL_LENGTH
        elif key == "added_tokens_decoder":
            right = True  # compared in `_is_as_built`
        elif key in CHOICES:
            right = any(_same(value, choice) for choice in CHOICES[key])
        else:
            right = type(value) in HARMLESS.get(key, ())
        if not right:
            return False
    return "tokenizer_class" in about and len(set(roles.values())) == len(ROLES)


def _repeats(special: dict[str, Any], roles: dict[str, Any]) -> bool:
    """Whether special_tokens_map.json says what tokenizer_config.json says."""
    return all(
        key in roles and (_same(value, roles[key]) or _same(value, {"content": roles[key], **FLAGS}))
        for key, value in special.items()
    )


def _is_as_built(definition: dict[str, Any], about: dict[str, Any], roles: dict[str, Any]) -> bool:
    """Whether tokenizer.json holds what `transformers` would build of its vocabulary, or takes as it stands."""
    model = definition["model"]
    vocabulary = model["vocab"]
    ids = {role: vocabulary[token] for role, token in roles.items()}
    if any(type(number) is not int for number in vocabulary.values()) or len(set(vocabulary.values())) < len(
        vocabulary
    ):
        return False
    if not len(ROLES) < len(vocabulary) <= MOST_PIECES or model["unk_token"] != roles["unk_token"]:
        return False
    added = {str(number): {"content": roles[role], **FLAGS, "special": True} for role, number in ids.items()}
    listed = [{"id": number, **added[str(number)]} for number in sorted(ids.values())]
    if not _same(definition["added_tokens"], listed) or not _same(about.get("added_tokens_decoder", added), added):
        return False
    if (definition["truncation"] or {}).get("stride"):  # which `transformers` may refuse
        return False
    expected = _built(about, roles, ids)
    processor = definition["post_processor"]
    if about["tokenizer_class"] in READ_CLASSES:  # the pair of texts is none of ours
        around = processor | {"pair": expected["post_processor"]["pair"]}
        return model["type"] in ("WordPiece", "WordLevel") and _same(around, expected["post_processor"])
    return all(
        _same(definition[part] if part != "model" else model | {"vocab": {}}, value) for part, value in expected.items()
    )


def _built(about: dict[str, Any], roles: dict[str, Any], ids: dict[str, int]) -> dict[str, Any]:
    """What tokenizer.json says of a BertTokenizer with these settings, its vocabulary left out."""
    cls, sep = roles["cls_token"], roles["sep_token"]

    def special(token: str, number: int) -> dict[str, Any]:
        return {"SpecialToken": {"id": token, "type_id": number}}

    first, second = ({"Sequence": {"id": name, "type_id": number}} for number, name in enumerate("AB"))
    single = [special(cls, 0), first, special(sep, 0)]
    named = {roles[role]: ids[role] for role in ("cls_token", "sep_token")}
    settings = {key: about.get(key, usual) for key, usual in NORMALIZER_DEFAULTS.items()}
    normalizer = {name: settings[key] for key, name in NORMALIZER_KEYS.items()}
    word_piece = {"continuing_subword_prefix": "##", "max_input_chars_per_word": 100, "vocab": {}}
    return {
        "normalizer": {"type": "BertNormalizer", "clean_text": True, **normalizer},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": single,
            "pair": [*single, second, special(sep, 1)],
            "special_tokens": {token: {"id": token, "ids": [n], "tokens": [token]} for token, n in named.items()},
        },
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {"type": "WordPiece", "unk_token": roles["unk_token"], **word_piece},
    }
