"""Tokenizers as tokenizer.json defines them, and their special tokens as the files next to it name them.

Indexes, queries and fingerprints use the library `tokenizers` alone, whose import takes a fraction of that of
`transformers`; training gets a tokenizer of `transformers` around the same definition, so both have the same ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npm.core.errors import EncoderError
from npm.models.byte_tokenizer import byt5_tokenizer, byte_tokenizer
from npm.models.library_errors import encoder_errors, quiet_transformers
from npm.models.names import BYTES, TOKENIZER, read_json_object

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

ROLES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
PASSED_ON = ("model_max_length", "clean_up_tokenization_spaces")
"""Keys of tokenizer_config.json that a tokenizer of `transformers` keeps; no id depends on them."""


class PlainTokenizer:
    """The part of the interface of `transformers` that indexes and queries need; never truncates, never pads."""

    is_fast = True

    def __init__(self, backend: Tokenizer, roles: dict[str, str], others: Sequence[str], *, name_or_path: str) -> None:
        """`roles` are special tokens such as `mask_token`, `others` those without a role."""
        self.backend_tokenizer = backend
        self.name_or_path = name_or_path
        ids = {role: backend.token_to_id(roles[role]) if role in roles else None for role in ROLES}
        self.unk_token_id, self.pad_token_id, self.mask_token_id = (
            ids[role] for role in ("unk_token", "pad_token", "mask_token")
        )
        special = [*(roles[role] for role in ROLES if role in roles), *others]
        self.all_special_ids = list(dict.fromkeys(backend.token_to_id(token) for token in special))

    def __len__(self) -> int:
        """Size of the vocabulary, added tokens included."""
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
        """`input_ids` of a text or of several, and on request `offset_mapping` (start, end) in characters.

        The last two options only match calls of `transformers`: there are never attention masks or remarks.
        """
        assert not return_attention_mask and not verbose
        self.backend_tokenizer.encode_special_tokens = split_special_tokens
        texts = [text] if isinstance(text, str) else list(text)
        found = self.backend_tokenizer.encode_batch(texts, add_special_tokens=add_special_tokens)
        values: dict[str, list[Any]] = {"input_ids": [encoding.ids for encoding in found]}
        if return_offsets_mapping:
            values["offset_mapping"] = [encoding.offsets for encoding in found]
        return {name: of_texts[0] if isinstance(text, str) else of_texts for name, of_texts in values.items()}

    def get_vocab(self) -> dict[str, int]:
        """Id of each token, added tokens included."""
        return self.backend_tokenizer.get_vocab(with_added_tokens=True)

    def num_special_tokens_to_add(self) -> int:
        """Number of special tokens around a text."""
        return self.backend_tokenizer.num_special_tokens_to_add(is_pair=False)


def load_tokenizer(place: str, *, plain: bool = False) -> PreTrainedTokenizerFast:
    """Tokenizer of a folder, or of `bytes`; with `plain` a PlainTokenizer where its files suffice for one.

    tokenizer.json counts as it is, whatever class the folder names. A folder without one, or that names no special
    tokens, is converted by `transformers`. Raises EncoderError for a folder without a usable tokenizer.
    """
    if place == BYTES:
        return byte_tokenizer()
    with encoder_errors(place, "the tokenizer"):
        return _of_folder(Path(place), plain=plain)


def _of_folder(folder: Path, *, plain: bool) -> PreTrainedTokenizerFast:
    """Tokenizer of a folder, as `load_tokenizer` describes it."""
    place = str(folder)
    paths = [folder / name for name in ("special_tokens_map.json", "tokenizer_config.json")]
    about = {key: value for path in paths if path.exists() for key, value in read_json_object(path).items()}
    if about.get("tokenizer_class") == "ByT5Tokenizer":
        return byt5_tokenizer()  # the same ids, with offsets, which the class of that name has not
    roles = {role: _content(about[role]) for role in ROLES if about.get(role) is not None}
    if not roles or not (folder / TOKENIZER).is_file():
        return converted_tokenizer(place)
    from tokenizers import AddedToken, Tokenizer

    backend = Tokenizer.from_file(str(folder / TOKENIZER))
    ids = backend.get_vocab().values()
    if len(set(ids)) < len(ids):
        raise EncoderError(f"{place}: two tokens of {TOKENIZER} have one id; export the tokenizer again")
    if "mask_token" in roles and roles["mask_token"] == roles.get("pad_token"):
        raise EncoderError(f"{place}: mask_token and pad_token are one token; correct tokenizer_config.json")
    backend.no_truncation()
    backend.no_padding()
    listed = about.get("extra_special_tokens") or about.get("additional_special_tokens") or []
    others = [_content(token) for token in (listed.values() if isinstance(listed, dict) else listed)]
    special = {**roles, **{f"special token {number}": token for number, token in enumerate(others)}}
    for role, token in special.items():
        if backend.token_to_id(token) is None:
            raise EncoderError(f"{place}: the {role} {token!r} is not in {TOKENIZER}; correct tokenizer_config.json")
    known = {token.content for token in backend.get_added_tokens_decoder().values()}
    backend.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in special.values() if token not in known]
    )
    if plain:
        reading: Any = PlainTokenizer(backend, roles, others, name_or_path=place)
        return reading
    from transformers import PreTrainedTokenizerFast

    kept = {key: about[key] for key in PASSED_ON if key in about}
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, name_or_path=place, extra_special_tokens=others, **roles, **kept
    )


def _content(token: Any) -> str:
    """Text of a special token, which files have as a string or as an object with flags."""
    return str(token["content"] if isinstance(token, dict) else token)


def converted_tokenizer(place: str) -> PreTrainedTokenizerFast:
    """Fast tokenizer as `transformers` makes it of the class and files of a folder."""
    from transformers import AutoTokenizer

    with quiet_transformers():
        tokenizer: Any = AutoTokenizer.from_pretrained(place, trust_remote_code=False, local_files_only=True)
    if not tokenizer.is_fast:
        raise EncoderError(
            f"{place}: {type(tokenizer).__name__} keeps no character offsets; convert it to a tokenizer.json"
        )
    if len(tokenizer) <= len(tokenizer.all_special_ids):  # transformers makes this of a folder without vocabulary
        raise EncoderError(f"{place}: the tokenizer has {len(tokenizer)} special tokens only; add its tokenizer.json")
    fast: PreTrainedTokenizerFast = tokenizer
    return fast


def redefined(
    tokenizer: PreTrainedTokenizerFast, definition: str, around: tuple[Sequence[str], Sequence[str]], **roles: Any
) -> PreTrainedTokenizerFast:
    """Tokenizer of a changed JSON `definition` that puts the special tokens `around` before and after a text.

    Its special tokens are those of `tokenizer`, or those given as `roles`.
    """
    from tokenizers.processors import TemplateProcessing
    from transformers import PreTrainedTokenizerFast as Fast

    backend = type(tokenizer.backend_tokenizer).from_str(definition)
    before, after = around
    backend.post_processor = TemplateProcessing(
        [*before, "$A", *after],
        [*before, "$A", *after, "$B:1", *(f"{token}:1" for token in after)],
        special_tokens=[(token, backend.token_to_id(token)) for token in dict.fromkeys([*before, *after])],
    )
    named = roles or {role: token for role in ROLES if (token := getattr(tokenizer, role)) is not None}
    made = Fast(tokenizer_object=backend, model_max_length=tokenizer.model_max_length, **named)
    made.name_or_path = tokenizer.name_or_path
    return made


def special_ids_around(tokenizer: PreTrainedTokenizerFast) -> tuple[list[int], list[int]]:
    """Special token ids that the tokenizer puts before and after a single text."""
    plain = tokenizer("a", add_special_tokens=False)["input_ids"]
    framed = tokenizer("a", add_special_tokens=True)["input_ids"]
    for start in range(len(framed) - len(plain) + 1):
        if plain and framed[start : start + len(plain)] == plain:
            return list(framed[:start]), list(framed[start + len(plain) :])
    raise EncoderError(
        f"{tokenizer.name_or_path}: the tokenizer changes a text when it adds special tokens; set another encoder"
    )
