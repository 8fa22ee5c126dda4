"""Blocks, flags and groups of blocks: by hand, and against a plain walk over tokens and a plain queue."""

from __future__ import annotations

import unicodedata
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from npm.core.errors import EncoderError
from npm.core.types import Block, Document, TokenFlag
from npm.corpus.blocks import JUDGED_TOKENS, BlockPacker, BlockSettings, SentenceTokenizer
from npm.corpus.expressions import joined_characters, marker_characters
from npm.corpus.groups import BlockGroups, GroupMixing
from npm.corpus.markup import HIDDEN, visible
from npm.corpus.store import BlockStore, write_block_store
from npm.corpus.text import is_stop_word
from tests.helpers.tiny_models import SENTENCES, tiny_encoder

TRICKY = (
    "Reykjavík (İstanbul, [MASK] <mask>) is the U.S. dog's 3.5 café-bar. Don't\x00 the\u200b river!  \n\n "
    "It is 中国人 😀 ok: हिन्दी भाषा… "
    + "unbreakable" * 9
    + "  \t end of it? THE Capital of the river is on it. e\u0301t\u00a0al"
)


def document(text: str) -> Document:
    return Document(id="d", title="", text=text)


def pack(tokenizer: PreTrainedTokenizerFast, text: str, **settings: int) -> list[Block]:
    return BlockPacker(tokenizer, BlockSettings(**settings)).pack(document(text))


def surfaces(block: Block, text: str) -> list[str]:
    return [text[start:end] for start, end in zip(block.start_chars, block.end_chars, strict=True)]


def flagged(block: Block, text: str, flag: TokenFlag) -> list[str]:
    return [surface for surface, own in zip(surfaces(block, text), block.flags, strict=True) if own & flag]


def test_flags_of_a_sentence_by_hand(wordpiece: PreTrainedTokenizerFast) -> None:
    text = "The dogs' river: it's long! A dog"
    (block,) = pack(wordpiece, text)
    assert surfaces(block, text) == ["The", "dog", "s", "'", "river", ":", "it", "'", "s", "long", "!", "A", "dog"]
    assert flagged(block, text, TokenFlag.SENTENCE_START) == ["The", "A"]
    assert flagged(block, text, TokenFlag.STOPWORD) == ["The", "it", "s", "A"]
    assert flagged(block, text, TokenFlag.PUNCTUATION) == ["'", ":", "'", "!"]
    assert flagged(block, text, TokenFlag.CLAUSE_PUNCTUATION) == [":", "!"]
    assert [bool(own & TokenFlag.WORD_START) for own in block.flags][:5] == [True, True, False, True, True]
    assert [bool(own & TokenFlag.WORD_END) for own in block.flags][:5] == [True, False, True, True, True]


def test_offsets_leave_out_the_space_that_a_byte_level_tokenizer_counts_in(byte_bpe: PreTrainedTokenizerFast) -> None:
    text = " The  river is"
    (block,) = pack(byte_bpe, text)
    words = surfaces(block, text)
    assert "".join(words) == "Theriveris"
    assert not any(word.startswith(" ") or word.endswith(" ") for word in words)


def test_pieces_of_one_character_are_one_word(byte_bpe: PreTrainedTokenizerFast) -> None:
    text = "is 中国 😀"
    (block,) = pack(byte_bpe, text)
    starts = [s for s, own in zip(surfaces(block, text), block.flags, strict=True) if own & TokenFlag.WORD_START]
    ends = [s for s, own in zip(surfaces(block, text), block.flags, strict=True) if own & TokenFlag.WORD_END]
    assert starts[1:] == ends[1:] == ["中", "国", "😀"]


@pytest.mark.parametrize("text", ["a [MASK] b", "[CLS][SEP] [PAD]", "<mask>", "<s>x</s>"])
def test_the_names_of_special_tokens_are_ordinary_text(
    text: str, wordpiece: PreTrainedTokenizerFast, byte_bpe: PreTrainedTokenizerFast
) -> None:
    for tokenizer in (wordpiece, byte_bpe):
        (block,) = pack(tokenizer, text)
        assert not set(block.token_ids.tolist()) & (set(tokenizer.all_special_ids) - {tokenizer.unk_token_id})
        assert "".join(surfaces(block, text)) == text.replace(" ", "")


