"""Artificial text: sentences of a grammar with the words of a lexicon, in files that depend on the settings alone.

OUT/texts/NNNNN.jsonl        id and text of documents, a line of the text for each sentence
OUT/texts/counts.json        their counts
OUT/tokenizer                a fast tokenizer of full words
OUT/grammar.json             rules with their counts
OUT/lexicon.json, groups.json  of every word its relation, rank, probability; its relation alone
OUT/report.json              statistics, and the optimum of a model that knows the grammar
OUT/manifest.json            written last, with SHA-256 of all

Sentence i is a function of (seed, i). Texts are written all or not at all: a kill costs minutes at most.

Shapes: R relations, V words of the lexicon.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from functools import partial
from math import exp, sqrt
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import NonNegativeInt, PositiveInt

from npm.core.artifact import MANIFEST_NAME, finished_folder, manifest_bytes, written_once
from npm.core.errors import ArtifactError, CorpusError, exclusive, missing, named
from npm.core.files import FolderWriter, json_bytes, read_object, replace_file, sha256_of_file
from npm.core.settings import PathText, Settings, as_json
from npm.core.types import Progress, silent
from npm.corpus.tokenizers import SPECIALS, make_tokenizer, pieces_of, write_tokenizer
from studies.artificial.grammar import (
    Grammar,
    GrammarSettings,
    RelationSampler,
    count_grammar,
    read_treebank,
    treebank_files,
)
from studies.artificial.lexicons import SENTENCES, Lexicon, LexiconSettings, stream

KIND, TEXTS_KIND = "artificial-corpus", "artificial-texts"
TEXTS, TOKENIZER = "texts", "tokenizer"
REPORT = "report.json"
FILES = ("grammar.json", "lexicon.json", "groups.json", REPORT)


class GenerateSettings(Settings):
    """Settings of `npmlm generate`."""

    treebank: list[PathText] = field(default_factory=list)
    """CoNLL-U files whose dependency trees the grammar is counted in. Required, or grammar.file."""
    sentences: PositiveInt = 1_000_000
    """Sentences, all of them."""
    sentences_per_document: PositiveInt = 1
    """Sentences of a document."""
    sentences_per_file: PositiveInt = 50_000
    """Sentences of a file, rounded down to full documents."""
    seed: NonNegativeInt = 0
    """Seed of all draws; sentence i depends on it and on i alone."""
    target: PathText = ""
    """Folder of the tokenizer of a target language: words that are pieces of it are refused."""
    grammar: GrammarSettings = field(default_factory=GrammarSettings)
    """Counting of the grammar, and drawing from it."""
    lexicon: LexiconSettings = field(default_factory=LexiconSettings)
    """The words of the language."""

    def check(self) -> None:
        """Raise SettingError for a treebank next to a grammar."""
        if self.treebank and self.grammar.file:
            raise exclusive("treebank", "grammar.file")


@dataclass(frozen=True, slots=True)
class Generated:
    """Result of `generate`."""

    report: dict[str, Any]
    was_finished: bool


def generate(out: str | Path, settings: GenerateSettings, *, progress: Progress = silent) -> Generated:
    """Write the texts, their tokenizer and the report, unless they are there.

    Raises CorpusError for a file that is not a treebank, for a grammar whose sentences need not end and for words that
    the target has too, ArtifactError if `out` holds something else, SettingError where no sentence is short enough.
    """
    out = Path(out)
    grammar, record = _grammar(settings)
    grammar.refuse_endless(settings.grammar.file or ", ".join(settings.treebank))
    lexicon = Lexicon(grammar, settings.lexicon, seed=settings.seed)
    if settings.target and (shared := sorted(set(lexicon.words) & pieces_of(Path(settings.target)))):
        raise CorpusError(
            f"the lexicon shares words with target={settings.target}, {named(shared)}: give the tokenizer of another "
            "language"
        )
    if was_finished := finished_folder(out, kind=KIND, settings=record) is not None:
        progress = silent
    elif out.is_file() or (
        out.is_dir() and any(path.name not in (TEXTS, TOKENIZER, *FILES) for path in out.glob("[!.]*"))
    ):
        raise ArtifactError(f"{out} holds something else; choose another folder")
    write = partial(_write_texts, settings=settings, grammar=grammar, lexicon=lexicon, progress=progress)
    texts = written_once(out / TEXTS, kind=TEXTS_KIND, settings=record, write=write)
    if was_finished:
        return Generated(read_object(out / REPORT, fix="generate it again"), was_finished=True)
    tokenizer = write_tokenizer(out / TOKENIZER, make_tokenizer(None, [*SPECIALS, *lexicon.words]), settings=record)
    counts = read_object(out / TEXTS / "counts.json", fix="generate it again")
    report = _report(counts, settings, grammar, lexicon)
    words = lexicon.record()
    groups = {word: each["relation"] for word, each in words["words"].items()}
    for name, content in zip(FILES, (asdict(grammar), words, groups, report), strict=True):
        replace_file(out / name, json_bytes(content))
    files = {name: {"bytes": (out / name).stat().st_size, "sha256": sha256_of_file(out / name)} for name in FILES}
    parts = {TEXTS: texts.digest, TOKENIZER: tokenizer.digest}
    replace_file(out / MANIFEST_NAME, manifest_bytes(KIND, record, files, parts))
    return Generated(report, was_finished=False)


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


def _write_texts(
    folder: FolderWriter, settings: GenerateSettings, grammar: Grammar, lexicon: Lexicon, progress: Progress
) -> None:
    """Write the files of texts, and the counts of their draws."""
    sampler = RelationSampler(grammar, settings.grammar)
    size, total = settings.sentences_per_document, settings.sentences
    per_file = max(1, settings.sentences_per_file // size)
    counts = {"rejected": 0, "rejected_words": 0, "squared_lengths": 0}
    word_counts = np.zeros(len(lexicon.words), dtype=np.int64)  # [V]
    documents = range(-(-total // size))
    for number, first in enumerate(range(0, len(documents), per_file)):
        progress("sentences", first * size, total)
        with folder.open_binary(f"{number:05d}.jsonl") as file:
            for document in documents[first : first + per_file]:
                sentences = []
                for sentence in range(document * size, min((document + 1) * size, total)):
                    rng = stream(settings.seed, SENTENCES, sentence)
                    relations, rejected = sampler.draw(rng)
                    drawn = lexicon.draw(relations, rng, lexicon.topic(sentence))  # i64 [words]
                    sentences.append(" ".join([lexicon.words[word] for word in drawn]))
                    np.add.at(word_counts, drawn, 1)
                    squares = sum(length**2 for length in (len(drawn), *rejected))
                    for name, value in zip(counts, (len(rejected), sum(rejected), squares), strict=True):
                        counts[name] += value
                file.write((json.dumps({"id": str(document), "text": "\n".join(sentences)}) + "\n").encode())
    progress("sentences", total, total)
    folder.write_json("counts", {**counts, "word_counts": word_counts.tolist()})


def _report(counts: dict[str, Any], settings: GenerateSettings, grammar: Grammar, lexicon: Lexicon) -> dict[str, Any]:
    """Counts of the text next to the expected ones; entropies in nats."""
    word_counts = np.array(counts["word_counts"])  # i64 [V]
    sentences, words = settings.sentences, int(word_counts.sum())
    drawn = sentences + counts["rejected"]
    drawn_length = (words + counts["rejected_words"]) / drawn  # the expected length is that of all, however long
    variance = counts["squared_lengths"] / drawn - drawn_length**2
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
            "rules": len(rules),
            "rules_seen_once": rules.count(1),
            "spectral_radius": grammar.spectral_radius,
            "expected_length": grammar.expected_length,
        },
        "text": {
            "sentences": sentences,
            "words": words,
            "documents": -(-sentences // settings.sentences_per_document),
            "mean_length": words / sentences,
            "rejected": counts["rejected"],
            "rejected_share": counts["rejected"] / drawn,
            "drawn_length": drawn_length,
            "drawn_length_standard_error": sqrt(max(variance, 0) / drawn),
            "most_frequent_word_share": float(word_counts.max() / words),
            "unigram_perplexity": exp(_entropy(word_counts)),
        },
        "relations": {
            name: {"types": int(size), "expected_share": float(expected), "share": float(share)}
            for name, size, expected, share in zip(
                lexicon.relations, lexicon.sizes, lexicon.shares, of_relations, strict=True
            )
        },
        "relation_entropy": _entropy(lexicon.shares),
        "temperature": lexicon.temperature,
        "ceilings": known and {"word_entropy": known[0], "word_perplexity": exp(known[0]), "top1": known[1]},
    }


def _entropy(counts: np.ndarray) -> float:
    """Entropy, in nats, of the distribution that is proportional to `counts`, i64 or f64 [.]."""
    shares = counts[counts > 0] / counts.sum()  # f64 [.]
    return -float((shares * np.log(shares)).sum())
