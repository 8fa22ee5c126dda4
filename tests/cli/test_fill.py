"""`npmlm fill` as a user meets it."""

from __future__ import annotations

import json
import math
import re
import shutil
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from npm import PhraseFiller
from npm.cli.cards import answer_json
from npm.cli.registry import DECLARED, find_verb
from npm.core.types import Answer, Phrase
from npm.models import names
from npm.models.settings import PoolerKind
from npm.retrieval.settings import FillSettings
from tests.helpers.command_line import DOCUMENTS, QUESTION, CommandLine, all_bytes, write_corpus
from tests.helpers.live_indexes import part_of
from tests.helpers.tiny_models import tiny_encoder

TEXTS = {document["id"]: document["text"] for document in DOCUMENTS}
PLACE = ["document", "title", "start_char", "end_char", "context", "context_start_char"]
PLACE += ["context_end_char", "phrase_start", "phrase_end"]


def check_contract(answer: dict[str, object], *, k: int = 5) -> None:
    """Every field of an answer in JSON, against the documents that were indexed."""
    assert set(answer) - {"line"} == {"text", "phrases", "cut", "notes", "status", "confidence"}
    phrases = answer["phrases"]
    assert isinstance(phrases, list)
    assert 1 <= len(phrases) <= k
    scores = [phrase["score"] for phrase in phrases]
    assert scores == sorted(scores, reverse=True)
    assert 0 < sum(scores) <= 1 + 1e-9
    for phrase in phrases:
        assert list(phrase) == ["phrase", "score", "occurrence_count", "occurrences"]
        assert 1 <= len(phrase["occurrences"]) <= min(3, phrase["occurrence_count"])
        for place in phrase["occurrences"]:
            assert list(place) == PLACE
            assert place["context"][place["phrase_start"] : place["phrase_end"]].split() == phrase["phrase"].split()
            text = TEXTS[place["document"]]
            surface = text[place["start_char"] : place["end_char"]]
            assert " ".join(surface.casefold().split()) == " ".join(phrase["phrase"].casefold().split())
            begin = place["context_start_char"]
            assert text[begin : begin + len(place["context"])] == place["context"]
            assert begin <= place["start_char"] < place["end_char"] <= begin + len(place["context"])
            assert place["title"] == next(item["title"] for item in DOCUMENTS if item["id"] == place["document"])


@pytest.mark.parametrize("retrieval", ["dense", "bm25", "hybrid"])
def test_answers_in_json_keep_the_contract(retrieval: str, npmlm: CommandLine, built_index: Path) -> None:
    texts = [QUESTION, "Who wrote Don Quixote? <mask>", "Łódź is in <mask>"]
    outcome = npmlm(
        "fill", f"index={built_index}", "output=json", "k=4", f"retrieval={retrieval}", "overlaps=keep", *texts
    ).done()
    answers = outcome.answers()
    assert [answer["text"] for answer in answers] == texts
    for answer in answers:
        check_contract(answer, k=4)


@pytest.mark.parametrize("scoring", ["default", "reference"])
def test_the_python_api_gives_the_same_content(scoring: str, npmlm: CommandLine, built_index: Path) -> None:
    outcome = npmlm("fill", f"index={built_index}", "output=json", "k=3", f"scoring={scoring}", QUESTION)
    settings = FillSettings.reference() if scoring == "reference" else None
    answer = PhraseFiller.open(str(built_index), settings=settings).fill(QUESTION, k=3)
    assert outcome.answers() == [json.loads(json.dumps(asdict(answer)))]


def test_a_score_that_is_no_number_never_becomes_json() -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        answer_json(Answer("<mask>", (Phrase("x", math.nan, 1, ()),)))


def test_a_card_shows_phrase_score_sentence_title_and_id(npmlm: CommandLine, built_index: Path) -> None:
    outcome = npmlm("fill", f"index={built_index}", "k=1", "The Bank of <mask> was founded").done()
    assert "The Bank of <mask> was founded" in outcome.out
    for part in (" 1  1.000  America", "«", "»", "Bank (bank)"):
        assert part in outcome.out


TWO_MASKS = "<mask> is the capital of <mask>."