def test_truncation_and_padding_set_on_the_tokenizer_do_not_reach_the_blocks(
    wordpiece: PreTrainedTokenizerFast,
) -> None:
    packer = BlockPacker(wordpiece, BlockSettings())
    wordpiece(["a"], truncation=True, max_length=3, padding="max_length")
    assert [len(b.token_ids) for b in BlockPacker(wordpiece, BlockSettings()).pack(document("the dog " * 9))] == [18]
    assert BlockPacker(wordpiece, BlockSettings()).tokenizer_fingerprint == packer.tokenizer_fingerprint


def character_kind(character: str) -> str:
    category = unicodedata.category(character)
    if category[0] == "L" and any(script in unicodedata.name(character, "") for script in ("CJK", "HIRAGANA", "THAI")):
        return "alone"
    if character == "\u200b":
        return "other"
    return {"L": "letter", "N": "letter", "M": "mark", "Cf": "joiner"}.get(
        category if category == "Cf" else category[0], "other"
    )


def plain_words(text: str) -> list[int]:
    """The number of the word of each character, character by character."""
    numbers: list[int] = []
    for at, character in enumerate(text):
        before, own = character_kind(text[at - 1]) if at else "other", character_kind(character)
        goes_on = own == "letter" and before in ("letter", "mark", "joiner")
        goes_on = goes_on or (own in ("mark", "joiner") and before != "other")
        numbers.append(numbers[-1] if goes_on else at)
    return numbers


def plain_flags(text: str, block: Block) -> list[int]:  # noqa: C901
    """Flags worked out token by token from the definition, sentence starts left out."""
    spans = list(zip(block.start_chars.tolist(), block.end_chars.tolist(), strict=True))
    words = plain_words(text)
    flags = [0] * len(spans)
    members: dict[int, list[int]] = {}  # first token of a word: its tokens
    before = None
    for number, (start, end) in enumerate(spans):
        if all(character_kind(character) in ("other", "joiner") for character in text[start:end]):
            flags[number] |= TokenFlag.PUNCTUATION
        if text[start:end] in list("!,.:?"):
            flags[number] |= TokenFlag.CLAUSE_PUNCTUATION
        if start == end:
            continue
        if before is None or words[spans[before][1] - 1] != words[start]:
            members[number] = []
        members[list(members)[-1]].append(number)
        before = number
    for tokens in members.values():
        flags[tokens[0]] |= TokenFlag.WORD_START
        flags[tokens[-1]] |= TokenFlag.WORD_END
        start, end = spans[tokens[0]][0], spans[tokens[-1]][1]
        if is_stop_word(text[start:end], text[max(0, start - 1) : start]):
            for token in tokens:
                flags[token] |= TokenFlag.STOPWORD
                if text[start:end].lower().strip("'\u2019\u02bc") in {"of", "the", "and", "s"}:
                    flags[token] |= TokenFlag.LINKING
    joined, marked = joined_characters(text), marker_characters(text)
    for number, (start, end) in enumerate(spans):
        if marked[start:end].any() or set(text[start:end]) & set('()[]{}<>"“”„‟«»‹›;…—§¶•‣◦▪·†‡*|'):
            flags[number] |= TokenFlag.STOPWORD
        is_joined = start < end and bool(joined[start])
        if is_joined:
            flags[number] = flags[number] & ~TokenFlag.STOPWORD | TokenFlag.JOINED
        is_followed = start < end and bool(joined[end : end + 1].any())
        if is_followed and not is_joined:
            flags[number] &= ~(TokenFlag.STOPWORD | TokenFlag.LINKING | TokenFlag.PUNCTUATION)
        elif is_joined and not is_followed:
            flags[number] &= ~TokenFlag.PUNCTUATION
    return [int(own) for own in flags]


@pytest.mark.parametrize(
    "text",
    [TRICKY, TRICKY[::-1], "a", "…", "中", "\u0301a", "'s 's", "ri\u00adver", "di\u200bver", "b) §5 of $15,000 or 20%"],
)
def test_flags_equal_a_plain_walk_over_the_tokens(
    text: str, wordpiece: PreTrainedTokenizerFast, byte_bpe: PreTrainedTokenizerFast
) -> None:
    for tokenizer in (wordpiece, byte_bpe):
        (block,) = pack(tokenizer, text, max_block_tokens=10_000)
        without_sentences = block.flags & (255 - TokenFlag.SENTENCE_START)
        assert without_sentences.tolist() == plain_flags(text, block)


