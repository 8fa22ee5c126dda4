"""Task `demo`: counted by hand from its own predictions, the baseline from a list of spans, end to end."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

from npm.core.artifact import check_folder, manifest_bytes, read_manifest
from npm.core.errors import ArtifactError, SettingError
from npm.evaluation.demo import DemoResult, Question, RandomSpanOfRightPassage, evaluate_demo, with_letter_noise
from npm.evaluation.metrics import is_hit, normalise_answer
from npm.evaluation.results import EVALUATION_KIND, check_out, write_results
from npm.evaluation.settings import DemoSettings, SampleSettings
from npm.evaluation.tasks import Split
from npm.models.encoder import Encoder
from npm.retrieval.fill import PhraseFiller
from npm.retrieval.settings import FillSettings, Overlaps, Retrieval
from tests.helpers.command_line import all_bytes

SETTINGS = FillSettings(retrieval=Retrieval.bm25, bm25_blocks=1, overlaps=Overlaps.keep)


@pytest.fixture(scope="module")
def filler(index_folder: Path, encoder: Encoder) -> PhraseFiller:
    return PhraseFiller.open(index_folder, encoder, settings=SETTINGS)


def evaluated(filler: PhraseFiller, file: Path, **settings: object) -> DemoResult:
    chosen = DemoSettings(questions=str(file), baseline=bool(settings.pop("baseline", True)))
    if "k" in settings:
        given = replace(filler.settings, k=settings.pop("k"))  # type: ignore[arg-type]
        filler = PhraseFiller(filler.index, filler.encoder, given)
    return evaluate_demo(filler, chosen, SampleSettings(resamples=100, **settings))  # type: ignore[arg-type]


def question(text: str, *answers: str) -> Question:
    return Question(id="q", kind="kind", text=text, answers=[*answers], split=Split.dev)


def test_rates_are_the_shares_of_questions_whose_first_phrases_are_right(
    filler: PhraseFiller, questions_file: Path
) -> None:
    result = evaluated(filler, questions_file, k=20)
    right_at_1 = right_at_k = 0
    for prediction in result.predictions:
        hits = [is_hit(phrase.phrase, prediction.question.answers) for phrase in prediction.answer.phrases]
        right_at_1 += bool(hits[:1] == [True])
        right_at_k += any(hits)
        assert prediction.hit_rank == (hits.index(True) + 1 if any(hits) else None)
    assert (result.total.hit_at_1.mean, result.total.hit_at_k.mean) == (right_at_1 / 5, right_at_k / 5)
    assert right_at_k >= 3  # one block has few phrases, so even a random encoder names the right one among 20


def test_a_share_of_the_letters_is_swapped_dropped_or_doubled_and_masks_are_not() -> None:
    asked = [question("ab " * 1000 + "<mask> ab.", "mask") for _ in range(2)]
    assert with_letter_noise(asked, 0.0, seed=0) == asked
    noisy = with_letter_noise(asked, 0.1, seed=0)
    assert noisy == with_letter_noise(asked, 0.1, seed=0) != with_letter_noise(asked, 0.1, seed=1)
    words = Counter(word for each in noisy for word in each.text.split()[:1000])
    assert {*words} == {"ab", "ba", "b", "aab"} and words["ab"] == pytest.approx(0.8 * 2000, abs=70)
    assert all(each.text.split()[1000] == "<mask>" and each.answers == ["mask"] for each in noisy)
    numbers = [question("1781 " * 1000 + "<mask>", "mask")]
    assert with_letter_noise(numbers, 0.5, seed=0) == numbers
    # digits take their draws, so that what comes behind them has the noise that it has behind as many letters
    behind = [with_letter_noise([question(f"{word} abcdef <mask>", "mask")], 0.3, seed=1) for word in ("1781", "word")]
    assert len({each.text.split()[1] for (each,) in behind}) == 1 and "abcdef" not in behind[0][0].text


def test_blocks_that_hold_an_answer_are_counted_in_the_ranking_by_words(
    filler: PhraseFiller, questions_file: Path
) -> None:
    result = evaluated(filler, questions_file)
    store, ranked = filler.index.store, [[], []]  # type: ignore[var-annotated]
    for prediction in result.predictions:
        asked = prediction.question
        scores = filler.index.lexicon.scores(asked.text)  # type: ignore[union-attr]
        best = [block for block in np.argsort(-scores, kind="stable")[:3].tolist() if scores[block] > 0]
        texts = [normalise_answer(store.block_text(block)) for block in best]
        holds = [any(normalise_answer(answer) in text for answer in asked.answers) for text in texts]
        ranked[0].append(holds[:1] == [True])
        ranked[1].append(any(holds))
    assert [rates.name for rates in result.blocks] == ["blocks by BM25"]  # the encoder has no sentence vectors
    assert (result.blocks[0].hit_at_1.mean, result.blocks[0].hit_at_k.mean) == tuple(map(np.mean, ranked))
    assert 0 < np.mean(ranked[0]) <= np.mean(ranked[1])
    without = replace(filler.index, live_blocks=np.zeros(store.block_count, dtype=bool))  # all deleted
    (none,) = evaluated(PhraseFiller(without, filler.encoder, filler.settings), questions_file, baseline=False).blocks
    assert none.hit_at_k.mean == 0
    some = replace(filler.settings, documents=[store.document(0).id])
    assert evaluated(PhraseFiller(filler.index, filler.encoder, some), questions_file, baseline=False).blocks == ()


def test_only_the_chosen_split_is_asked_in_order_and_up_to_the_limit(
    filler: PhraseFiller, questions_file: Path
) -> None:
    def asked(**settings: object) -> list[str]:
        return [prediction.question.id for prediction in evaluated(filler, questions_file, **settings).predictions]

    assert asked() == ["q1", "q2", "q3", "q5", "q6"]
    assert asked(limit=2) == ["q1", "q2"]
    assert asked(split=Split.dev) == ["q4"]


def test_kinds_come_in_the_order_of_the_questions_and_add_up(filler: PhraseFiller, questions_file: Path) -> None:
    result = evaluated(filler, questions_file)
    assert [(rates.name, rates.question_count) for rates in result.kinds] == [
        ("capital", 2),
        ("river", 1),
        ("book", 1),
        ("moon", 1),
    ]
    added = sum(rates.question_count * rates.hit_at_k.mean for rates in result.kinds)
    assert added == pytest.approx(5 * result.total.hit_at_k.mean)


def test_the_baseline_draws_among_spans_of_whole_words_without_function_words_at_their_ends(
    filler: PhraseFiller,
) -> None:
    baseline = RandomSpanOfRightPassage(filler)
    assert set(baseline.spans(4)) == {
        "Norway",
        "capital",
        "Norway's capital",
        "Oslo",
        "lies",
        "end",
        "Oslofjord",
        "end of the Oslofjord",
    }


def test_the_chance_of_the_baseline_is_that_of_drawing_a_right_span_of_the_right_passage(filler: PhraseFiller) -> None:
    baseline = RandomSpanOfRightPassage(filler)
    one, five = baseline.chances(question("Norway's capital is <mask>.", "Oslo"), (1, 5))
    assert one == pytest.approx(1 / 8)
    assert five == pytest.approx(1 - (7 * 6 * 5 * 4 * 3) / (8 * 7 * 6 * 5 * 4))


def test_the_right_passage_is_the_one_that_holds_an_answer_however_bm25_ranks_others(filler: PhraseFiller) -> None:
    baseline = RandomSpanOfRightPassage(filler)
    (chance,) = baseline.chances(question("Norway's capital, Oslo, lies by <mask>.", "the Seine"), (1,))
    spans = baseline.spans(1)
    assert chance == pytest.approx(sum(span == "Seine" for span in spans) / len(spans))
    assert 0 < chance < 1


def test_the_baseline_has_no_chance_where_no_passage_holds_an_answer(filler: PhraseFiller) -> None:
    baseline = RandomSpanOfRightPassage(filler)
    assert baseline.chances(question("A moon is <mask>.", "Phobos"), (1, 5)) == [0.0, 0.0]
    assert baseline.chances(question("It is <mask>.", "Oslofjor"), (1,)) == [0.0]  # a part of a word is no span


def test_the_baseline_row_is_the_mean_chance(filler: PhraseFiller, questions_file: Path) -> None:
    result = evaluated(filler, questions_file)
    baseline = RandomSpanOfRightPassage(filler)
    chances = [baseline.chances(prediction.question, (1, 5)) for prediction in result.predictions]
    assert result.baseline is not None
    found = (result.baseline.hit_at_1.mean, result.baseline.hit_at_k.mean)
    assert found == pytest.approx(tuple(np.mean(chances, axis=0)))
    assert evaluated(filler, questions_file, baseline=False).baseline is None


def test_predictions_say_where_each_phrase_stands(filler: PhraseFiller, questions_file: Path, tmp_path: Path) -> None:
    result = evaluated(filler, questions_file)
    result.write(tmp_path / "out")
    lines = [json.loads(line) for line in (tmp_path / "out" / "predictions.jsonl").read_text("utf-8").splitlines()]
    assert [line["id"] for line in lines] == ["q1", "q2", "q3", "q5", "q6"]
    assert lines[0].keys() == {"id", "kind", "text", "answers", "split", "hit_rank", "phrases"}
    best = lines[1]["phrases"][0]["best_occurrence"]
    assert (best["document"], best["title"]) == ("france", "France")
    # all phrases of the one block, but for those that only repeat the question
    assert {phrase["phrase"] for phrase in lines[1]["phrases"]} == {"Paris", "Seine", "flows", "Seine flows"}


def test_the_same_evaluation_writes_the_same_bytes_without_any_path(
    filler: PhraseFiller, questions_file: Path, tmp_path: Path
) -> None:
    for name in ("first", "second"):
        evaluated(filler, questions_file).write(tmp_path / name)
    for name in ("metrics.json", "predictions.jsonl", "manifest.json"):
        content = (tmp_path / "first" / name).read_bytes()
        assert content == (tmp_path / "second" / name).read_bytes()
        assert str(questions_file.parent).encode() not in content
    metrics = json.loads((tmp_path / "first" / "metrics.json").read_bytes())
    assert metrics["encoder"]["fingerprint"] == filler.encoder.fingerprint
    assert metrics["question_count"] == 5
    assert metrics["filling"]["retrieval"] == "bm25"


def test_results_replace_those_of_an_earlier_evaluation_and_nothing_else(tmp_path: Path) -> None:
    def write(folder: Path, number: int) -> None:
        write_results(folder, record={}, predictions=[{"number": number}], metrics={"number": number})

    write(tmp_path / "out", 1)
    write(tmp_path / "out", 2)
    assert json.loads((tmp_path / "out" / "metrics.json").read_bytes()) == {"number": 2}
    (tmp_path / "notes").mkdir()
    write(tmp_path / "notes", 1)  # an empty folder may be filled
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "mine.txt").write_text("mine")
    with pytest.raises(ArtifactError, match="not a folder for results"):
        write(tmp_path / "texts", 1)
    assert [file.name for file in (tmp_path / "texts").iterdir()] == ["mine.txt"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["notes", "out", "texts"]


def test_results_that_were_half_replaced_are_known_as_damaged_and_replaced_whole(tmp_path: Path) -> None:
    def write(folder: Path, number: int) -> None:
        write_results(folder, record={}, predictions=[{"number": number}], metrics={"number": number})

    write(tmp_path / "out", 1)
    (tmp_path / "out" / "notes.txt").write_text("mine")
    replace = Path.replace

    def killed(self: Path, target: Path) -> Path:
        if self.name == "metrics.json":
            raise KeyboardInterrupt
        return replace(self, target)

    with pytest.MonkeyPatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Path, "replace", killed)
        write(tmp_path / "out", 2)
    with pytest.raises(ArtifactError, match="is damaged"):
        check_folder(tmp_path / "out", kind=EVALUATION_KIND)
    write(tmp_path / "out", 2)
    write(tmp_path / "fresh", 2)
    (tmp_path / "fresh" / "notes.txt").write_text("mine")
    assert all_bytes(tmp_path / "out") == all_bytes(tmp_path / "fresh")


@pytest.mark.parametrize("name", ["metrics.json", "results.md"])
def test_a_file_of_that_name_that_no_evaluation_wrote_is_never_replaced(tmp_path: Path, name: str) -> None:
    write_results(tmp_path / "out", record={}, predictions=[], metrics={})
    if name == "metrics.json":
        (tmp_path / "out" / name).unlink()
        (tmp_path / "out" / name).mkdir()
    else:
        (tmp_path / "out" / name).write_text("mine")
        write_results(tmp_path / "out", record={}, predictions=[], metrics={})  # has no results.md
    before = all_bytes(tmp_path)
    with pytest.raises(ArtifactError, match="not a folder for results"):
        write_results(tmp_path / "out", record={}, predictions=[], metrics={}, report="a table")
    assert all_bytes(tmp_path) == before


def test_a_forged_manifest_of_results_names_nothing_that_is_removed(tmp_path: Path) -> None:
    write_results(tmp_path / "out", record={}, predictions=[], metrics={}, report="a table")
    (tmp_path / "out" / "mine.txt").write_text("mine")
    held = read_manifest(tmp_path / "out", kind="evaluation")
    files = {name: asdict(record) for name, record in held.files.items()}
    files["mine.txt"] = files["results.md"]
    (tmp_path / "out" / "manifest.json").write_bytes(manifest_bytes("evaluation", {}, files, {}))
    write_results(tmp_path / "out", record={}, predictions=[], metrics={})
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "manifest.json",
        "metrics.json",
        "mine.txt",
        "predictions.jsonl",
    ]


def test_what_stands_where_results_are_made_is_named_before_the_work(tmp_path: Path) -> None:
    write_results(tmp_path / "out", record={}, predictions=[], metrics={})
    mine = tmp_path / "out" / ".results.new" / "mine.txt"
    mine.parent.mkdir()
    mine.write_text("mine")
    with pytest.raises(ArtifactError, match=r"results\.new"):
        check_out(tmp_path / "out")
    assert mine.read_text() == "mine"


def test_results_that_cannot_be_written_leave_the_old_ones(tmp_path: Path) -> None:
    write_results(tmp_path / "out", record={}, predictions=[], metrics={"number": 1})
    with pytest.raises(ValueError, match="Out of range float"):
        write_results(tmp_path / "out", record={}, predictions=[], metrics={"number": float("nan")})
    assert json.loads((tmp_path / "out" / "metrics.json").read_bytes()) == {"number": 1}
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_split_without_questions_and_settings_out_of_range_are_refused(
    filler: PhraseFiller, questions_file: Path, tmp_path: Path
) -> None:
    entries = json.loads(questions_file.read_text(encoding="utf-8"))["questions"]
    only_dev = tmp_path / "questions.json"
    only_dev.write_text(json.dumps({"questions": [entry for entry in entries if entry["split"] == "dev"]}))
    with pytest.raises(SettingError, match="split=test"):
        evaluated(filler, only_dev)
    with pytest.raises(SettingError, match="limit must be"):
        SampleSettings(limit=0)


def test_progress_counts_questions(filler: PhraseFiller, questions_file: Path) -> None:
    seen: list[tuple[str, float, float | None]] = []
    evaluate_demo(
        filler,
        DemoSettings(questions=str(questions_file)),
        SampleSettings(resamples=10),
        progress=lambda *at: seen.append(at),
    )
    assert seen == [("questions", 5, 5)]
