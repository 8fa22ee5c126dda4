"""Models that write words and answers: against `transformers` one word at a time, the kNN-LM in plain loops."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from npm.core.errors import EncoderError
from npm.core.types import silent
from npm.evaluation.methods.parametric import GoldLengthPhrases
from npm.evaluation.methods.registry import Resources, load_method
from npm.evaluation.settings import CausalSettings, ZeroShotEvaluation, ZeroShotSettings
from npm.evaluation.tasks import Example, Label, Task, TaskData
from npm.indexing.phrase_index import PhraseIndex
from npm.models.denoiser import Denoiser
from npm.models.encoder import Encoder
from npm.models.masked_lm import MaskedHead
from npm.retrieval.settings import FillSettings
from studies import decoder as decoders
from studies import generative
from studies.decoder import Decoder
from studies.generative import (
    DecoderWriter,
    NeighbourLogs,
    PhraseWriter,
    SentinelWriter,
    first_line,
    writer_logs,
)
from tests.helpers.language_models import examples_of, plain_log_probabilities, published, tiny_decoder, tiny_t5

WORDS = ("Paris", "the capital", "Bank of America", "the Bank", "o", "Reykjavík")
TEXTS = ("Paris is the <mask> of France.", "The capital is (<mask>).", "<mask> lies on the coast.", "It is\n <mask>")
TASK = Task(name="places", suite="open", data=TaskData(file="places.jsonl"), template="{{ text }}")


@pytest.fixture(scope="module")
def causal(tmp_path_factory: pytest.TempPathFactory) -> tuple[DecoderWriter, Any]:
    folder = tmp_path_factory.mktemp("models") / "gpt"
    model = tiny_decoder(folder)
    return DecoderWriter(Decoder.load(str(folder), device="cpu", dtype="float32")), model


@pytest.fixture(scope="module")
def t5(tmp_path_factory: pytest.TempPathFactory) -> tuple[SentinelWriter, Any]:
    folder = tmp_path_factory.mktemp("models") / "t5"
    model = tiny_t5(folder)
    return SentinelWriter(Denoiser.load(str(folder), device="cpu", dtype="float32")), model


def ids_of(model: Any, text: str) -> list[int]:
    ids: list[int] = model.tokenizer.encode(text, add_special_tokens=False)
    return ids


def word_ids(writer: Any, text: str, word: str) -> list[int]:
    before = text.split("<mask>")[0]
    return ids_of(writer.model, f" {word}" if before[-1:].isspace() else word)


@torch.no_grad()
def plain_causal_log(model: Any, prefix: list[int], word: list[int]) -> float:
    logs = model(torch.tensor([[*prefix, *word]])).logits[0].log_softmax(1)  # f32 [L, V]
    return sum(logs[len(prefix) - 1 + place, token].item() for place, token in enumerate(word))


def causal_prefix(writer: DecoderWriter, text: str) -> list[int]:
    return ids_of(writer.model, text.split("<mask>")[0].rstrip()) or [writer.model.tokenizer.bos_token_id]


def test_a_decoder_gives_each_word_the_probability_that_transformers_gives_it_behind_the_text_before_the_mask(
    causal: tuple[DecoderWriter, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, model = causal
    expected = [
        [plain_causal_log(model, causal_prefix(writer, text), word_ids(writer, text, word)) for word in WORDS]
        for text in TEXTS
    ]
    found, cut = writer_logs(writer, TEXTS, WORDS)
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-4)
    assert np.ptp(expected, axis=0).min() > 0.1 and not cut.any()
    monkeypatch.setattr(decoders, "TOKENS_PER_BATCH", 1)
    np.testing.assert_allclose(writer_logs(writer, TEXTS, WORDS)[0], expected, rtol=0, atol=2e-4)


def test_a_text_that_is_too_long_keeps_its_end_and_room_for_the_longest_word(
    causal: tuple[DecoderWriter, Any],
) -> None:
    writer, model = causal
    text = "Oslo " * 60 + "is the capital <mask>"
    word = word_ids(writer, text, "Bank of America")
    kept = causal_prefix(writer, text)[-(64 - len(word)) :]
    found, cut = writer_logs(writer, (text, "It is <mask>"), ("Bank of America",))
    assert cut.tolist() == [True, False]
    assert found[0, 0] == pytest.approx(plain_causal_log(model, kept, word), abs=2e-4)


@torch.no_grad()
def plain_t5_log(writer: SentinelWriter, model: Any, text: str, word: list[int]) -> float:
    sentinel, end = writer.model.sentinel_ids[0], writer.model.end_id
    before, after = (ids_of(writer.model, half) for half in text.split("<mask>"))
    begun = [writer.model.pad_id, sentinel, *word]
    inputs = torch.tensor([[*before, sentinel, *after, end]])
    logs = model(input_ids=inputs, decoder_input_ids=torch.tensor([begun])).logits[0].log_softmax(1)  # f32 [L, V]
    return sum(logs[1 + place, token].item() for place, token in enumerate(word))


def test_an_encoder_decoder_gives_each_word_the_probability_that_transformers_gives_it_behind_a_sentinel(
    t5: tuple[SentinelWriter, Any],
) -> None:
    writer, model = t5
    expected = [[plain_t5_log(writer, model, text, word_ids(writer, text, word)) for word in WORDS] for text in TEXTS]
    np.testing.assert_allclose(writer_logs(writer, TEXTS, WORDS)[0], expected, rtol=0, atol=2e-4)
    assert np.ptp(expected, axis=0).min() > 0.01


@torch.no_grad()
def plain_neighbors(writer: DecoderWriter, model: Any, index: PhraseIndex, text: str) -> list[tuple[float, int]]:
    """Squared distance and next token of every prefix of the corpus, nearest first."""

    def states(ids: list[int]) -> torch.Tensor:
        found: torch.Tensor = model.transformer(torch.tensor([ids])).last_hidden_state[0]
        return found

    query = states(causal_prefix(writer, text))[-1]
    pairs = []
    for block in range(index.store.block_count):
        ids = ids_of(writer.model, index.store.block_text(block))[:64]
        keys = states(ids)
        pairs += [(float((keys[place - 1] - query).square().sum()), ids[place]) for place in range(1, len(ids))]
    return sorted(pairs)


def test_a_knn_lm_mixes_the_decoder_with_the_tokens_behind_its_nearest_prefixes(
    causal: tuple[DecoderWriter, Any], index_folder: Path
) -> None:
    writer, model = causal
    index = PhraseIndex.open(index_folder)
    share, temperature, k = 0.4, 5.0, 20
    found, _ = NeighbourLogs(writer, index, share=share, temperature=temperature, k=k)(TEXTS, WORDS)
    for row, text in enumerate(TEXTS):
        nearest = plain_neighbors(writer, model, index, text)[:k]
        weights = torch.tensor([-far / temperature for far, _ in nearest]).softmax(0).tolist()
        for column, word in enumerate(WORDS):
            ids = word_ids(writer, text, word)
            near = sum(weight for weight, (_, token) in zip(weights, nearest, strict=True) if token == ids[0])
            prefix = causal_prefix(writer, text)
            first, whole = plain_causal_log(model, prefix, ids[:1]), plain_causal_log(model, prefix, ids)
            expected = np.log(share * near + (1 - share) * np.exp(first)) + whole - first
            assert found[row, column] == pytest.approx(expected, abs=1e-3)
    alone, _ = writer_logs(writer, TEXTS, WORDS)
    assert np.abs(found - alone).max() > 0.3  # the corpus counts
    without, _ = NeighbourLogs(writer, index, share=0.0, temperature=temperature, k=10_000)(TEXTS, WORDS)
    np.testing.assert_allclose(without, alone, rtol=0, atol=1e-6)  # k beyond the corpus, no share


@torch.no_grad()
def plain_greedy(model: Any, ids: list[int], count: int, ends: list[int]) -> tuple[list[int], float]:
    """The likeliest next token again and again, and the log probability of all with the end."""
    written: list[int] = []
    total = 0.0
    for _ in range(count):
        row = model(torch.tensor([[*ids, *written]])).logits[0, -1].log_softmax(0)
        total += row.max().item()
        token = int(row.argmax())
        if token in ends:
            break
        written.append(token)
    return written, total


def test_an_open_answer_is_the_first_line_of_the_greedy_continuation(
    causal: tuple[DecoderWriter, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generative, "MOST_NEW_TOKENS", 6)
    writer, model = causal
    texts = ["Who? The answer is: <mask>.", "Oslo is the capital of <mask>.", "The Polish name is: <mask>."]
    asked = [
        "Question: Who?\nAnswer:",
        "Oslo is the capital of _____. Fill in the blank. Answer:",
        "The Polish name is:",
    ]
    answers = PhraseWriter(writer).predict(TASK, examples_of(texts), silent).answers
    for text, prompt, answer in zip(texts, asked, answers, strict=True):
        ids, log = plain_greedy(model, ids_of(writer.model, prompt), 6, [2])
        line = first_line(writer.model.tokenizer.backend_tokenizer.decode(ids), text)
        assert [(each.phrase, each.score) for each in answer.phrases] == (
            [(line, pytest.approx(np.exp(log), rel=1e-3))] if line else []
        )
    assert any(answer.phrases for answer in answers)


def saved(folder: Path, kind: str) -> Path:
    """A tiny model that writes, in `folder`."""
    (tiny_decoder if kind == "causal" else tiny_t5)(folder)
    return folder


def written_by(folder: Path, kind: str) -> list[list[tuple[list[int], float]]]:
    """What the model in `folder` writes for some texts: three at once, and one by one."""
    given: dict[str, Any] = {"device": "cpu", "dtype": "float32"}
    writer: Any
    if kind == "causal":
        writer = DecoderWriter(Decoder.load(str(folder), **given))
    else:
        writer = SentinelWriter(Denoiser.load(str(folder), **given))
    prompts, _ = writer.prompts([writer.open_text(text) for text in TEXTS[:3]], room=generative.MOST_NEW_TOKENS)
    return [writer.written(own) for own in (prompts, *([each] for each in prompts))]


def edit_json(path: Path, *without: str, **values: Any) -> None:
    stored = {name: value for name, value in json.loads(path.read_text()).items() if name not in without}
    path.write_text(json.dumps(stored | values))


@pytest.mark.parametrize("kind", ["causal", "t5"])
@pytest.mark.parametrize(
    "asked",
    [
        {"repetition_penalty": 3.0},
        {"no_repeat_ngram_size": 1, "num_beams": 4},
        {"do_sample": True, "temperature": 1.5, "top_p": 0.95},
        {"min_new_tokens": 9, "suppress_tokens": list(range(3, 300)), "use_cache": False},
    ],
    ids=lambda asked: next(iter(asked)),
)
def test_greedy_answers_are_those_without_a_generation_config_that_asks_for_something_else(
    kind: str, asked: dict[str, Any], tmp_path: Path
) -> None:
    folder = saved(tmp_path / kind, kind)
    expected = written_by(folder, kind)
    edit_json(folder / "generation_config.json", **asked)
    assert written_by(folder, kind) == expected
    (folder / "generation_config.json").unlink()
    assert written_by(folder, kind) == expected


def test_an_encoder_decoder_begins_as_either_config_says_and_with_its_padding_where_none_does(tmp_path: Path) -> None:
    key, files = "decoder_start_token_id", ("config.json", "generation_config.json")
    folder = saved(tmp_path / "t5", "t5")
    expected = written_by(folder, "t5")
    (start,) = {json.loads((folder / name).read_text())[key] for name in files}
    assert start == Denoiser.load(str(folder)).pad_id
    for name in files:  # the generation_config.json first: then both are without
        edit_json(folder / name, key)
        assert written_by(folder, "t5") == expected
    for name in files:
        edit_json(folder / name, **{key: 5})
        assert written_by(folder, "t5") != expected
        edit_json(folder / name, key)


@pytest.mark.parametrize(
    ("text", "asked", "answer"),
    [
        ("Who wrote it? <mask>.", "Question: Who wrote it?\nAnswer:", "Ann, or Bo."),
        ("Who wrote it? The answer is: <mask>.", "Question: Who wrote it?\nAnswer:", "Ann, or Bo."),
        ("Why? Who wrote it? Answer: <mask>", "Question: Why? Who wrote it?\nAnswer:", "Ann, or Bo."),
        ("The Polish translation of Who Dares? is: <mask>.", "The Polish translation of Who Dares? is:", "Ann"),
        ("The Polish translation of Who? Me! is: <mask>.", "The Polish translation of Who? Me! is:", "Ann"),
        ("Who Dares? is by <mask>.", "Who Dares? is by _____. Fill in the blank. Answer:", "Ann, or Bo."),
    ],
)
def test_a_question_is_what_the_text_before_the_mask_ends_with_and_a_title_with_a_question_mark_is_none(
    causal: tuple[DecoderWriter, Any], text: str, asked: str, answer: str
) -> None:
    assert causal[0].open_text(text) == f"{asked}<mask>"
    assert first_line(" Ann, or Bo.\nQuestion: ", text) == answer


def test_passages_stand_before_the_question_where_they_are_asked_for(
    causal: tuple[DecoderWriter, Any], index_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, _ = causal
    asked: list[str] = []

    def prompts(texts: list[str], *, room: int) -> Any:
        asked.extend(texts)
        return DecoderWriter.prompts(writer, texts, room=room)

    monkeypatch.setattr(writer, "prompts", prompts)
    text = "What is the capital of Iceland? <mask>"
    method = PhraseWriter(writer, PhraseIndex.open(index_folder))
    found = method.predict(TASK, examples_of([text]), silent)
    assert asked[0].startswith("Reykjavík is the capital of Iceland. It lies on the coast of Faxaflói.\n\nParis is")
    assert asked[0].endswith("\n\nQuestion: What is the capital of Iceland?\nAnswer:<mask>")
    assert found.answers[0].cut and found.facts["cut_texts"] == 1  # of 64 tokens the last stay
    first = PhraseIndex.open(index_folder).store.document(0).id
    method = PhraseWriter(writer, PhraseIndex.open(index_folder), FillSettings(documents=[first]))
    method.predict(TASK, examples_of([text]), silent)
    assert asked[-1].count("\n\n") == 1, "one document has one passage"


def test_an_encoder_decoder_writes_until_the_next_sentinel(
    t5: tuple[SentinelWriter, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generative, "MOST_NEW_TOKENS", 5)
    writer, model = t5
    texts = ["Paris is the <mask> of France.", "It is <mask>, which lies in the far north of the country."]
    prompts, _ = writer.prompts(texts, room=5)
    for prompt, (ids, log) in zip(prompts, writer.written(prompts), strict=True):
        begun, total = [writer.model.pad_id, writer.model.sentinel_ids[0]], 0.0
        with torch.no_grad():
            for _ in range(5):
                given = {"input_ids": torch.tensor([prompt.tolist()]), "decoder_input_ids": torch.tensor([begun])}
                row = model(**given).logits[0, -1].log_softmax(0)
                total += row.max().item()
                if int(row.argmax()) in (writer.model.end_id, writer.model.sentinel_ids[1]):
                    break
                begun.append(int(row.argmax()))
        assert (ids, log) == (begun[2:], pytest.approx(total, abs=1e-3))
    assert writer.open_text(texts[0]) == texts[0]


def test_as_many_masks_as_the_gold_answer_has_tokens_are_filled_from_left_to_right(
    model: tuple[Encoder, MaskedHead, Path],
) -> None:
    encoder, head, folder = model
    known = published(folder)
    text = "The river <mask> flows to the North Sea."
    example = Example("0", text, answers=("Bank of America in San Francisco", "Giannini Cervantes"))
    space = "" if encoder.name == "tiny-bert" else " "
    count = len(encoder.tokenizer.encode(f"{space}Giannini Cervantes", add_special_tokens=False))
    assert count > 1
    ids = encoder.tokenizer(text.replace("<mask>", encoder.tokenizer.mask_token * count))["input_ids"]
    masks = [place for place, token in enumerate(ids) if token == encoder.mask_id]
    written, log = [], 0.0
    for place in masks:
        with torch.no_grad():
            row = known(torch.tensor([ids])).logits[0, place].log_softmax(0)
        row[encoder.tokenizer.all_special_ids] = -torch.inf
        ids[place] = int(row.argmax())
        written.append(ids[place])
        log += row.max().item()
    method = GoldLengthPhrases(encoder, head)
    found = method.predict(TASK, [example], silent)
    (answer,) = found.answers
    assert answer.phrases[0].phrase == encoder.tokenizer.backend_tokenizer.decode(written).strip()
    assert answer.phrases[0].score == pytest.approx(np.exp(log), rel=1e-3)
    assert found.notes and "upper bound" in found.notes[0]
    assert plain_log_probabilities(known, encoder, text, count).shape[0] == count


def test_a_decoder_without_a_token_to_begin_with_is_refused_where_nothing_stands_before_the_mask(
    tmp_path: Path,
) -> None:
    tiny_decoder(tmp_path, bos=False)
    writer = DecoderWriter(Decoder.load(str(tmp_path), device="cpu", dtype="float32"))
    assert np.isfinite(writer_logs(writer, ("It is <mask>",), WORDS)[0]).all()
    with pytest.raises(EncoderError, match="bos_token"):
        writer_logs(writer, TEXTS, WORDS)
    model = ZeroShotSettings(causal=CausalSettings(model=str(tmp_path)))
    resources = Resources(ZeroShotEvaluation(zero_shot=model, device="cpu"))
    labels, data = [Label(value="bad", words=["bad"]), Label(value="good", words=["good"])], TaskData(file="t.jsonl")
    behind = Task(name="t", suite="closed", data=data, template="<mask> is {{ text }}", labels=labels)
    before = replace(behind, template="{{ text }} It is <mask>")
    assert load_method("causal", before, resources).name == "causal"
    with pytest.raises(EncoderError, match="bos_token"):
        load_method("causal", behind, resources)  # before anything is asked
