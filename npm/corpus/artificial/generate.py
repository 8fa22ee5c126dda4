"""Artificial text: sentences of a grammar with the words of a lexicon, in files that depend on nothing but settings.

OUT/settings.json            what it is made with; other settings are refused
OUT/grammar.json             rules with their counts
OUT/lexicon.json, groups.json  of every word its relation, rank, probability; its relation alone
OUT/tokenizer                a fast tokenizer of whole words
OUT/texts/NNNNN.jsonl        id and text of documents, a line of the text for each sentence
OUT/texts/NNNNN.counts.json  what was counted of them, written when they are whole
OUT/report.json              what came of it, and what a model that knows the grammar can reach
OUT/manifest.json            written last, with SHA-256 of all

Sentence i is a function of (seed, i): jobs write files of their own, and a kill costs one file.

Shapes: R relations, V words of the lexicon, P pairs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from itertools import islice
from math import exp, sqrt
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import NonNegativeInt, PositiveInt

from npm.core.artifact import MANIFEST_NAME, check_folder, manifest_bytes, read_manifest
from npm.core.errors import ArtifactError, CorpusError, exclusive, missing, named
from npm.core.files import json_bytes, read_object, replace_file, sha256_of_file
from npm.core.locks import folder_lock
from npm.core.records import refuse_changed
from npm.core.settings import WHOLE, PathText, Settings, Shard, as_json
from npm.core.types import Progress, silent
from npm.corpus.artificial.grammar import Grammar, GrammarSettings, RelationSampler, count_grammar
from npm.corpus.artificial.lexicons import SAMPLE, SENTENCES, Lexicon, LexiconSettings, TopicScope, stream
from npm.corpus.artificial.treebank import read_treebank, treebank_files
from npm.corpus.readers import read_lines
from npm.corpus.tokenizers import SPECIALS, TOKENIZER_KIND, make_tokenizer, pieces_of, write_tokenizer

KIND, TEXTS_KIND = "artificial-corpus", "artificial-texts"
SETTINGS, GRAMMAR, LEXICON, GROUPS, REPORT = (
    f"{name}.json" for name in ("settings", "grammar", "lexicon", "groups", "report")
)
TEXTS, TOKENIZER = "texts", "tokenizer"
PAIR_SENTENCES = 10_000
"""Sentences, the first ones, whose pairs of words are counted."""
DOCUMENTS_AT_ONCE = 1000
AGAIN = "remove the folder and generate it again"


class GenerateSettings(Settings):
    """Settings of `npmlm generate`."""

    treebank: list[PathText] = field(default_factory=list)
    """CoNLL-U files whose dependency trees the grammar is counted in. Required, or grammar.file."""
    sentences: PositiveInt = 1_000_000
    """Sentences, all of them."""
    sentences_per_document: PositiveInt = 1
    """Sentences of a document."""
    sentences_per_file: PositiveInt = 50_000
    """Sentences of a file, which a kill costs at most and which one job writes; rounded down to whole documents."""
    seed: NonNegativeInt = 0
    """Seed of all that is drawn; sentence i depends on it and on i alone."""
    target: PathText = ""
    """Folder of the tokenizer of a target language: words that are pieces of it are refused."""
    grammar: GrammarSettings = field(default_factory=GrammarSettings)
    """How the grammar is counted, and drawn from."""
    lexicon: LexiconSettings = field(default_factory=LexiconSettings)
    """Which words there are."""

    def check(self) -> None:
        """Raise SettingError for a treebank next to a grammar."""
        if self.treebank and self.grammar.file:
            raise exclusive("treebank", "grammar.file")

    @property
    def documents_per_file(self) -> int:
        """Documents of a file, but the last."""
        return max(1, self.sentences_per_file // self.sentences_per_document)

    @property
    def document_count(self) -> int:
        """Documents; the last may be shorter."""
        return -(-self.sentences // self.sentences_per_document)


@dataclass(frozen=True, slots=True)
class Generated:
    """Result of `generate`."""

    report: dict[str, Any] | None  # None while files of other jobs are missing
    was_finished: bool


def generate(
    out: str | Path, settings: GenerateSettings, *, shard: Shard = WHOLE, progress: Progress = silent
) -> Generated:
    """Write the files of `shard` that are not there yet and, when all are there, the report.

    Raises CorpusError for what is no treebank, for a grammar whose sentences need not end and for words that the target
    has too, ArtifactError if `out` holds something else, SettingError where no sentence is short enough.
    """
    out = Path(out)
    grammar, record = _grammar(settings)
    grammar.refuse_endless(settings.grammar.file or ", ".join(settings.treebank))
    if (out / MANIFEST_NAME).is_file():
        refuse_changed(record, read_manifest(out, kind=KIND).settings, where=out)
        _refuse_shared(read_object(out / LEXICON, fix=AGAIN)["words"], settings.target)
        for folder, kind in ((out, KIND), (out / TEXTS, TEXTS_KIND)):
            check_folder(folder, kind=kind)
        return Generated(read_object(out / REPORT, fix=AGAIN), was_finished=True)
    lexicon = Lexicon(grammar, settings.lexicon, seed=settings.seed)
    _refuse_shared(lexicon.words, settings.target)
    _begin(out, record, grammar, lexicon)
    sampler = RelationSampler(grammar, settings.grammar)
    numbers = range(-(-settings.document_count // settings.documents_per_file))
    own = shard.of(numbers)
    for done, number in enumerate(own, start=1):
        _write_file(out, number, settings, sampler, lexicon)
        progress("sentences", min(done * settings.sentences_per_file, settings.sentences), settings.sentences)
    with folder_lock(out / REPORT, wait=True):
        if (out / MANIFEST_NAME).is_file() or not all(_files(out, number)[1].is_file() for number in numbers):
            return Generated(None, was_finished=False)
        return Generated(_finish(out, numbers, record, grammar, lexicon), was_finished=False)


def _grammar(settings: GenerateSettings) -> tuple[Grammar, dict[str, Any]]:
    """The grammar, and all that the text depends on."""
    record = as_json(asdict(settings))
    del record["treebank"], record["target"], record["grammar"]["file"]
    if settings.grammar.file:
        file = Path(settings.grammar.file)
        grammar = Grammar.read(file)
        return grammar, record | {"input": [sha256_of_file(file)]}
    if not settings.treebank:
        raise missing("treebank or grammar.file", "treebank=[FILE.conllu]")
    files = treebank_files(settings.treebank)
    return count_grammar(read_treebank(files), settings.grammar), record | {"input": list(map(sha256_of_file, files))}


def _refuse_shared(words: Any, target: str) -> None:
    """Raise CorpusError for words that are pieces of the tokenizer in the folder `target`, if there is one."""
    if target and (shared := sorted(set(words) & pieces_of(Path(target)))):
        raise CorpusError(
            f"the lexicon shares words with target={target}, {named(shared)}: give the tokenizer of another language"
        )


def _begin(out: Path, record: dict[str, Any], grammar: Grammar, lexicon: Lexicon) -> None:
    """Make the folder, or see that it was made with the same settings; write what stands beside the texts."""
    # hidden files are locks, and what a kill leaves of a write
    foreign = (path for path in out.rglob("*") if path.is_file() and not path.name.startswith("."))
    if out.is_file() or (not (out / SETTINGS).is_file() and any(foreign)):
        raise ArtifactError(f"{out} holds something else; choose another folder")
    (out / TEXTS).mkdir(parents=True, exist_ok=True)
    with folder_lock(out / SETTINGS, wait=True):
        if (out / SETTINGS).is_file():
            refuse_changed(record, read_object(out / SETTINGS, fix=AGAIN), where=out)
        words = lexicon.record()
        groups = {word: each["relation"] for word, each in words["words"].items()}
        contents = {SETTINGS: record, GRAMMAR: asdict(grammar), LEXICON: words, GROUPS: groups}
        for name, content in contents.items():
            replace_file(out / name, json_bytes(content))
        if not (out / TOKENIZER).exists():
            write_tokenizer(out / TOKENIZER, make_tokenizer(None, [*SPECIALS, *lexicon.words]), settings=record)


def _files(out: Path, number: int) -> tuple[Path, Path]:
    """A file of texts and that of its counts."""
    return out / TEXTS / f"{number:05d}.jsonl", out / TEXTS / f"{number:05d}.counts.json"


def _write_file(out: Path, number: int, settings: GenerateSettings, sampler: RelationSampler, lexicon: Lexicon) -> None:
    """One file of texts and its counts, unless they are there."""
    text, counted = _files(out, number)
    if text.is_file() and counted.is_file():
        return
    first = number * settings.documents_per_file
    documents = range(first, min(first + settings.documents_per_file, settings.document_count))
    counts = {"sentences": 0, "words": 0, "rejected": 0, "rejected_words": 0, "squared_lengths": 0}
    word_counts = np.zeros(len(lexicon.words), dtype=np.int64)  # [V]

    def pieces() -> Iterator[bytes]:
        lines: list[str] = []
        for document in documents:
            sentences = []
            start = document * settings.sentences_per_document
            for sentence in range(start, min(start + settings.sentences_per_document, settings.sentences)):
                rng = stream(settings.seed, SENTENCES, sentence)
                relations, rejected = sampler.draw(rng)
                topic = lexicon.topic(document if settings.lexicon.topic is TopicScope.document else sentence)
                drawn = lexicon.draw(relations, rng, topic)  # i64 [words]
                sentences.append(" ".join([lexicon.words[word] for word in drawn]))
                np.add.at(word_counts, drawn, 1)
                squares = sum(length**2 for length in (len(drawn), *rejected))
                for name, value in zip(counts, (1, len(drawn), len(rejected), sum(rejected), squares), strict=True):
                    counts[name] += value
            lines.append(json.dumps({"id": str(document), "text": "\n".join(sentences)}) + "\n")
            if len(lines) == DOCUMENTS_AT_ONCE or document == documents[-1]:
                yield "".join(lines).encode()
                lines.clear()

    with folder_lock(text):
        replace_file(text, pieces())
        replace_file(counted, json_bytes({**counts, "word_counts": word_counts.tolist()}))


def _finish(out: Path, numbers: range, record: dict[str, Any], grammar: Grammar, lexicon: Lexicon) -> dict[str, Any]:
    """Write the report and, last, the manifests. Returns the report."""
    texts = [path for number in numbers for path in _files(out, number)]
    counted = [read_object(path, fix=AGAIN) for path in texts[1::2]]
    report = _report(counted, grammar, lexicon) | {"pairs": _pair_information(texts[::2], lexicon)}
    report["text"]["documents"] = -(-record["sentences"] // record["sentences_per_document"])
    replace_file(out / REPORT, json_bytes(report))
    parts = {TOKENIZER: read_manifest(out / TOKENIZER, kind=TOKENIZER_KIND).digest}
    replace_file(out / TEXTS / MANIFEST_NAME, manifest_bytes(TEXTS_KIND, {}, _records(texts), {}))
    parts[TEXTS] = read_manifest(out / TEXTS, kind=TEXTS_KIND).digest
    files = [out / name for name in (SETTINGS, GRAMMAR, LEXICON, GROUPS, REPORT)]
    replace_file(out / MANIFEST_NAME, manifest_bytes(KIND, record, _records(files), parts))
    return report


def _records(files: list[Path]) -> dict[str, Any]:
    return {file.name: {"bytes": file.stat().st_size, "sha256": sha256_of_file(file)} for file in files}


def _report(counted: list[dict[str, Any]], grammar: Grammar, lexicon: Lexicon) -> dict[str, Any]:
    """Counts of the text next to what was expected; entropies in nats."""
    sums = {name: sum(each[name] for each in counted) for name in counted[0] if name != "word_counts"}
    word_counts = np.sum([each["word_counts"] for each in counted], axis=0)  # i64 [V]
    sentences, words = sums["sentences"], sums["words"]
    shares = word_counts[word_counts > 0] / words  # f64 [words that occur]
    drawn = sentences + sums["rejected"]
    drawn_length = (words + sums["rejected_words"]) / drawn  # the expected length is that of all, however long
    variance = sums["squared_lengths"] / drawn - drawn_length**2
    of_types = word_counts.reshape(-1, lexicon.type_count).sum(axis=0)  # i64 [types]: of brackets both words
    of_relations = np.add.reduceat(of_types, lexicon.first_types[:-1]) / words  # f64 [R]
    rules = [rule.count for relation in grammar.relations for rule in relation.rules]
    known = lexicon.predictability()
    return {
        "grammar": {
            "sentences": grammar.sentences,
            "dropped_sentences": grammar.dropped_sentences,
            "treebank_words": grammar.treebank_tokens,
            "treebank_relations": grammar.treebank_relations,
            "words": int(grammar.counts.sum()),
            "crossing_subtrees": grammar.crossing_subtrees,
            "rules": len(rules),
            "rules_seen_once": rules.count(1),
            "spectral_radius": grammar.spectral_radius,
            "expected_length": grammar.expected_length,
        },
        "text": {
            "sentences": sentences,
            "words": words,
            "mean_length": words / sentences,
            "rejected": sums["rejected"],
            "rejected_share": sums["rejected"] / drawn,
            "drawn_length": drawn_length,
            "drawn_length_standard_error": sqrt(max(variance, 0) / drawn),
            "most_frequent_word_share": float(shares.max()),
            "unigram_perplexity": exp(-float((shares * np.log(shares)).sum())),
        },
        "relations": {
            name: {"types": int(size), "expected_share": float(expected), "share": float(share)}
            for name, size, expected, share in zip(
                lexicon.relations, lexicon.sizes, lexicon.shares, of_relations, strict=True
            )
        },
        "relation_entropy": -float((lexicon.shares * np.log(lexicon.shares)).sum()),
        "temperature": lexicon.temperature,
        "ceilings": known and {"word_entropy": known[0], "word_perplexity": exp(known[0]), "top1": known[1]},
    }


def _pair_information(files: list[Path], lexicon: Lexicon) -> dict[str, float]:
    """Mutual information of the pairs of words of a sentence, in nats, and the same with words exchanged.

    Words are exchanged with those of the same relation anywhere, which leaves what the grammar and frequencies bring,
    and the bias of a plug-in estimate; what is above that is co-occurrence: 0 for zipf.
    """
    ids = {word: number for number, word in enumerate(lexicon.words)}
    lines = (line for file in files for _, line in read_lines(file))
    texts = (text for line in lines for text in json.loads(line)["text"].split("\n"))
    sentences = [[ids[word] for word in text.split()] for text in islice(texts, PAIR_SENTENCES)]
    lengths = [len(sentence) for sentence in sentences]
    starts = np.append(0, np.cumsum(lengths))[:-1]  # i64 [sentences]
    pairs = [np.stack(np.triu_indices(length, 1)) + start for length, start in zip(lengths, starts, strict=True)]
    places = np.concatenate(pairs, axis=1)  # i64 [2, P]
    words = np.concatenate([np.array(sentence, dtype=np.int64) for sentence in sentences])  # i64 [words]
    kinds = np.repeat(np.arange(len(lexicon.sizes)), lexicon.sizes)[words % lexicon.type_count]  # i64 [words]
    kinds += (words >= lexicon.type_count) * len(lexicon.sizes)  # closing words among themselves
    order = np.lexsort(
        (stream(lexicon.seed, SAMPLE, PAIR_SENTENCES).random(len(words)), kinds)
    )  # i64 [words], at random within a kind
    exchanged = np.empty_like(words)  # i64 [words]
    exchanged[np.argsort(kinds, kind="stable")] = words[order]
    found, chance = (_information(each[places], len(lexicon.words)) for each in (words, exchanged))
    return {"information": found, "exchanged": chance, "excess": found - chance, "sentences": float(len(sentences))}


def _information(pairs: np.ndarray, size: int) -> float:
    """The plug-in estimate of the mutual information of both sides of `pairs`, i64 [2, P], of words below `size`."""
    total = pairs.shape[1]
    if not total:
        return 0.0
    seen, counts = np.unique(pairs[0] * size + pairs[1], return_counts=True)  # i64 [different pairs] each
    left, right = (np.bincount(side, minlength=size) for side in pairs)  # i64 [V] each
    expected = left[seen // size] * right[seen % size] / total  # f64 [different pairs]
    return float((counts / total * np.log(counts / expected)).sum())
