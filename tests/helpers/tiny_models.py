"""Tiny random encoders with tokenizers trained on a few sentences, one of each family that must work."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, processors
from tokenizers import decoders as token_decoders
from transformers import (
    BertConfig,
    BertForQuestionAnswering,
    BertModel,
    ByT5Tokenizer,
    ModernBertConfig,
    ModernBertModel,
    MT5Config,
    MT5ForConditionalGeneration,
    PreTrainedTokenizerFast,
    RobertaConfig,
    RobertaForQuestionAnswering,
    RobertaModel,
    T5Config,
    T5ForConditionalGeneration,
    XLMRobertaConfig,
    XLMRobertaModel,
)

from npm.models.encoder import Encoder

FAMILIES = ("bert", "roberta", "modernbert")
WORDPIECE_SPECIALS = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
BYTE_BPE_SPECIALS = {"cls": "<s>", "pad": "<pad>", "sep": "</s>", "unk": "<unk>", "mask": "<mask>"}

SENTENCES = (
    "Reykjavík is the capital of Iceland. It lies on the coast of Faxaflói.",
    "Paris is the capital of France, and the Seine flows through Paris.",
    "The Bank of America was founded in San Francisco. Its founder was Amadeo Giannini.",
    "Hydrogen is the lightest element; its symbol is H and its atomic number is 1.",
    "Łódź and Kraków are cities in Poland. São Paulo is a city in Brazil.",
    "The river Rhine rises in Switzerland and flows to the North Sea in the Netherlands.",
    "Don Quixote was written by Miguel de Cervantes. It appeared in 1605 in Madrid.",
    "Norway's capital, Oslo, lies at the end of the Oslofjord.",
)


def tiny_encoder(
    family: str,
    *,
    sentences: Sequence[str] = SENTENCES,
    seed: int = 0,
    dimensions: int = 32,
    max_positions: int = 128,
    **config: Any,
) -> Encoder:
    """A random two-layer encoder in float32 on the CPU; its tokenizer knows the characters of `sentences`.

    `bert` is uncased WordPiece and strips accents, `roberta` and `modernbert` are cased byte-level BPE, `xlm-roberta`
    has pieces of SentencePiece.
    `config` holds further fields of the Hugging Face config, such as dropouts.
    """
    tokenizer_of = {"bert": wordpiece_tokenizer, "xlm-roberta": sentencepiece_tokenizer}.get(family, byte_bpe_tokenizer)
    tokenizer = tokenizer_of(sentences)
    torch.manual_seed(seed)
    sizes: dict[str, Any] = {
        "vocab_size": len(tokenizer),
        "hidden_size": dimensions,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 2 * dimensions,
        "pad_token_id": tokenizer.pad_token_id,
        **config,
    }
    if family == "bert":
        model = BertModel(BertConfig(max_position_embeddings=max_positions, **sizes), add_pooling_layer=False)
    elif family in ("roberta", "xlm-roberta"):
        sizes["max_position_embeddings"] = max_positions + tokenizer.pad_token_id + 1
        if family == "roberta":
            model = RobertaModel(RobertaConfig(**sizes), add_pooling_layer=False)
        else:
            model = XLMRobertaModel(XLMRobertaConfig(**sizes), add_pooling_layer=False)
    else:
        ids = {
            "cls_token_id": tokenizer.cls_token_id,
            "sep_token_id": tokenizer.sep_token_id,
            "bos_token_id": tokenizer.cls_token_id,
            "eos_token_id": tokenizer.sep_token_id,
        }
        model = ModernBertModel(ModernBertConfig(max_position_embeddings=max_positions, **sizes, **ids))
    return Encoder(model.eval(), tokenizer, name=f"tiny-{family}", similarity_scale=0.3)


def tiny_span_head(family: str, folder: Path, *, max_positions: int = 64) -> str:
    """A random model of `bert` or `roberta` with a head for answers, saved in `folder` by transformers."""
    tokenizer = {"bert": wordpiece_tokenizer, "roberta": byte_bpe_tokenizer}[family]()
    config_class, model_class = {
        "bert": (BertConfig, BertForQuestionAnswering),
        "roberta": (RobertaConfig, RobertaForQuestionAnswering),
    }[family]
    torch.manual_seed(0)
    config = config_class(
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        pad_token_id=tokenizer.pad_token_id,
        max_position_embeddings=max_positions,
        initializer_range=0.5,
    )
    model_class(config).eval().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def wordpiece_tokenizer(sentences: Sequence[str] = SENTENCES, *, vocabulary_size: int = 320) -> PreTrainedTokenizerFast:
    """An uncased WordPiece tokenizer like BERT's."""
    letters = [chr(code) for code in range(33, 127)]
    backend = Tokenizer(models.WordPiece(unk_token=WORDPIECE_SPECIALS["unk"]))
    backend.normalizer = normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = token_decoders.WordPiece()
    words = {word: (word[0], *(f"##{letter}" for letter in word[1:])) for word in _words(backend, sentences)}
    known = [*WORDPIECE_SPECIALS.values(), *letters, *_beyond(letters, words.values())]
    counts = Counter(words[word] for word in _words(backend, sentences))
    known += [_joined(pair) for pair in known_merges(tuple(counts.items()), tuple(known), vocabulary_size)]
    backend.model = models.WordPiece(vocab=_ids(known), unk_token=WORDPIECE_SPECIALS["unk"])
    return _finished(backend, WORDPIECE_SPECIALS)