def plain_cuts(text: str, whole: Block, capacity: int) -> list[int]:
    """Cut by the rule as told, token by token."""
    starts, ends = whole.start_chars, whole.end_chars
    assert starts is not None and ends is not None

    def text_before(at: int) -> int:
        """Where the last token before `at` that is more than a space ends."""
        return max((int(end) for start, end in zip(starts[:at], ends[:at], strict=True) if end > start), default=0)

    cuts = [0]
    while len(starts) - cuts[-1] > capacity:
        after = range(cuts[-1] + capacity, cuts[-1], -1)
        far = [at for at in after if at - cuts[-1] >= (capacity + 1) // 2]
        sentence = [at for at in far if whole.flags[at] & TokenFlag.SENTENCE_START]
        space = [at for at in far if whole.flags[at] & TokenFlag.WORD_START and starts[at] > text_before(at)]
        word = [at for at in after if whole.flags[at] & TokenFlag.WORD_START]
        whole_characters = [at for at in after if starts[at] >= text_before(at)]
        cuts.append((sentence or space or word or whole_characters or [after[0]])[0])
    return [*cuts, len(starts)]


@pytest.mark.parametrize("max_block_tokens", [4, 5, 9, 16, 40, 300])
def test_blocks_are_cut_as_the_rule_says_and_hold_every_token(
    max_block_tokens: int, wordpiece: PreTrainedTokenizerFast, byte_bpe: PreTrainedTokenizerFast
) -> None:
    text = TRICKY + " The dog is. " * 20
    for tokenizer in (wordpiece, byte_bpe):
        (whole,) = pack(tokenizer, text, max_block_tokens=10_000)
        blocks = pack(tokenizer, text, max_block_tokens=max_block_tokens)
        lengths = [len(block.token_ids) for block in blocks]
        assert np.cumsum([0, *lengths]).tolist() == plain_cuts(text, whole, max_block_tokens - 2)
        for name in ("token_ids", "flags", "start_chars", "end_chars"):
            assert np.array_equal(np.concatenate([getattr(block, name) for block in blocks]), getattr(whole, name))


def test_only_the_opening_of_a_document_is_kept(wordpiece: PreTrainedTokenizerFast) -> None:
    text = "The dog is. " * 3 + "x" * 500 + " the end" * 200
    (whole,) = pack(wordpiece, text, max_block_tokens=10_000)
    for limit in (1, 7, 300, 520, 5000):
        opening = pack(wordpiece, text, max_block_tokens=64, max_document_tokens=limit)
        ids = np.concatenate([block.token_ids for block in opening])
        assert np.array_equal(ids, whole.token_ids[:limit])


def test_documents_packed_together_equal_documents_packed_alone(wordpiece: PreTrainedTokenizerFast) -> None:
    packer = BlockPacker(wordpiece, BlockSettings(max_block_tokens=12))
    documents = [document(text) for text in (TRICKY, "the dog", "\x00\u200b", TRICKY[40:], "the dog")]
    together = packer.pack_many(documents)
    assert together[2] == []
    for own, blocks in zip(documents, together, strict=True):
        alone = packer.pack(own)
        assert [block.token_ids.tolist() for block in alone] == [block.token_ids.tolist() for block in blocks]


def test_a_text_encoded_in_pieces_has_the_offsets_of_the_whole(
    monkeypatch: pytest.MonkeyPatch, wordpiece: PreTrainedTokenizerFast
) -> None:
    (whole,) = pack(wordpiece, TRICKY, max_block_tokens=10_000)
    monkeypatch.setattr("npm.corpus.blocks.MAX_PIECE_CHARS", 30)
    text = TRICKY.replace("unbreakable" * 9, "unbreakable")
    (whole,) = pack(wordpiece, text, max_block_tokens=10_000)
    monkeypatch.undo()
    (expected,) = pack(wordpiece, text, max_block_tokens=10_000)
    for name in ("token_ids", "flags", "start_chars", "end_chars"):
        assert np.array_equal(getattr(whole, name), getattr(expected, name))


THAI = "ปารีส เป็น เมืองหลวง ของ ฝรั่งเศส "
"""Five words, each of them one unknown token."""


def test_a_tokenizer_to_which_most_of_a_text_is_unknown_is_refused(wordpiece: PreTrainedTokenizerFast) -> None:
    texts = [document("the dog " * 10), document(THAI * 30)]
    with pytest.raises(EncoderError, match="150 of the first 170"):
        BlockPacker(wordpiece, BlockSettings()).pack_many(texts)
    with pytest.raises(EncoderError, match="knows too little"):
        SentenceTokenizer(wordpiece, max_tokens=200).encode([text.text for text in texts])


def test_a_tokenizer_is_judged_by_the_first_tokens_and_by_enough_of_them(wordpiece: PreTrainedTokenizerFast) -> None:
    packer = BlockPacker(wordpiece, BlockSettings())
    assert len(packer.pack(document(THAI * 19))) == 1  # 95 tokens: a question, a name, a heading
    packer = BlockPacker(wordpiece, BlockSettings())
    packer.pack(document("the dog " * (JUDGED_TOKENS // 2)))
    assert packer.pack(document(THAI * 5000))
    assert packer.unknown.note == ""


def test_what_is_unknown_in_part_is_noted(wordpiece: PreTrainedTokenizerFast) -> None:
    packer = BlockPacker(wordpiece, BlockSettings())
    packer.pack_many([document("the dog " * 400), document(THAI * 40)])
    assert "20% of the first 1,000 tokens" in packer.unknown.note
    packer = BlockPacker(wordpiece, BlockSettings())
    packer.pack_many([document("the dog " * 20), document(THAI * 20)])  # as of Chinese with an English tokenizer
    assert "71% of the first 140 tokens" in packer.unknown.note


def test_the_first_tokens_of_the_title_and_a_full_stop_stand_before_every_block() -> None:
    encoder = tiny_encoder("bert")
    text = " ".join(SENTENCES[:2])
    plain = BlockPacker(encoder.tokenizer, BlockSettings(max_block_tokens=24))
    titled = BlockPacker(encoder.tokenizer, BlockSettings(max_block_tokens=24, title_tokens=3))
    document = Document("a", "Paris France Iceland Norway", text)
    blocks = titled.pack(document)
    title = encoder.tokenizer("Paris France Iceland Norway", add_special_tokens=False)["input_ids"][:3]
    stop = encoder.tokenizer(".", add_special_tokens=False)["input_ids"]
    assert len(blocks) > 1
    for block in blocks:
        assert block.token_ids[:4].tolist() == [*title, *stop]
        assert block.flags[:4].tolist() == [TokenFlag.TITLE] * 4
        assert (block.start_chars[:4] == block.start_chars[4]).all() and (
            block.end_chars[:4] == block.start_chars[4]
        ).all()
        assert len(block.token_ids) <= 22  # and two special tokens
    # without the titles these are the tokens of the text, all of them, and as they are without titles
    token_ids = np.concatenate([block.token_ids[4:] for block in blocks])
    flags = np.concatenate([block.flags[4:] for block in blocks])
    assert token_ids.tolist() == np.concatenate([block.token_ids for block in plain.pack(document)]).tolist()
    assert flags.tolist() == np.concatenate([block.flags for block in plain.pack(document)]).tolist()


@given(pieces=st.lists(st.sampled_from(["the dog", " ", "\n", ".", "Oslo", "Ü", HIDDEN, HIDDEN * 3])))
def test_hidden_characters_are_not_encoded_and_offsets_are_those_of_the_text(
    wordpiece: PreTrainedTokenizerFast, byte_bpe: PreTrainedTokenizerFast, pieces: list[str]
) -> None:
    text = "".join(pieces)
    read = [position for position, character in enumerate(text) if character != HIDDEN]
    for tokenizer in (wordpiece, byte_bpe):
        expected = pack(tokenizer, visible(text), max_block_tokens=6)
        blocks = pack(tokenizer, text, max_block_tokens=6)
        for block, plain in zip(blocks, expected, strict=True):
            assert (block.token_ids.tolist(), block.flags.tolist()) == (plain.token_ids.tolist(), plain.flags.tolist())
            for start, end, plain_start, plain_end in zip(
                *(array.tolist() for array in (block.start_chars, block.end_chars)),
                *(array.tolist() for array in (plain.start_chars, plain.end_chars)),
                strict=True,
            ):
                assert visible(text[start:end]) == visible(text)[plain_start:plain_end]
                if end > start:
                    assert (start, end) == (read[plain_start], read[plain_end - 1] + 1)


def store_of(folder: Path, block_counts: list[int]) -> BlockStore:
    """A store with that many blocks a document; block b holds b + 1 tokens, all of them b."""
    numbers = iter(range(sum(block_counts)))

    def block() -> Block:
        number = next(numbers)
        flags, chars = np.zeros(number + 1, dtype=np.uint8), np.zeros(number + 1, dtype=np.uint32)  # [number + 1]
        return Block(np.full(number + 1, number, dtype=np.int32), flags, chars, chars)

    packed = [(Document(f"d{n}", "", "t"), [block() for _ in range(count)]) for n, count in enumerate(block_counts)]
    return write_block_store(folder / "store", packed, settings={}, tokenizer_fingerprint="f", tokens_per_shard=50)


def listed(groups: BlockGroups) -> list[list[int]]:
    return [groups.blocks(number).tolist() for number in range(len(groups))]


def test_full_groups_come_first_out_of_a_document_and_remainders_are_joined(tmp_path: Path) -> None:
    store = store_of(tmp_path, [2, 7, 1, 4])  # blocks 0-1, 2-8, 9, 10-13
    groups = BlockGroups(store, sequences_per_group=3)
    assert listed(groups) == [[2, 3, 4], [5, 6, 7], [0, 1, 8], [10, 11, 12], [9, 13]]
    assert groups.mixed_share == 2 / 5


def test_a_single_block_left_over_makes_no_group(tmp_path: Path) -> None:
    assert listed(BlockGroups(store_of(tmp_path, [4]), sequences_per_group=3)) == [[0, 1, 2]]


def test_a_store_of_one_block_has_no_group(tmp_path: Path) -> None:
    groups = BlockGroups(store_of(tmp_path, [1]))
    assert (len(groups), groups.mixed_share) == (0, 0.0)


def test_a_group_is_the_sequences_of_its_blocks(tmp_path: Path) -> None:
    groups = BlockGroups(store_of(tmp_path, [2, 7, 1, 4]), sequences_per_group=3)
    sequences = groups[2]
    assert sequences.offsets.tolist() == [0, 1, 3, 12]
    assert sequences.token_ids.tolist() == [0] + [1] * 2 + [8] * 9


def plain_groups(block_counts: list[int], size: int) -> list[list[int]]:
    """The groups as told: document by document, with a queue."""
    groups, queue, first = [], list[int](), 0
    for count in block_counts:
        blocks = list(range(first, first + count))
        first += count
        while len(blocks) >= size:
            groups.append(blocks[:size])
            blocks = blocks[size:]
        queue += blocks
        if len(queue) >= size:
            groups.append(queue[:size])
            queue = queue[size:]
    return [*groups, queue] if len(queue) >= 2 else groups


@pytest.mark.parametrize("seed", range(5))
def test_groups_equal_those_of_a_plain_queue(tmp_path: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    block_counts = rng.integers(0, 12, 25).tolist()
    size = int(rng.integers(2, 7))
    assert listed(BlockGroups(store_of(tmp_path, block_counts), sequences_per_group=size)) == plain_groups(
        block_counts, size
    )


def test_random_groups_hold_every_block_once_and_follow_the_seed(tmp_path: Path) -> None:
    store = store_of(tmp_path, [9, 9, 9])
    first, again, other = (
        BlockGroups(store, sequences_per_group=4, mixing=GroupMixing.random, seed=seed) for seed in (1, 1, 2)
    )
    assert listed(first) == listed(again) != listed(other)
    assert sorted(block for group in listed(first) for block in group) == list(range(27))
    assert [len(group) for group in listed(first)] == [4] * 6 + [3]
    assert first.mixed_share == np.mean([len({block // 9 for block in group}) > 1 for group in listed(first)])