def test_several_masks_get_phrases_for_each_and_fillings_of_all(npmlm: CommandLine, built_index: Path) -> None:
    outcome = npmlm("fill", f"index={built_index}", "output=json", "k=3", "overlaps=keep", QUESTION, TWO_MASKS).done()
    single, joint = outcome.answers()
    check_contract(single, k=3)
    assert list(joint) == ["text", "phrases", "cut", "notes", "status", "confidence", "masks", "fillings"]
    assert (joint["text"], joint["phrases"], joint["cut"]) == (TWO_MASKS, [], False)
    assert len(joint["masks"]) == 2
    for mask in joint["masks"]:
        assert list(mask) == ["phrases"]
        check_contract({"text": TWO_MASKS, "cut": False, "notes": [], "status": "ok", "confidence": None, **mask}, k=3)
    scores = [filling["score"] for filling in joint["fillings"]]
    assert 0 < len(scores) <= 3 and scores == sorted(scores, reverse=True) and sum(scores) <= 1 + 1e-9
    assert all(list(filling) == ["phrases", "score"] and len(filling["phrases"]) == 2 for filling in joint["fillings"])


@pytest.mark.parametrize("columns", [30, 100])
def test_the_fillings_stand_in_a_table_above_the_phrases_of_each_mask(
    columns: int, npmlm: CommandLine, built_index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    best = npmlm("fill", f"index={built_index}", "output=json", "k=2", TWO_MASKS).answers()[0]["fillings"][0]
    shown = npmlm("fill", f"index={built_index}", "k=2", TWO_MASKS).out
    assert " ".join(shown.split()).startswith(TWO_MASKS)
    assert max(map(len, shown.splitlines())) <= columns
    above, first, second = re.split(r"\nmask [12]\n", shown)
    assert all(word in above for phrase in best["phrases"] for word in phrase.split())
    assert f"{best['score']:.3f}" in above
    assert "«" not in above and "«" in first and "«" in second


def test_all_lines_are_checked_before_any_is_answered(npmlm: CommandLine, built_index: Path, tmp_path: Path) -> None:
    file = tmp_path / "texts, odd='name'.txt"
    command = ("fill", f"index={built_index}", "output=json", f"texts={file}")
    npmlm(*command).refused("No such file", str(file))
    faults = {
        b"": ("empty",),
        b"\n \n": ("empty",),
        "\n\u00a0\n".encode(): ("empty",),
        QUESTION.encode() + b"\n" + b"<mask>" * 9 + b"\n": ("got 9", f"{file}, line 2"),
        QUESTION.encode() + b"\n\n\n" + b"<mask>" * 9: ("got 9", f"{file}, line 4"),  # blank lines count
        QUESTION.encode() + b"\n<mask> \xff\n": ("byte 0xff", f"{file}, line 2"),
        b"<mask> " * 9: ("got 9", "line 1", "one to 8 <mask>"),
    }
    for content, parts in faults.items():
        file.write_bytes(content)
        npmlm(*command).refused(*parts)
    file.write_bytes(f"\n{QUESTION}\r\n \r\n\n<mask> lies in Norway\n\n".encode())
    answers = npmlm(*command).answers()
    assert [(answer["line"], answer["text"]) for answer in answers] == [(2, QUESTION), (5, "<mask> lies in Norway")]
    file.write_bytes(b"\xef\xbb\xbf" + QUESTION.encode())  # a byte order mark is no part of a text
    assert npmlm(*command).answers()[0] == {**answers[0], "line": 1}
    npmlm(*command, QUESTION).refused("texts=FILE")


def test_piped_lines_one_by_one(npmlm: CommandLine, built_index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = ("fill", f"index={built_index}", "output=json")
    outcome = npmlm(*command, stdin=f"\ufeff{QUESTION}\r\n\nk=3 <mask>\n".encode())
    assert [(answer["line"], answer["text"]) for answer in outcome.answers()] == [(1, QUESTION), (3, "k=3 <mask>")]
    assert "line" not in npmlm(*command, QUESTION).answers()[0]
    npmlm(*command, stdin=b"").refused("standard input")
    outcome = npmlm(*command, stdin=f"{QUESTION}\n{'<mask>' * 9}\n\n{QUESTION}\n<mask> ".encode() + b"\xff\n")
    assert outcome.status == 2
    assert [answer["line"] for answer in outcome.answers()] == [1, 4]
    assert "standard input, line 2" in outcome.err and "line 5" in outcome.err and "UTF-8" in outcome.err
    monkeypatch.setattr(sys, "stdin", None)
    npmlm("fill", f"index={built_index}").refused("standard input")


def test_a_setting_with_a_mask_and_all_after_two_dashes_is_text(npmlm: CommandLine, built_index: Path) -> None:
    texts = ["x=1 <mask>", "index=<mask>", "+k=<mask> (,'\"$~#[", "${x} <mask> \\ ünï"]
    outcome = npmlm("fill", f"index={built_index}", "output=json", *texts, "--", "k=2 <mask>", "--help <mask>")
    assert [answer["text"] for answer in outcome.answers()] == [*texts, "k=2 <mask>", "--help <mask>"]
    assert npmlm("fill", f"index={built_index}", "output=json", "--", "k=2").answers()[0]["text"] == "k=2? <mask>."


def test_a_text_too_long_for_the_encoder_is_cut_around_its_mask(npmlm: CommandLine, built_index: Path) -> None:
    long = "Oslo is far away. " * 60 + "The capital is <mask>." + " Paris is near." * 60
    endless = "lorem ipsum " * 10_000 + QUESTION + "x" * 120_000
    outcome = npmlm("fill", f"index={built_index}", "output=json", long, QUESTION, endless).done()
    cut, whole, of_endless = outcome.answers()
    assert cut["cut"] is of_endless["cut"] is True
    assert whole["cut"] is False and whole["notes"] == []
    assert "note: text 1 of 3: the text is longer" in outcome.err
    assert cut["notes"]
    check_contract(cut)
    table = npmlm("fill", f"index={built_index}", endless).done()
    assert len(table.out) < 10_000


def test_control_characters_never_reach_the_terminal(npmlm: CommandLine, built_index: Path) -> None:
    text = "The \x1b[31mcapital\x07 of Iceland is <mask>.\x00"
    outcome = npmlm("fill", f"index={built_index}", "output=json", text)
    assert outcome.answers()[0]["text"] == text
    assert "control characters" in outcome.err
    assert any("control characters" in note for note in outcome.answers()[0]["notes"])
    assert outcome.err.startswith("note: the text contains")
    piped = npmlm("fill", f"index={built_index}", "output=json", stdin=f"\n{QUESTION}\n{text}".encode())
    assert piped.err == "note: standard input, line 3: the text contains control characters\n"
    table = npmlm("fill", f"index={built_index}", text).done()
    assert not set("\x1b\x07\x00") & set(table.out)


def test_a_missing_or_unfinished_index_is_refused(npmlm: CommandLine, built_index: Path, tmp_path: Path) -> None:
    npmlm("fill", f"index={tmp_path / 'nowhere'}", QUESTION).refused("no folder", "nowhere", "build it first")
    unfinished = tmp_path / "unfinished"
    shutil.copytree(built_index, unfinished)
    (unfinished / "manifest.json").unlink()
    before = all_bytes(tmp_path)
    npmlm("fill", f"index={unfinished}", QUESTION).refused("did not finish", "run the command")
    npmlm("verify", f"index={unfinished}").refused("did not finish")
    npmlm("fill", f"index={part_of(unfinished, 'corpus')}", QUESTION).refused("phrase-index")
    npmlm("fill", f"index={unfinished / 'manifest.json'}", QUESTION).refused("manifest.json")
    assert all_bytes(tmp_path) == before


def test_another_encoder_than_that_of_the_index_and_a_damaged_shipped_one_are_refused(
    npmlm: CommandLine, built_index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny_encoder("bert", seed=1).save(tmp_path / "other")
    command = ("fill", f"index={built_index}", f"encoder={tmp_path / 'other'}", QUESTION)
    npmlm(*command).refused("made with another encoder", "fingerprint")
    npmlm("fill", f"index={built_index}", f"encoder={tmp_path / 'none'}", QUESTION).refused("none")
    shipped = tmp_path / "shipped"
    (tmp_path / "other").rename(shipped)
    (shipped / "model.safetensors").write_bytes(b"no weights")
    monkeypatch.setattr(names, "shipped_folder", lambda *_: shipped)
    npmlm("fill", f"index={built_index}", QUESTION).refused("shipped")


def test_an_index_of_an_earlier_edition_of_the_shipped_encoder_says_to_build_it_again(
    npmlm: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    editions = [tmp_path / "third", tmp_path / "fourth"]
    for seed, folder in enumerate(editions):
        tiny_encoder("bert", seed=seed).save(folder)
    monkeypatch.setattr(names, "shipped_folder", lambda *_: editions[0])
    corpus = write_corpus(tmp_path / "corpus.jsonl")
    npmlm("build", f"corpus.files={corpus}", f"index={tmp_path / 'index'}", "blocks.max_block_tokens=64").done()
    monkeypatch.setattr(names, "shipped_folder", lambda *_: editions[1])
    npmlm("fill", f"index={tmp_path / 'index'}", QUESTION).refused("another edition of encoder-mini", "build it again")


@pytest.mark.parametrize(("verb", "resumes"), [("fill", False), ("build", True)])
def test_an_interrupt(verb: str, resumes: bool, npmlm: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setitem(DECLARED, verb, replace(find_verb(verb), run=interrupted))
    outcome = npmlm(verb, "index=i")
    assert (outcome.status, outcome.out) == (130, "")
    assert ("the same command resumes" in outcome.err) == resumes


def test_tracebacks_come_with_debug(npmlm: CommandLine, built_index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    debugged = npmlm("fill", f"index={built_index}", "debug=true", "<mask>" * 9)
    assert debugged.status == 2
    assert "Traceback" in debugged.err

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("nobody thought of this")

    monkeypatch.setattr(PhraseFiller, "answers", broken)
    outcome = npmlm("fill", f"index={built_index}", QUESTION)
    assert outcome.status == 1
    assert "internal error: RuntimeError: nobody thought of this" in outcome.err
    assert "Traceback" not in outcome.err
    assert "Traceback" in npmlm("fill", f"index={built_index}", "debug=true", QUESTION).err


def test_an_index_without_block_vectors(npmlm: CommandLine, built_index: Path, tmp_path: Path) -> None:
    encoder = tiny_encoder("bert")
    encoder.sentence_pooler = PoolerKind.avg  # no part of the fingerprint: the index is still its own
    encoder.save(tmp_path / "encoder")
    asked = ("fill", f"index={built_index}", f"encoder={tmp_path / 'encoder'}", "output=json", QUESTION, QUESTION)
    for setting, on_stderr, in_answers in (("k=2", 1, 0), ("vector_share=0", 0, 0), ("vector_share=0.5", 0, 2)):
        outcome = npmlm(*asked, setting).done()
        assert outcome.err.count("vector_share=0 leaves this note out") == on_stderr
        assert outcome.err.count("into another folder") == on_stderr
        assert sum("no block vectors" in str(answer["notes"]) for answer in outcome.answers()) == in_answers
    npmlm(*asked, "retrieval=blocks").refused("retrieval=blocks", "retrieval=hybrid")


def test_an_answer_with_a_small_share_is_no_clear_answer(npmlm: CommandLine, built_index: Path) -> None:
    shown = npmlm(
        "fill", f"index={built_index}", "min_share=1", "overlaps=keep", "What is the capital of Iceland?"
    ).done()
    assert "no clear answer" in shown.out
    assert "What is the capital of Iceland?\n" in shown.out
    assert "below min_share=1" in shown.err and "\n 1  " not in shown.out  # no phrase is called the answer
    sentences = shown.out.partition("closest sentences:")[2]
    assert 1 <= sentences.count("«") <= 3 and "Reykjav" in sentences
    programs = npmlm("fill", f"index={built_index}", "min_share=1", "overlaps=keep", "output=json", QUESTION, TWO_MASKS)
    assert [each["status"] for each in programs.answers()] == ["low_evidence"] * 2
    assert programs.answers()[0]["phrases"] and programs.answers()[1]["fillings"]
