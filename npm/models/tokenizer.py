"""Tokenizers as tokenizer.json defines them, and their special tokens as named by the files next to it.

Indexes, queries and fingerprints use the library `tokenizers` alone, whose import takes a fraction of that of
`transformers`; training gets a tokenizer of `transformers` around the same definition, so both have the same ids.

Those of bytes have the 256 bytes as tokens: no word of any script is unknown to them, and the bytes of one character
share its offsets (Xue et al. 2022, ByT5, arXiv 2105.13626, §3).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npm.core.errors import EncoderError
from npm.models.names import BYTES, TOKENIZER, read_json_object
from npm.models.stored import encoder_errors, quiet_transformers

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

ROLES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
PASSED_ON = ("model_max_length", "clean_up_tokenization_spaces")
"""Keys of tokenizer_config.json that a tokenizer of `transformers` keeps; no id depends on them."""
BYTE_COUNT = 256
BYT5_SENTINELS = 125


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
        **_: Any,
    ) -> dict[str, Any]:
        """`input_ids` of a text or of several, and on request `offset_mapping` (start, end) in characters.

        Further options of `transformers` are accepted and ignored: there are never attention masks or warnings.
        """
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

    tokenizer.json counts unchanged, for any class that the folder names. A folder without one, or that names no special
    tokens, is converted by `transformers`. Raises EncoderError for a folder without a usable tokenizer.
    """
    if place == BYTES:
        return byte_tokenizer()
    folder = Path(place)
    with encoder_errors(place, "the tokenizer"):
        paths = [folder / name for name in ("special_tokens_map.json", "tokenizer_config.json")]
        about = {key: value for path in paths if path.exists() for key, value in read_json_object(path).items()}
        if about.get("tokenizer_class") == "ByT5Tokenizer":
            return byt5_tokenizer()  # the same ids, with offsets, which the class of that name does not give
        roles = {role: _content(about[role]) for role in ROLES if about.get(role) is not None}
        if not roles or not (folder / TOKENIZER).is_file():
            from transformers import AutoTokenizer

            with quiet_transformers():
                found: Any = AutoTokenizer.from_pretrained(place, trust_remote_code=False, local_files_only=True)
            if not found.is_fast:
                kind = type(found).__name__
                raise EncoderError(f"{place}: {kind} keeps no character offsets; convert it to a tokenizer.json")
            converted: PreTrainedTokenizerFast = found
            return converted
        from tokenizers import Tokenizer

        backend = Tokenizer.from_file(str(folder / TOKENIZER))
        backend.no_truncation()
        backend.no_padding()
        listed = about.get("extra_special_tokens") or about.get("additional_special_tokens") or []
        others = [_content(token) for token in (listed.values() if isinstance(listed, dict) else listed)]
        known = {token.content for token in backend.get_added_tokens_decoder().values()}
        _add_special(backend, [token for token in (*roles.values(), *others) if token not in known])
        if plain:
            reading: Any = PlainTokenizer(backend, roles, others, name_or_path=place)
            return reading
        kept = {key: about[key] for key in PASSED_ON if key in about}
        return _fast(backend, name_or_path=place, extra_special_tokens=others, **roles, **kept)


def _content(token: Any) -> str:
    """Text of a special token, which files have as a string or as an object with flags."""
    return str(token["content"] if isinstance(token, dict) else token)


def _add_special(backend: Tokenizer, tokens: Sequence[str]) -> None:
    from tokenizers import AddedToken

    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in tokens])


def _fast(backend: Tokenizer, **options: Any) -> PreTrainedTokenizerFast:
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(tokenizer_object=backend, **options)


def redefined(
    tokenizer: PreTrainedTokenizerFast, definition: str, around: tuple[Sequence[str], Sequence[str]], **roles: Any
) -> PreTrainedTokenizerFast:
    """Tokenizer of a changed JSON `definition` that puts the special tokens `around` before and after a text.

    Its special tokens are those of `tokenizer`, or those given as `roles`.
    """
    backend = type(tokenizer.backend_tokenizer).from_str(definition)
    _frame(backend, *around)
    named = roles or {role: token for role in ROLES if (token := getattr(tokenizer, role)) is not None}
    return _fast(backend, name_or_path=tokenizer.name_or_path, model_max_length=tokenizer.model_max_length, **named)


def _frame(backend: Tokenizer, before: Sequence[str], after: Sequence[str]) -> None:
    """Put special tokens before and after each text."""
    from tokenizers.processors import TemplateProcessing

    backend.post_processor = TemplateProcessing(
        [*before, "$A", *after],
        [*before, "$A", *after, "$B:1", *(f"{token}:1" for token in after)],
        special_tokens=[(token, backend.token_to_id(token)) for token in dict.fromkeys([*before, *after])],
    )


def special_id(tokenizer: PreTrainedTokenizerFast, role: str) -> int:
    """Id of the special token with a role such as `mask_token`. Raises EncoderError if there is none."""
    token_id: int | None = getattr(tokenizer, f"{role}_id", None)
    if token_id is None:
        raise EncoderError(
            f"the tokenizer of {tokenizer.name_or_path} has no {role.replace('_', ' ')}; choose another encoder"
        )
    return token_id


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


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """The special tokens of a masked language model, ids 0 to 4, then the bytes: 261 tokens."""
    roles = {f"{role}_token": f"[{role.upper()}]" for role in ("pad", "unk", "cls", "sep", "mask")}
    backend = _byte_backend(list(roles.values()), [])
    _frame(backend, [roles["cls_token"]], [roles["sep_token"]])
    return _fast(backend, **roles)


def byt5_tokenizer() -> PreTrainedTokenizerFast:
    """The tokenizer of published ByT5 weights with offsets: pad, end, unknown, the bytes, 125 sentinels: 384 tokens.

    A mask is the first sentinel; a text is followed by its end.
    """
    pad, end, unk = "<pad>", "</s>", "<unk>"
    sentinels = [f"<extra_id_{number}>" for number in range(BYT5_SENTINELS)]
    backend = _byte_backend([pad, end, unk], sentinels)
    _frame(backend, [], [end])
    roles = {"pad_token": pad, "eos_token": end, "sep_token": end, "unk_token": unk, "mask_token": sentinels[0]}
    return _fast(backend, extra_special_tokens=sentinels, **roles)


def _byte_backend(first: list[str], last: list[str]) -> Tokenizer:
    """Tokenizer of special tokens, the bytes in their order, and more special tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    symbols = bytes_to_unicode()  # the character of each byte in a byte-level vocabulary
    pieces = [*first, *(symbols[byte] for byte in range(BYTE_COUNT)), *last]
    backend = Tokenizer(models.BPE(vocab={piece: number for number, piece in enumerate(pieces)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    _add_special(backend, [*first, *last])
    return backend


def spells_bytes(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Return True if the tokens of a fast tokenizer are single bytes."""
    if len(tokenizer) > 2 * BYTE_COUNT:  # known without reading the vocabulary
        return False
    model = json.loads(tokenizer.backend_tokenizer.to_str())["model"]
    return model["type"] == "BPE" and not model["merges"]