def byte_bpe_tokenizer(sentences: Sequence[str] = SENTENCES, *, vocabulary_size: int = 420) -> PreTrainedTokenizerFast:
    """A cased byte-level BPE tokenizer like RoBERTa's, whose mask takes the space before it."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = token_decoders.ByteLevel()
    known = [*BYTE_BPE_SPECIALS.values(), *sorted(pre_tokenizers.ByteLevel.alphabet())]
    counts = Counter(map(tuple, _words(backend, sentences)))
    merges = known_merges(tuple(counts.items()), tuple(known), vocabulary_size)
    backend.model = models.BPE(vocab=_ids([*known, *map(_joined, merges)]), merges=merges)
    return _finished(backend, BYTE_BPE_SPECIALS)


def sentencepiece_tokenizer(sentences: Sequence[str] = SENTENCES) -> PreTrainedTokenizerFast:
    """A cased unigram tokenizer like those of XLM-R and mT5: three words of four are whole."""
    specials = dict(sorted(BYTE_BPE_SPECIALS.items(), key=lambda item: item[0] == "mask"))
    backend = Tokenizer(models.Unigram())
    backend.normalizer = normalizers.NFKC()
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = token_decoders.Metaspace()
    words = sorted(set(_words(backend, sentences)))
    letters = sorted(({letter for word in words for letter in word} | set(map(chr, range(33, 127)))) - {*words})
    pieces = [*((piece, 0.0) for piece in specials.values()), *((word, -5.0) for n, word in enumerate(words) if n % 4)]
    backend.model = models.Unigram([*pieces, *((letter, -10.0) for letter in letters)], unk_id=3)
    return _finished(backend, specials)


@cache
def known_merges(
    word_counts: tuple[tuple[tuple[str, ...], int], ...], known: tuple[str, ...], vocabulary_size: int
) -> list[tuple[str, str]]:
    """What `merges_of` makes, made once: most tests make an encoder, and nearly all of the same sentences."""
    return merges_of(dict(word_counts), known, vocabulary_size)


def merges_of(
    word_counts: Mapping[tuple[str, ...], int], known: Sequence[str], vocabulary_size: int
) -> list[tuple[str, str]]:
    """Merges of byte-pair encoding until there are `vocabulary_size` pieces with the `known` ones; older pieces first.

    The trainers of `tokenizers` number some pieces, and so break ties, differently in each process.
    """
    words = dict(word_counts)
    ids = _ids(known)
    merges: list[tuple[str, str]] = []
    while len(ids) < vocabulary_size:
        pairs: Counter[tuple[str, str]] = Counter()
        for word, times in words.items():
            for pair in pairwise(word):
                pairs[pair] += times
        if not pairs:
            break
        best = min(pairs, key=lambda pair: (-pairs[pair], ids[pair[0]], ids[pair[1]]))
        merges.append(best)
        ids.setdefault(_joined(best), len(ids))
        words = {_merged(word, best): times for word, times in words.items()}
    return merges


def _merged(word: tuple[str, ...], pair: tuple[str, str]) -> tuple[str, ...]:
    pieces: list[str] = []
    for piece in word:
        if pieces and (pieces[-1], piece) == pair:
            pieces[-1] = _joined(pair)
        else:
            pieces.append(piece)
    return tuple(pieces)


def _joined(pair: tuple[str, str]) -> str:
    return pair[0] + pair[1].removeprefix("##")


def _words(backend: Tokenizer, sentences: Sequence[str]) -> list[str]:
    """What the pre-tokenizer makes of the sentences, in their order."""
    assert backend.pre_tokenizer is not None
    normal = sentences if backend.normalizer is None else map(backend.normalizer.normalize_str, sentences)
    return [word for sentence in normal for word, _ in backend.pre_tokenizer.pre_tokenize_str(sentence)]


def _beyond(letters: Sequence[str], words: Iterable[tuple[str, ...]]) -> list[str]:
    """The first pieces of words that `letters` lacks."""
    return sorted({piece for word in words for piece in word} - set(letters))


def _ids(pieces: Sequence[str]) -> dict[str, int]:
    return {piece: position for position, piece in enumerate(dict.fromkeys(pieces))}


def _finished(backend: Tokenizer, specials: dict[str, str]) -> PreTrainedTokenizerFast:
    mask = AddedToken(
        specials["mask"], lstrip=specials["mask"] == BYTE_BPE_SPECIALS["mask"], special=True, normalized=False
    )
    others = [AddedToken(token, special=True, normalized=False) for role, token in specials.items() if role != "mask"]
    backend.add_special_tokens([*others, mask])
    cls, sep = specials["cls"], specials["sep"]
    backend.post_processor = processors.TemplateProcessing(
        single=f"{cls} $A {sep}",
        pair=f"{cls} $A {sep} $B {sep}",
        special_tokens=[(cls, backend.token_to_id(cls)), (sep, backend.token_to_id(sep))],
    )
    named = {f"{role}_token": token for role, token in specials.items() if role != "mask"}
    return PreTrainedTokenizerFast(tokenizer_object=backend, mask_token=mask, model_max_length=512, **named)


def tiny_byt5(folder: Path) -> None:
    """A random T5 of ByT5's form, saved in `folder` with the files of ByT5's own tokenizer."""
    config = T5Config(
        vocab_size=384, d_model=16, d_kv=8, d_ff=32, num_layers=2, num_decoder_layers=1, num_heads=2,
        feed_forward_proj="gated-gelu", tie_word_embeddings=False, pad_token_id=0, eos_token_id=1,
    )  # fmt: skip
    torch.manual_seed(0)
    T5ForConditionalGeneration(config).save_pretrained(folder)
    ByT5Tokenizer().save_pretrained(folder)


def tiny_mt5(folder: Path, *, sentinels: int = 32) -> None:
    """A random mT5 with pieces of SentencePiece and sentinels, saved in `folder`."""
    tokenizer = sentencepiece_tokenizer()
    names = {"extra_special_tokens": [f"<extra_id_{number}>" for number in range(sentinels)]}
    tokenizer.add_special_tokens(names)
    end, pad = tokenizer.sep_token_id, tokenizer.pad_token_id
    plain = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer.backend_tokenizer, eos_token="</s>", pad_token="<pad>", unk_token="<unk>", **names
    )
    plain.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", end)]
    )
    config = MT5Config(
        vocab_size=len(plain), d_model=16, d_kv=8, d_ff=32, num_layers=1, num_decoder_layers=1, num_heads=2,
        tie_word_embeddings=False, pad_token_id=pad, eos_token_id=end, decoder_start_token_id=pad,
    )  # fmt: skip
    torch.manual_seed(0)
    MT5ForConditionalGeneration(config).save_pretrained(folder)
    plain.save_pretrained(folder)
