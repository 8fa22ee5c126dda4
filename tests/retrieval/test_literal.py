"""Literal evidence: gaps by hand and against a plain search, what they count, and copied sentences end to end."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from npm.core.types import MASK_TEXT
from npm.corpus.text import STOP_WORDS, normalized_text, words_of
from npm.indexing.changes import delete_documents
from npm.indexing.phrase_index import PhraseIndex
from npm.indexing.settings import DeleteSettings
from npm.models.encoder import Encoder
from npm.retrieval import blocks as blocks_module
from npm.retrieval.answers import SurfaceReader
from npm.retrieval.filler import PhraseFiller
from npm.retrieval.literal import (
    MAX_GAP_PIECES,
    MIN_SHARE,
    OPEN_SHARE,
    Gap,
    MaskContext,
    literal_gaps,
    with_literal_evidence,
)
from npm.retrieval.queries import encode_queries
from npm.retrieval.search import Search
from npm.retrieval.settings import FillSettings
from npm.retrieval.spans import CandidateSpans, span_hash
from tests.evaluation.methods.word_indexes import index_of_texts
from tests.helpers.command_line import CommandLine
from tests.helpers.live_indexes import built, record
from tests.helpers.tiny_models import SENTENCES

LIMITS = (10, None)


def gaps_in(question: str, text: str) -> list[tuple[str, int]]:
    """The gaps in `text`, an open side as `…`, with the number of words around them."""
    context = MaskContext.of(question)
    assert context is not None
    shown = []
    for start, stop, words in context.gaps(text):
        if start is not None and stop is not None:
            shown.append((text[start:stop], len(words)))
        else:
            shown.append((f"{text[start:].split()[0]}…" if stop is None else f"…{text[:stop].split()[-1]}", len(words)))
    return sorted(shown)


@pytest.mark.parametrize(
    ("question", "text", "expected"),
    [
        # both sides: the most words, then the nearest; four words in all
        ("Its own bridge over <mask> was built.", "The bridge over Elbe was built.", [("Elbe", 4)]),
        ("a b <mask> c d", "a b x y c d z c d", [("x y", 4)]),
        ("a b <mask> c d", "a b x c d, A B y C D", [("x", 4), ("y", 4)]),
        ("a b <mask> c d", f"a b {'x ' * MAX_GAP_PIECES} c d", [(" ".join("x" * MAX_GAP_PIECES), 4)]),
        ("a b <mask> c d", f"a b {'x ' * (MAX_GAP_PIECES + 1)} c d", []),
        # a phrase does not run on into the next sentence
        ("a b <mask> c d", "a b one. Two c d", []),
        # the mask at the end of a sentence: closed by its end, and open
        ("He lives now in <mask>.", "He lives now in Oslo. Or so.", [("Oslo", 4), ("Oslo.…", 4)]),
        ("He lives now in <mask>", "He lives now in oslo with Ann", [("oslo with Ann", 4), ("oslo…", 4)]),
        # a name ends before what the sentence adds to it
        ("It was made here by <mask>.", "It was made here by Ana Duarte in 2019.", [("Ana Duarte", 5), ("Ana…", 5)]),
        ("It is now near <mask>.", "It is now near Bank of Oslo by day.", [("Bank of Oslo", 4), ("Bank…", 4)]),
        ("He lives now in <mask>.", "He lives now in", []),
        # the end of a number, an abbreviation, a quotation
        ("The very tall tree is <mask>.", "The very tall tree is 3.5 m.", [("3.5 m", 5), ("3.5…", 5)]),
        ("It is written by <mask>.", "It is written by Dr. Low.", [("Dr. Low", 4), ("Dr.…", 4)]),
        ("It is written for <mask>.", "It is written for the U.S.", [("the U.S.", 4), ("the…", 4)]),
        ("The whole tax is now <mask>%.", "The whole tax is now 5%.", [("5", 5), ("5%.…", 5)]),
        ("<mask> was paid for it.", "Hm! $5 was paid for it.", [("$5", 4), ("…$5", 4)]),
        # the mask at the start
        ("<mask> is now in Oslo.", "Well. “Ann is now in Oslo.", [("Ann", 4), ("…“Ann", 4)]),
        ("<mask> is now in Oslo.", "So Ann is now in Oslo.", [("So Ann", 4), ("…Ann", 4)]),
        # fewer than four words: all of them
        ("in <mask> now", "in Oslo now", [("Oslo", 2)]),
        # the sentence of the mask alone, case-folded, punctuation as written
        ("Not this. He saw “<mask>” in Oslo.", "HE SAW “Ann” in oslo", [("Ann", 4)]),
    ],
)
def test_gaps_are_what_occurs_between_the_words_of_the_question(
    question: str, text: str, expected: list[tuple[str, int]]
) -> None:
    assert gaps_in(question, text) == sorted(expected)


def test_a_text_with_several_masks_has_no_context() -> None:
    assert MaskContext.of("<mask> is in <mask>.") is None
    assert MaskContext.of("No mask.") is None


PIECES = ["ax", "bY", "co", ","]  # none begins like a name, at which a gap would end


def plain_gaps(before: list[str], after: list[str], sentence: list[str]) -> set[tuple[int | None, int | None, int]]:
    """First and past-the-last piece of every gap in a sentence and the words around it, by trying all pairs."""

    def matched(context: list[str], pieces: list[str]) -> int | None:
        """Words that match from the mask outwards; None without any."""
        pairs = list(zip(context, pieces, strict=False))
        same = itertools.takewhile(lambda pair: pair[0].casefold() == pair[1].casefold(), pairs)
        return sum(own.isalpha() for own, _ in same) or None

    size = range(len(sentence) + 1)
    words = [at for at in size[:-1] if sentence[at].isalpha()]
    lefts = {at: matched(before[::-1], sentence[:at][::-1]) for at in size}
    rights = {at: matched(after, sentence[at:]) for at in size}
    if not any(map(str.isalpha, before)):  # from the first word of the sentence on
        lefts = {at: 0 if at == (words[0] if words else len(sentence)) else None for at in size}
    if not any(map(str.isalpha, after)):
        rights = {at: 0 if at == (words[-1] + 1 if words else 0) else None for at in size}
    least = max(2, min(4, sum(map(str.isalpha, before + after))))
    best_stops: dict[int, int] = {}
    for start in size:
        stops = [at for at in size if start < at <= start + MAX_GAP_PIECES and rights[at] is not None]
        if lefts[start] is not None and stops:
            best_stops[start] = max(stops, key=lambda at: (rights[at] or 0, -at))
    gaps: set[tuple[int | None, int | None, int]] = set()
    for stop in set(best_stops.values()):
        start = max((at for at, own in best_stops.items() if own == stop), key=lambda at: (lefts[at] or 0, at))
        gaps.add((start, stop, (lefts[start] or 0) + (rights[stop] or 0)))
    if not any(map(str.isalpha, after)):
        gaps |= {(at, None, left) for at, left in lefts.items() if left is not None and at < len(sentence)}
    if not any(map(str.isalpha, before)):
        gaps |= {(None, at, right) for at, right in rights.items() if right is not None and at}
    return {gap for gap in gaps if gap[2] >= least}


sequences = st.lists(st.sampled_from(PIECES), max_size=5)
sentences = st.lists(st.lists(st.sampled_from(PIECES), min_size=1, max_size=24), max_size=3)


@given(sequences, sequences, sentences)
def test_gaps_equal_those_of_trying_all_pairs(before: list[str], after: list[str], lines: list[list[str]]) -> None:
    context = MaskContext.of(" ".join([*before, MASK_TEXT, *after]))
    assert context is not None
    text = "\n".join(map(" ".join, lines))
    starts = [match.start() for match in re.finditer(r"\S+", text)]
    ends = [match.end() for match in re.finditer(r"\S+", text)]
    expected, done = set(), 0
    for line in lines:
        for start, stop, count in plain_gaps(before, after, line):
            begin = None if start is None else starts[done + start]
            expected.add((begin, None if stop is None else ends[done + stop - 1], count))
        done += len(line)
    found = [(start, stop, len(words)) for start, stop, words in context.gaps(text)]
    assert len(set(found)) == len(found)
    assert set(found) == expected


TEXTS = [
    "The slow old ferry to Bergen leaves at 7 p.m. every day.",
    "The slow old ferry to Stavanger and the islands leaves every night.",
    "Nothing else is known. The ferry is not there.",
    "A (b) c.",
]


@pytest.fixture(scope="module")
def index(encoder: Encoder, tmp_path_factory: pytest.TempPathFactory) -> PhraseIndex:
    return index_of_texts(tmp_path_factory.mktemp("literal") / "index", [*TEXTS, *SENTENCES], encoder)


def gaps_of(index: PhraseIndex, encoder: Encoder, question: str) -> list[tuple[str, float]]:
    """The gaps for a question in all blocks, an open side as `…`, with their shares."""
    reader = SurfaceReader(index.store)
    shown = []
    for gap in literal_gaps(index.store, index.lexicon, question, np.arange(index.store.block_count)):
        begin, stop = reader_bounds(gap)
        (text,) = reader.texts(np.array([begin]), np.array([stop - begin]))
        shown.append(("…" * (gap.start is None) + text + "…" * (gap.stop is None), gap.share))
    return shown


def reader_bounds(gap: Gap) -> tuple[int, int]:
    """The tokens of a gap; one token of an open one."""
    if gap.start is None:
        assert gap.stop is not None
        return gap.stop - 1, gap.stop
    return gap.start, gap.start + 1 if gap.stop is None else gap.stop


def test_the_share_of_a_gap_is_that_of_the_rare_words_around_it(index: PhraseIndex, encoder: Encoder) -> None:
    weight = {
        word: index.lexicon.word_weight(word)
        for word in ["the", "slow", "old", "ferry", "to", "leaves", "every", "hour"]
    }
    assert [word for word, own in weight.items() if not own] == ["the", "to", "every"]
    share = 1 - weight["hour"] / sum(weight.values())
    question = "The slow old ferry to <mask> leaves every hour."
    expected = [("Bergen", pytest.approx(share)), ("Stavanger and the islands", pytest.approx(share))]
    assert gaps_of(index, encoder, question) == expected
    # without words behind the mask the other edge is that of the sentence, or open, and the share is less
    for question, found, rest in (
        ("<mask> old ferry to Bergen leaves at 7 p.m.", "The slow", "old ferry bergen leaves 7 p m"),
        ("The slow old ferry to Bergen leaves at <mask>.", "7 p.m. every day", "slow old ferry bergen leaves"),
    ):
        assert sum(map(index.lexicon.word_weight, rest.split()))  # all of them occur
        (closed, opened) = sorted(gaps_of(index, encoder, question), key=lambda gap: "…" in gap[0])
        assert closed == (found, pytest.approx(1.0))
        assert opened[1] == pytest.approx(OPEN_SHARE)
    assert opened[0] == "7…" and gaps_of(index, encoder, "<mask> is not <mask>.") == []
    # a closed gap that the edge of the sentence closes counts less where words of the question are missing around it
    known, unknown = sum(map(index.lexicon.word_weight, rest.split())), index.lexicon.word_weight("hour")
    part = known / (known + unknown)
    found = gaps_of(index, encoder, "An hour slow old ferry to Bergen leaves at <mask>.")
    assert found == [("7 p.m. every day", pytest.approx(part**2))] and OPEN_SHARE * part < MIN_SHARE
    # an open gap begins behind an article
    found = gaps_of(index, encoder, "The slow old ferry to Stavanger and <mask>.")
    assert found == [("the islands leaves every night", pytest.approx(1.0)), ("is…", pytest.approx(OPEN_SHARE))]
    assert gaps_of(index, encoder, "He and <mask> will not do this.") == []  # words that count nothing


def test_words_across_the_end_of_a_block_are_no_gap(encoder: Encoder, tmp_path: Path) -> None:
    text = " ".join(f"{first}{second}o" for first in "abcdefgh" for second in "abcdefgh")
    index = index_of_texts(tmp_path / "index", [text], encoder)
    *_, last = index.store.block_text(0).split()
    first, *_ = index.store.block_text(1).split()
    before, across, after = text.partition(f"{last} {first}")
    assert before and across and after
    assert gaps_of(index, encoder, f"{before}{MASK_TEXT}{after}") == []
    beginning, inside, rest = text.partition(text.split()[2])  # all words but one, but those of a block only count
    ((found, share),) = gaps_of(index, encoder, f"{beginning}{MASK_TEXT}{' '.join(rest.split()[:9])}")
    assert (found, share) == (inside, pytest.approx(1.0))


def test_a_gap_in_markdown_is_that_of_the_text_as_people_see_it(
    npmlm: CommandLine, tiny_encoder_folder: Path, tmp_path: Path
) -> None:
    text = "# Fees\n\nThe *whole* fee of the li**brar**y is\nfi**ve hun**dred [crowns](/x) per *full* year.\n"
    (tmp_path / "fees.md").write_text(text, encoding="utf-8")
    given = (
        f"corpus.files=[{tmp_path / 'fees.md'}]",
        f"encoder={tiny_encoder_folder}",
        "copy_encoder=true",
        "blocks.max_block_tokens=96",
    )
    assert npmlm("build", *given, f"index={tmp_path / 'index'}").status == 0
    filler = PhraseFiller.open(tmp_path / "index", settings=FillSettings(max_phrase_tokens=30))
    question = "The whole fee of the library is <mask> per full year."
    assert gaps_of(filler.index, filler.encoder, question) == [("five hundred crowns", pytest.approx(1.0))]
    best = filler.fill(question).phrases[0]
    assert best.phrase == "five hundred crowns"
    place = best.occurrences[0]
    assert text[place.start_char : place.end_char].startswith("fi**ve hun**dred [crowns")


def candidates_at(*spans: tuple[int, int]) -> CandidateSpans:
    starts, stops = np.array(spans, dtype=np.int64).reshape(-1, 2).T  # i64 [m] each
    rows = np.arange(len(starts))
    return CandidateSpans(starts, stops - starts, rows, rows, rows.astype(np.uint64))


def test_a_cell_is_found_by_its_row_and_its_header(encoder: Encoder, tmp_path: Path) -> None:
    table = "Depot·Rate·Manager\nPorto;737 euros;Tom Reed\nFaro;960 euros;Uma Nair\n"
    stored = table.translate({ord("·"): "\u0387", ord(";"): "\u037e"})
    opened = PhraseIndex.open(built(tmp_path / "index", [record(0, text=stored)], encoder))
    reader = SurfaceReader(opened.store)

    def found(question: str) -> list[str]:
        gaps = literal_gaps(opened.store, opened.lexicon, question, np.arange(opened.store.block_count))
        spans = np.array([(gap.start, (gap.stop or 0) - (gap.start or 0)) for gap in gaps]).reshape(-1, 2)
        return reader.texts(*spans.T)

    for question in ("The rate of Faro is <mask>.", "What is the rate of Faro? <mask>."):
        assert found(question) == ["960 euros"]
    assert found("Who manages Faro? <mask>.") == ["Uma Nair"]  # who manages is a manager
    assert sorted(found("Faro has <mask>.")) == ["960 euros", "Uma Nair"]  # no header is named


@pytest.mark.parametrize(
    ("gap", "phrase"),
    [
        ("74 euros and has a glass body", "74 euros"),
        ("74 euros, but weighs 3 kg", "74 euros"),
        ("1733 under the supervision of Oglethorpe", "1733"),
        ("Ana Duarte in 2019", "Ana Duarte"),
        ("a full disk and was found by Bo", "a full disk"),
        ("a full disk on the gateway", "a full disk on the gateway"),
        ("45 days and nights", "45 days and nights"),
        ("1605 in Madrid", "1605 in Madrid"),
        ("3 May 2024 at noon", "3 May 2024"),
        ("$15,000 for each claim", "$15,000"),
        ("1 in 5 households", "1 in 5 households"),
        ("salmon and cars to Norway", "salmon and cars to Norway"),
    ],
)
def test_a_gap_at_the_end_of_a_sentence_ends_before_what_the_sentence_adds(gap: str, phrase: str) -> None:
    text = f"The cost of the tall lamp is {gap}."
    context = MaskContext.of("The cost of the tall lamp is <mask>.")
    assert context is not None
    assert [text[start:stop] for start, stop, _ in context.gaps(text) if start and stop] == [phrase]
    followed = MaskContext.of(f"The cost of the tall lamp is <mask> {gap.split()[-1]}.")  # and so it may be any part
    assert followed is not None
    rest = gap.rpartition(" ")[0]
    assert rest in [text[start:stop] for start, stop, _ in followed.gaps(text) if start and stop]


def test_what_fills_a_gap_weighs_more_and_all_are_shares_again(index: PhraseIndex) -> None:
    candidates, weights = candidates_at((0, 1), (0, 2), (3, 4)), np.array([0.5, 0.3, 0.2])
    gaps = [Gap(0, 0, 2, 0.5), Gap(0, 0, None, 0.25), Gap(0, 0, None, 0.125), Gap(0, None, 4, 0.1)]
    # λ = 4: e^2 for the closed gap, where the open one counts less; e^1 and e^0.4 for the open ones
    weighed = np.array([0.5 * np.exp(1), 0.3 * np.exp(2), 0.2 * np.exp(0.4)])
    same, shares = with_literal_evidence(candidates, weights, gaps, 4.0, store=index.store, limits=LIMITS)
    assert same is candidates
    assert shares == pytest.approx(weighed / weighed.sum())
    # what fills a closed gap counts as e^(−λ/2) of the best at least
    tiny = np.array([1 - 2e-9, 1e-9, 1e-9])
    _, shares = with_literal_evidence(candidates, tiny, gaps[:1], 4.0, store=index.store, limits=LIMITS)
    assert shares[1] / shares[0] == pytest.approx(np.exp(-2) * np.exp(2))
    unchanged = with_literal_evidence(candidates, weights, [], 4.0, store=index.store, limits=LIMITS)
    assert unchanged[1] is weights


def test_a_closed_gap_that_is_no_candidate_becomes_one_once(index: PhraseIndex) -> None:
    candidates, weights = candidates_at((0, 1), (3, 4)), np.array([0.75, 0.25])
    gap = Gap(0, 1, 3, 0.5)
    more, shares = with_literal_evidence(
        candidates, weights, [gap, replace(gap, share=0.4)], 4.0, store=index.store, limits=LIMITS
    )
    assert more.starts.tolist() == [0, 3, 1] and more.lengths.tolist() == [1, 1, 2]
    assert more.start_rows[2] == more.end_rows[2] == -1
    assert more.hashes[2] == span_hash(index.store.token_ids.slice(1, 3))
    assert shares.sum() == pytest.approx(1)
    assert shares[2] / shares[0] == pytest.approx(np.exp(-2) * np.exp(2))
    # alone it has all of the evidence
    alone = with_literal_evidence(candidates_at(), np.zeros(0), [gap], 4.0, store=index.store, limits=LIMITS)
    assert alone[1].tolist() == [1.0]
    # too long, empty, or with brackets
    first = int(index.store.block_offsets[3])
    for limits, other in (
        ((1, None), gap),
        ((10, 1), Gap(0, 0, 10, 0.9)),
        (LIMITS, Gap(0, 3, 3, 0.9)),
        (LIMITS, Gap(3, first, first + 4, 0.9)),
    ):
        kept, _ = with_literal_evidence(candidates, weights, [other], 4.0, store=index.store, limits=limits)
        assert kept is candidates


@pytest.fixture(scope="module")
def filler(index: PhraseIndex, encoder: Encoder) -> PhraseFiller:
    return PhraseFiller(index, encoder, FillSettings(max_phrase_tokens=30))


def masked_copies(sentence: str) -> list[tuple[str, str]]:
    """The sentence with a run of up to three words masked that ends at no function word and repeats no other word."""
    words = list(re.finditer(r"\w+", sentence))
    copies = []
    for first, last in itertools.combinations_with_replacement(range(len(words)), 2):
        start, stop = words[first].start(), words[last].end()
        inside, rest = sentence[start:stop], f"{sentence[:start]}{MASK_TEXT}{sentence[stop:]}"
        edges = {words[first][0].lower(), words[last][0].lower()}
        is_new = set(words_of(inside)) - set(words_of(rest.replace(MASK_TEXT, " ")))
        if last - first < 3 and not edges & STOP_WORDS and re.fullmatch(r"[\w ]+", inside) and is_new:
            copies.append((rest, inside))
    return copies


@pytest.mark.parametrize("sentence", [text for sentence in SENTENCES for text in re.split(r"(?<=\.) ", sentence)])
def test_every_masked_phrase_of_a_copied_sentence_is_answered_first(filler: PhraseFiller, sentence: str) -> None:
    copies = masked_copies(sentence)
    assert copies
    for (text, phrase), answer in zip(copies, filler.fill([text for text, _ in copies]), strict=True):
        assert normalized_text(answer.phrases[0].phrase) == normalized_text(phrase), text


def test_a_gap_without_vectors_is_answered_and_no_vector_is_looked_up_for_it(
    filler: PhraseFiller, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_up = []
    plain = Search.similarities

    def watched(self: Search, side: int, rows: np.ndarray) -> np.ndarray:
        looked_up.append(int(rows.min(initial=0)))
        return plain(self, side, rows)

    monkeypatch.setattr(Search, "similarities", watched)
    answer = filler.fill("Nothing <mask> is known.")
    assert answer.phrases[0].phrase == "else"  # a stop-word
    assert looked_up and min(looked_up) >= 0
    assert sum(phrase.score for phrase in answer.phrases) <= 1 + 1e-9


def test_a_weight_of_nothing_answers_as_if_there_were_no_gaps(
    filler: PhraseFiller, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [text for sentence in SENTENCES for text, _ in masked_copies(sentence)[:4]] + ["<mask> or <mask>"]
    without, weighed = (
        PhraseFiller(filler.index, filler.encoder, replace(filler.settings, literal_weight=weight)).fill(texts)
        for weight in (0.0, 12.0)
    )
    monkeypatch.setattr(blocks_module, "literal_gaps", lambda *_: ())
    assert filler.fill(texts) == without != weighed


@pytest.mark.parametrize("order", [[0, 1], [1, 0]])
def test_of_several_gaps_in_a_block_the_best_ranks_it(
    order: list[int], index: PhraseIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = order
    gaps = tuple(Gap(block, 0, 1, share) for block, share in ((first, 0.9), (second, 0.8), (first, 0.4)))
    monkeypatch.setattr(blocks_module, "literal_gaps", lambda *_: gaps)
    (ranked,) = blocks_module.rank_blocks(index, ["The slow old ferry <mask>."], None, FillSettings())
    assert ranked.blocks[:2].tolist() == order


def test_a_document_that_may_not_answer_has_no_gap(encoder: Encoder, tmp_path: Path) -> None:
    copy = "The slow old ferry to {} leaves every night."
    places = ("Bergen", "Oslo", "Narvik")
    records = [
        record(number, text=copy.format(place), language=language)
        for number, (place, language) in enumerate(zip(places, ("en", "de", "en"), strict=True))
    ]
    folder = built(tmp_path / "index", [*records, *map(record, range(3, 8))], encoder)
    text = copy.format(MASK_TEXT)

    def found(**options: Sequence[str]) -> set[str]:
        answer = filler.fill(text, 50, **options)  # type: ignore[arg-type]
        return {phrase.phrase.lower() for phrase in answer.phrases if phrase.phrase in places}

    filler = PhraseFiller.open(folder, encoder)
    assert found() == {"bergen", "oslo", "narvik"}
    assert found(documents=["d1", "d2"]) == {"oslo", "narvik"}
    assert found(where=["lang=de"]) == {"oslo"}
    assert found(documents=["d5"]) == found(documents=[]) == set()
    delete_documents(folder, DeleteSettings(ids=["d0"]))
    assert filler.refresh()
    assert found() == {"oslo", "narvik"}
    assert found(where=["lang=en"]) == {"narvik"}
    documents = filler._document_filter(FillSettings())
    vectors = encode_queries(encoder, [text])
    (hits,) = blocks_module.choose_blocks(filler.index, [text], vectors, FillSettings(), allowed=documents)
    assert hits.gaps
    assert {int(filler.index.store.block_documents[gap.block]) for gap in hits.gaps} == {1, 2}
