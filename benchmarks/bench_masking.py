"""Claim: phrase masking runs at over a million tokens a second on one core, many times faster than plain Python.

    OMP_NUM_THREADS=1 python -m benchmarks.bench_masking [BLOCK_STORE] [--groups 50] [--sequences-per-group 16]

Both versions mask the same groups with the default settings in one process: candidates, thinning and drawing. Without
a block store the text is synthetic: Zipf words with phrases that come back. About 10 s for 50 groups of 4,096 tokens.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from npm.core.types import Sequences, Spans, TokenFlag
from npm.masking.masker import MaskingSettings, build_masker, mask_rng
from npm.masking.rendering import MaskRenderer
from tests.masking.plain_masking import plain_select

SYNTHETIC_BLOCK_TOKENS = 256
SYNTHETIC_VOCABULARY = 20_000
SYNTHETIC_PHRASES = 2_000
SECONDS_TO_TOKENS_PER_SECOND = "{:>12,.0f} tokens/s  {:>8.2f} ms a group"


def synthetic_group(rng: np.random.Generator, sequence_count: int) -> Sequences:
    """Zipf words in which every eighth place starts one of a set of Zipf-distributed phrases."""
    token_count = sequence_count * SYNTHETIC_BLOCK_TOKENS
    weights = 1 / np.arange(1, SYNTHETIC_VOCABULARY + 1)  # f64 [vocabulary]
    token_ids = rng.choice(SYNTHETIC_VOCABULARY, token_count, p=weights / weights.sum())  # i64 [T]
    phrase_starts = rng.choice(SYNTHETIC_VOCABULARY, SYNTHETIC_PHRASES)  # i64 [phrases], a phrase counts up from here
    phrase_weights = 1 / np.arange(1, SYNTHETIC_PHRASES + 1)  # f64 [phrases]
    places = rng.permutation(token_count - 10)[: token_count // 8]  # i64 [places]
    phrases = rng.choice(phrase_starts, len(places), p=phrase_weights / phrase_weights.sum())  # i64 [places]
    lengths = np.minimum(rng.geometric(0.4, len(places)), 10)  # i64 [places]
    for place, phrase, length in zip(places.tolist(), phrases.tolist(), lengths.tolist(), strict=True):
        token_ids[place : place + length] = np.arange(phrase, phrase + length) % SYNTHETIC_VOCABULARY
    flags = np.full(token_count, TokenFlag.WORD_START | TokenFlag.WORD_END, dtype=np.uint8)  # u8 [T]
    flags[token_ids < 3] |= np.uint8(TokenFlag.CLAUSE_PUNCTUATION | TokenFlag.PUNCTUATION)
    flags[token_ids < 100] |= np.uint8(TokenFlag.STOPWORD)
    offsets = np.arange(sequence_count + 1) * SYNTHETIC_BLOCK_TOKENS  # i64 [S + 1]
    return Sequences(token_ids.astype(np.int32), flags, offsets)


def stored_groups(folder: Path, group_count: int, sequence_count: int) -> list[Sequences]:
    """The first groups of consecutive blocks in a block store."""
    from npm.corpus.store import BlockStore  # brings in the corpus readers, which synthetic text does not need

    store = BlockStore.open(folder)
    firsts = range(0, store.block_count - sequence_count + 1, sequence_count)[:group_count]
    return [store.sequences(range(first, first + sequence_count)) for first in firsts]


def seconds_of(work: Callable[[int, Sequences], object], groups: list[Sequences]) -> float:
    """Wall-clock seconds for `work` on all groups, after one group to warm up."""
    work(0, groups[0])
    began = time.perf_counter()
    for index, group in enumerate(groups):
        work(index, group)
    return time.perf_counter() - began


def main() -> None:
    """Measure and print."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("store", nargs="?", type=Path, help="folder of a block store; synthetic text without it")
    arguments.add_argument("--groups", type=int, default=50)
    arguments.add_argument("--sequences-per-group", type=int, default=16)
    options = arguments.parse_args()
    if options.store:
        groups = stored_groups(options.store, options.groups, options.sequences_per_group)
    else:
        rng = np.random.default_rng(0)
        groups = [synthetic_group(rng, options.sequences_per_group) for _ in range(options.groups)]
    token_count = sum(len(group.token_ids) for group in groups)

    masker, renderer = build_masker(MaskingSettings()), MaskRenderer(mask_id=103, pad_id=0)
    masks: dict[int, Spans] = {}

    def select(index: int, group: Sequences) -> None:
        spans = masker.select(group, mask_rng(0, 0, index))
        if spans is not None:
            masks[index] = spans

    vectorised = seconds_of(select, groups)
    candidates = seconds_of(lambda _, group: masker.units.candidates(group), groups)
    kept = [groups[index] for index in sorted(masks)]
    spans_of_kept = [masks[index] for index in sorted(masks)]
    rendering = seconds_of(lambda index, group: renderer.render(group, spans_of_kept[index]), kept)
    plain = seconds_of(lambda index, group: plain_select(group, mask_rng(0, 0, index)), groups)

    masked_tokens = sum(int(spans.lengths.sum()) for spans in spans_of_kept)
    kept_tokens = sum(len(group.token_ids) for group in kept)
    span_count = sum(len(spans) for spans in spans_of_kept)
    print(f"{len(groups)} groups, {token_count:,} tokens, {len(groups) - len(kept)} groups dropped")
    print(f"masked: {masked_tokens / kept_tokens:.1%} of tokens, mean span {masked_tokens / span_count:.2f} tokens")
    for name, seconds, tokens in (
        ("vectorised", vectorised, token_count),
        ("  candidates", candidates, token_count),
        ("rendering", rendering, kept_tokens),
        ("plain Python", plain, token_count),
    ):
        print(f"{name:14}" + SECONDS_TO_TOKENS_PER_SECOND.format(tokens / seconds, 1000 * seconds / len(groups)))
    print(f"vectorised is {plain / vectorised:.1f} times as fast as plain Python")


if __name__ == "__main__":
    main()
