"""`npmlm train` as a user meets it."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path

import pytest

from npm.cli.main import main
from npm.cli.train import TrainCommand
from npm.models.encoder import Encoder
from npm.models.settings import PoolerKind
from npm.training.settings import TrainingEvaluationSettings
from npm.training.trainer import Trainer
from tests.helpers.command_line import DOCUMENTS, CommandLine, all_bytes, write_corpus
from tests.helpers.kills import fail_writes
from tests.helpers.locks import locked_elsewhere
from tests.helpers.tiny_models import tiny_encoder
from tests.helpers.toy_training import metrics_of

SHRUNK = (
    "blocks.max_block_tokens=24",
    "groups.sequences_per_group=4",
    "schedule.max_steps=3",
    "device=cpu",
    "precision=float32",
    "trainer.log_every_steps=1",
    "masking.min_masked_fraction=0.01",
)
NO_PHRASES = "masking."
"""How the settings begin that a run without the phrase loss has no use for."""


def write_texts(folder: Path) -> Path:
    """Documents that say everything eight times, so that their spans occur in several blocks."""
    repeated = [{**document, "text": f"{document['text']} " * 8} for document in DOCUMENTS]
    return write_corpus(folder / "texts.jsonl", repeated)


def weights_of(run: Path) -> bytes:
    return (run / "encoder" / "model.safetensors").read_bytes()


def test_a_run_leaves_settings_metrics_and_an_encoder_and_its_end_is_kept(
    npmlm: CommandLine, train: list[str], tmp_path: Path, tiny_encoder_folder: Path
) -> None:
    outcome = npmlm(*train)
    assert (outcome.status, outcome.out) == (0, ""), outcome.err
    assert f"the encoder is in {tmp_path / 'run' / 'encoder'}" in outcome.err
    assert [line["step"] for line in metrics_of(tmp_path / "run")] == [1, 2, 3]
    assert weights_of(tmp_path / "run") != (tiny_encoder_folder / "model.safetensors").read_bytes()
    (tmp_path / "run" / "encoder" / "README.md").write_text("a model card")
    before = {path: path.stat().st_mtime_ns for path in sorted((tmp_path / "run").rglob("*"))}
    again = npmlm(*train, "debug=true").done()
    assert "is finished already, with the same settings: nothing to do" in again.err
    assert {path: path.stat().st_mtime_ns for path in sorted((tmp_path / "run").rglob("*"))} == before
    for name, data in all_bytes(tmp_path / "run").items():
        assert str(tmp_path).encode() not in data, name
        assert str(tiny_encoder_folder).encode() not in data, name


@pytest.mark.parametrize("name", ["settings.json", "metrics.jsonl", "checkpoints/step-00000003/weights.safetensors"])
def test_a_damaged_run_folder_is_one_message_and_stays_as_it_is(
    name: str, npmlm: CommandLine, finished_run: tuple[Path, list[str]], tmp_path: Path
) -> None:
    run, command = finished_run
    shutil.copytree(run, tmp_path / "run")
    (tmp_path / "run" / "encoder").rename(tmp_path / "encoder")
    (tmp_path / "run" / name).write_bytes(b"\x80garbage\n")
    before = all_bytes(tmp_path)
    npmlm(*command, f"run={tmp_path / 'run'}").refused(str(Path(name).name))
    assert all_bytes(tmp_path) == before


LINKS = {
    ".encoder.tmp": "encoder",
    "encoder": "encoder",
    ".encoder.tmp/config.json": "encoder/config.json",
    "encoder/1_Pooling": "encoder",
    "checkpoints": "checkpoints",
    "checkpoints/step-00000001": "checkpoints/step-00000003",
    "corpus": "encoder",
    "sentences": "encoder",
    "held-out/corpus": "encoder",
    "corpus.skipped.jsonl": "settings.json",
    "wandb-id.txt": "settings.json",
    "metrics.jsonl": "absent.txt",
    "settings.json": "settings.json",
}
"""What a received run folder may hold as a link, and where that leads in another run."""


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory: pytest.TempPathFactory, tiny_encoder_folder: Path) -> tuple[Path, list[str]]:
    """A run to be copied, and the command that made it, but for `run=`."""
    folder = tmp_path_factory.mktemp("finished")
    command = ["train", f"corpus.files={write_texts(folder)}", f"encoder={tiny_encoder_folder}", *SHRUNK]
    assert main([*command, f"run={folder / 'run'}"]) == 0
    return folder / "run", command


@pytest.mark.parametrize("name", LINKS)
def test_a_link_in_a_run_folder_is_refused_and_nothing_is_changed_behind_it(
    name: str, npmlm: CommandLine, finished_run: tuple[Path, list[str]], tmp_path: Path
) -> None:
    run, command = finished_run
    shutil.copytree(run, tmp_path / "other")
    link = tmp_path / "run" / name
    link.parent.mkdir(parents=True)
    shutil.copy(run / "settings.json", tmp_path / "run")
    link.unlink(missing_ok=True)
    link.symlink_to(tmp_path / "other" / LINKS[name])
    before = all_bytes(tmp_path)
    npmlm(*command, f"run={tmp_path / 'run'}").refused(f"{link} is a link")
    assert all_bytes(tmp_path) == before


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_finished_encoder_that_lacks_a_file_is_made_again_from_the_checkpoint(
    name: str, npmlm: CommandLine, finished_run: tuple[Path, list[str]], tmp_path: Path
) -> None:
    run, command = finished_run
    shutil.copytree(run, tmp_path / "run")
    (tmp_path / "run" / "encoder" / name).unlink()
    assert npmlm(*command, f"run={tmp_path / 'run'}").status == 0
    assert all_bytes(tmp_path / "run") == all_bytes(run)


def test_an_interrupted_run_says_how_to_go_on_and_ends_in_the_same_weights(
    npmlm: CommandLine, train: list[str], finished_run: tuple[Path, list[str]], tmp_path: Path
) -> None:
    command = [*train, "trainer.checkpoint_every_minutes=0"]
    report = Trainer.__dict__["_report"]

    def interrupted(self: Trainer, *arguments: object) -> None:
        report(self, *arguments)
        if self.step == 2:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Trainer, "_report", interrupted)
        outcome = npmlm(*command)
    assert (outcome.status, outcome.out) == (130, "")
    assert "resumes where it stopped" in outcome.err
    assert npmlm(*command).status == 0
    assert weights_of(tmp_path / "run") == weights_of(finished_run[0])


def test_other_settings_and_other_texts_in_a_file_of_the_same_name_are_refused(
    npmlm: CommandLine, finished_run: tuple[Path, list[str]], texts: Path, tmp_path: Path
) -> None:
    run, (verb, _, *settings) = finished_run
    settings.append(f"run={shutil.copytree(run, tmp_path / 'run')}")
    texts.write_text(texts.read_text(encoding="utf-8").replace("Paris", "Lyons"), encoding="utf-8")
    before = all_bytes(tmp_path)
    changed = npmlm(verb, f"corpus.files={texts}", *settings)
    changed.refused("other settings", "corpus.sources.1=texts.jsonl sha256:", "run=DIR")
    npmlm(*finished_run[1], settings[-1], "trainer.seed=1").refused("other settings", "trainer.seed", "run=DIR")
    assert all_bytes(tmp_path) == before


def test_a_run_in_which_another_process_trains_is_refused(npmlm: CommandLine, train: list[str], tmp_path: Path) -> None:
    with locked_elsewhere(tmp_path / "run"):
        npmlm(*train).refused("another process", str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()
    assert npmlm(*train).status == 0


@pytest.mark.parametrize(
    ("given", "scale"),
    [
        (["masking.max_spans_per_sequence=64", "blocks.max_block_tokens=64"], 0.3),  # just what the encoder takes
        (["objective.nonparametric.similarity_scale=0.25"], 0.25),
    ],
)
def test_the_scale_of_the_start_encoder_is_kept_unless_one_is_given(
    given: list[str], scale: float, npmlm: CommandLine, train: list[str], tmp_path: Path
) -> None:
    kept = [part for part in train if part.partition("=")[0] not in {each.partition("=")[0] for each in given}]
    assert npmlm(*kept, *given).status == 0
    assert Encoder.load(str(tmp_path / "run" / "encoder"), device="cpu").similarity_scale == scale


@pytest.mark.parametrize(("code", "first"), [(0, 0), (errno.ENOSPC, 1), (errno.EACCES, 12)])
def test_a_bad_line_or_a_disk_that_refuses_before_the_first_step_leaves_the_directory_unchanged(
    code: int, first: int, npmlm: CommandLine, train: list[str], texts: Path, tmp_path: Path
) -> None:
    good = texts.read_text(encoding="utf-8")
    if not code:
        texts.write_text(f"{good}{{oops\n", encoding="utf-8")
    before = all_bytes(tmp_path)
    with pytest.MonkeyPatch.context() as patched:
        if code:
            fail_writes(patched, lambda number, _: number >= first, code)
        npmlm(*train).refused(os.strerror(code) if code else "texts.jsonl:7")
    assert all_bytes(tmp_path) == before
    texts.write_text(good, encoding="utf-8")
    assert npmlm(*train).status == 0


def test_a_disk_full_at_a_checkpoint_costs_few_steps(npmlm: CommandLine, train: list[str], tmp_path: Path) -> None:
    report = Trainer.__dict__["_report"]
    with pytest.MonkeyPatch.context() as patched:

        def filled(self: Trainer, *arguments: object) -> None:
            report(self, *arguments)
            if self.step == 2:
                fail_writes(patched, lambda *_: True)

        patched.setattr(Trainer, "_report", filled)
        npmlm(*train, "trainer.checkpoint_every_minutes=0").refused("No space left", "checkpoints")
    assert not (tmp_path / "run" / "encoder").exists()
    assert npmlm(*train, "trainer.checkpoint_every_minutes=0").status == 0


def test_visible_tokens_alone_leave_no_head(npmlm: CommandLine, train: list[str], texts: Path, tmp_path: Path) -> None:
    settings = ["objective.nonparametric_weight=0", "objective.masked_weight=1", "objective.masked.visible_only=true"]
    kept = [part for part in train if not part.startswith(NO_PHRASES)]
    outcome = npmlm(*kept, *settings)
    encoder = tmp_path / "run" / "encoder"
    assert (outcome.status, f"the encoder is in {encoder}" in outcome.err) == (0, True), outcome.err
    command = (
        "evaluate",
        "task=masked_tokens",
        f"encoder={encoder}",
        f"corpus.files={texts}",
        f"out={tmp_path / 'out'}",
    )
    npmlm(*command).refused("head for masked tokens")


def test_the_correlation_with_sts_decides_about_the_best_encoder_where_nothing_else_is_measured() -> None:
    alone = TrainCommand(sts_dir="sts").sts_decides()
    assert (alone.evaluation.best, alone.evaluation.higher_is_better) == ("stsb_dev_spearman", True)
    beside = TrainCommand(sts_dir="sts", evaluation=TrainingEvaluationSettings(files=["held-out.jsonl"])).sts_decides()
    assert (beside.evaluation.best, beside.evaluation.higher_is_better) == ("held_out_loss", False)


BLOCK_SPACE = ("masking.context_fraction=1", "objective.reading_weight=1", "objective.block_teacher_weight=10")


def test_an_encoder_records_how_it_was_trained(npmlm: CommandLine, train: list[str], tmp_path: Path) -> None:
    assert npmlm(*train, *BLOCK_SPACE, "blocks.title_tokens=2").status == 0
    encoder = Encoder.load(str(tmp_path / "run" / "encoder"))
    assert (encoder.title_tokens, encoder.reads_jointly, encoder.query_masks) == (2, True, 2)
    assert encoder.block_pooler is PoolerKind.avg
    logged = metrics_of(tmp_path / "run")
    assert all(0 <= line["block_teacher"] < 1 and line["reading_start"] > 0 for line in logged)
    # what is trained from it goes on with the titles, and is no encoder of blocks any more unless it is asked to be
    again = [*train[:2], f"run={tmp_path / 'again'}", f"encoder={tmp_path / 'run' / 'encoder'}", *SHRUNK]
    assert npmlm(*again).status == 0
    other = Encoder.load(str(tmp_path / "again" / "encoder"))
    assert (other.title_tokens, other.reads_jointly, other.block_pooler) == (2, False, None)


def test_a_teacher_is_recorded_by_name_and_content(npmlm: CommandLine, train: list[str], tmp_path: Path) -> None:
    teacher = tiny_encoder("bert", seed=5)
    teacher.save(tmp_path / "teacher")
    named = [*train, "objective.block_teacher_weight=1", f"objective.block_teacher.encoder={tmp_path / 'teacher'}"]
    assert npmlm(*named).status == 0
    recorded = json.loads((tmp_path / "run" / "settings.json").read_text())
    assert recorded["objective.block_teacher.encoder"] == "teacher"
    assert recorded["teacher_fingerprint"] == teacher.fingerprint
    shutil.rmtree(tmp_path / "teacher")
    tiny_encoder("bert", seed=6).save(tmp_path / "teacher")
    npmlm(*named).refused("teacher_fingerprint")
