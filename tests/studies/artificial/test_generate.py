"""Artificial text: the same bytes however it is made, what it is recounted to, and what is refused."""

from __future__ import annotations

import itertools
import json
import math
import random
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from npm.core.errors import ArtifactError, CorpusError, SettingError
from npm.models.tokenizer import load_tokenizer
from studies.artificial import generate as generating
from studies.artificial.generate import GenerateSettings, generate
from studies.artificial.grammar import GrammarSettings, RelationSampler
from studies.artificial.lexicons import LexiconSettings
from tests.helpers.command_line import all_bytes
from tests.studies.treebanks import write_treebank


@pytest.fixture(scope="module")
def treebank(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_treebank(tmp_path_factory.mktemp("treebank") / "toy.conllu")


def settings_for(treebank: Path, **given: Any) -> GenerateSettings:
    lexicon = LexiconSettings(types=30, **given.pop("lexicon", {}))
    return GenerateSettings(
        **{"treebank": [str(treebank)], "sentences": 95, "sentences_per_file": 20, "lexicon": lexicon, **given}
    )


def texts_of(folder: Path) -> list[dict[str, str]]:
    files = sorted(folder.glob("texts/*.jsonl"))
    return [json.loads(line) for file in files for line in file.read_text("utf-8").splitlines()]


@pytest.fixture(scope="module")
def made(treebank: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("artificial") / "made"
    assert not generate(folder, settings_for(treebank)).was_finished
    return folder


def test_a_generation_that_was_killed_is_finished_by_the_same_command_in_the_same_bytes(
    made: Path, treebank: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw, drawn = RelationSampler.draw, Counter[str]()

    def killed(self: RelationSampler, rng: np.random.Generator) -> tuple[list[int], list[int]]:
        drawn["sentences"] += 1
        if drawn["sentences"] == 50:
            raise KeyboardInterrupt
        return draw(self, rng)

    monkeypatch.setattr(RelationSampler, "draw", killed)
    with pytest.raises(KeyboardInterrupt):
        generate(tmp_path / "killed", settings_for(treebank))
    assert not (tmp_path / "killed" / "manifest.json").exists()
    monkeypatch.setattr(generating, "_report", None)  # killed again when the texts are there
    with pytest.raises(TypeError):
        generate(tmp_path / "killed", settings_for(treebank))
    (tmp_path / "killed" / ".texts.tmp").mkdir()
    monkeypatch.undo()
    generate(tmp_path / "killed", settings_for(treebank))
    (tmp_path / "killed" / ".texts.tmp").rmdir()
    assert all_bytes(tmp_path / "killed") == all_bytes(made)
    assert sorted(file.name for file in (made / "texts").glob("*.jsonl")) == [f"0000{n}.jsonl" for n in range(5)]


def test_a_sentence_depends_on_its_number_and_the_seed_alone(made: Path, treebank: Path, tmp_path: Path) -> None:
    generate(tmp_path / "more", settings_for(treebank, sentences=200, sentences_per_file=70))
    assert texts_of(tmp_path / "more")[:95] == texts_of(made)
    generate(tmp_path / "other", settings_for(treebank, seed=1))
    assert texts_of(tmp_path / "other") != texts_of(made)
    generate(tmp_path / "documents", settings_for(treebank, sentences_per_document=10))
    documents = texts_of(tmp_path / "documents")
    assert [each["text"].count("\n") + 1 for each in documents] == [10] * 9 + [5]
    assert [line for each in documents for line in each["text"].split("\n")] == [
        each["text"] for each in texts_of(made)
    ]
    assert [each["id"] for each in documents] == [str(number) for number in range(10)]


def test_the_report_is_what_is_counted_in_the_texts(made: Path) -> None:
    report = json.loads((made / "report.json").read_text())
    sentences = [each["text"].split() for each in texts_of(made)]
    words = Counter(word for sentence in sentences for word in sentence)
    lengths = [len(sentence) for sentence in sentences]
    text = report["text"]
    assert (text["sentences"], text["documents"], text["words"]) == (95, 95, words.total())
    assert text["mean_length"] == pytest.approx(np.mean(lengths))
    assert text["drawn_length"] == pytest.approx(np.mean(lengths)) and text["rejected"] == 0
    assert text["drawn_length_standard_error"] == pytest.approx(np.std(lengths) / math.sqrt(95))
    assert text["most_frequent_word_share"] == pytest.approx(words.most_common(1)[0][1] / words.total())
    entropy = -sum(count / words.total() * math.log(count / words.total()) for count in words.values())
    assert text["unigram_perplexity"] == pytest.approx(math.exp(entropy))
    lexicon = json.loads((made / "lexicon.json").read_text())["words"]
    relations = Counter(lexicon[word]["relation"] for word in words.elements())
    assert {name: each["share"] for name, each in report["relations"].items()} == pytest.approx(
        {name: relations[name] / words.total() for name in report["relations"]}
    )
    assert json.loads((made / "groups.json").read_text()) == {word: each["relation"] for word, each in lexicon.items()}
    assert report["grammar"]["expected_length"] == pytest.approx(4)


def test_sentences_that_are_too_long_count_for_the_expected_length(treebank: Path, tmp_path: Path) -> None:
    settings = settings_for(treebank, sentences=3000, sentences_per_file=3000, grammar=GrammarSettings(max_tokens=4))
    report = generate(tmp_path / "short", settings).report
    text = report["text"]
    assert text["mean_length"] < 3.5 and text["rejected_share"] == pytest.approx(1 / 3 + 1 / 24, abs=0.02)
    assert abs(text["drawn_length"] - 4) < 4 * text["drawn_length_standard_error"] < 0.2


def test_every_word_is_a_token_of_the_tokenizer(made: Path) -> None:
    tokenizer = load_tokenizer(str(made / "tokenizer"))
    words = list(json.loads((made / "lexicon.json").read_text())["words"])
    text = texts_of(made)[0]["text"]
    assert tokenizer.tokenize(text) == text.split()
    assert sorted(tokenizer.convert_tokens_to_ids(words)) == list(range(5, 5 + len(words)))
    ids = tokenizer("unheard " + words[0]).input_ids
    assert tokenizer.convert_ids_to_tokens(ids) == ["[CLS]", "[UNK]", words[0], "[SEP]"]
    assert tokenizer.mask_token == "[MASK]" and len(tokenizer) == 5 + len(words)


def pair_information(sentences: list[list[str]]) -> float:
    """Plug-in estimate, in nats, of the mutual information of the pairs of words of a sentence."""
    pairs = Counter(pair for sentence in sentences for pair in itertools.combinations(sentence, 2))
    left, right = (Counter[str]() for _ in range(2))
    for (one, other), count in pairs.items():
        left[one] += count
        right[other] += count
    total = pairs.total()
    return sum(n / total * math.log(n * total / (left[one] * right[other])) for (one, other), n in pairs.items())


def test_words_of_one_topic_share_information_and_those_of_zipf_do_not(treebank: Path, tmp_path: Path) -> None:
    """Beyond what is left, grammar and frequencies, where words are exchanged with those of the same relation."""
    excess = {}
    for kind in ("zipf", "loglinear"):
        settings = settings_for(treebank, sentences=3000, sentences_per_file=3000, lexicon={"kind": kind})
        generate(tmp_path / kind, settings)
        groups = json.loads((tmp_path / kind / "groups.json").read_text())
        sentences = [row["text"].split() for row in texts_of(tmp_path / kind)]
        by_relation: dict[str, list[str]] = {}
        for word in itertools.chain(*sentences):
            by_relation.setdefault(groups[word], []).append(word)
        for words in by_relation.values():
            random.Random(0).shuffle(words)
        exchanged = [[by_relation[groups[word]].pop() for word in sentence] for sentence in sentences]
        excess[kind] = pair_information(sentences) - pair_information(exchanged)
    assert abs(excess["zipf"]) < 0.02 < 0.1 < excess["loglinear"]


def test_a_finished_folder_is_left_alone_and_another_one_refused(made: Path, treebank: Path, tmp_path: Path) -> None:
    before = all_bytes(made)
    again = generate(made, settings_for(treebank))
    assert again.was_finished and again.report == json.loads((made / "report.json").read_text())
    with pytest.raises(ArtifactError, match="other settings"):
        generate(made, settings_for(treebank, sentences=96))
    with pytest.raises(ArtifactError, match="input"):
        generate(made, settings_for(write_treebank(tmp_path / "other.conllu", [[("a", 0, "root")]])))
    assert all_bytes(made) == before
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "notes.txt").write_text("mine")
    with pytest.raises(ArtifactError, match="something else"):
        generate(tmp_path / "foreign", settings_for(treebank))
    assert all_bytes(tmp_path / "foreign") == {"notes.txt": b"mine"}
    text = shutil.copytree(made, tmp_path / "damaged") / "texts" / "00001.jsonl"
    text.write_bytes(text.read_bytes()[:-5])
    with pytest.raises(ArtifactError, match=r"00001\.jsonl"):
        generate(tmp_path / "damaged", settings_for(treebank))


def test_a_grammar_of_an_earlier_text_stands_for_the_treebank(made: Path, tmp_path: Path) -> None:
    lexicon = LexiconSettings(types=30)
    grammar = GrammarSettings(file=str(made / "grammar.json"))
    settings = GenerateSettings(grammar=grammar, lexicon=lexicon, sentences=95, sentences_per_file=20)
    generate(tmp_path / "again", settings)
    assert texts_of(tmp_path / "again") == texts_of(made)
    with pytest.raises(SettingError, match=r"treebank and grammar\.file"):
        GenerateSettings(treebank=["a.conllu"], grammar=grammar)
    with pytest.raises(SettingError, match="treebank"):
        generate(tmp_path / "none", GenerateSettings())


def test_words_that_the_target_has_too_are_refused_before_and_after(made: Path, treebank: Path, tmp_path: Path) -> None:
    target = str(made / "tokenizer")  # as if artificial text were the target
    for folder in (tmp_path / "new", made):
        with pytest.raises(CorpusError, match="shares words"):
            generate(folder, settings_for(treebank, target=target))
    assert not (tmp_path / "new").exists()
