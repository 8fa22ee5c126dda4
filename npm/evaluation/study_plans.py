"""The studies that come with the project, each as cells of commands, and what can be said of them on a command line."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from npm.core.errors import SettingError
from npm.evaluation import transfer_plan
from npm.evaluation.demo import shipped_questions_file
from npm.evaluation.study import Column, Stages, Study

RATES = {f"rate-{percent}": [f"corruption.masked_fraction={percent / 100:g}"] for percent in (15, 40, 80)}
UNITS = {
    "unit-word": ["corruption.unit=word"],
    "unit-span": ["corruption.unit=word", "corruption.sampler=geometric"],
    "unit-collocation": ["corruption.unit=collocation"],
}  # at 15 %; rate-15 is the unit token
CORRUPTION_AND_PREDICTION = {
    f"corrupt-{corrupted}-predict-{predicted}": [
        f"corruption.masked_fraction={corrupted / 100:g}",
        f"corruption.predicted_fraction={predicted / 100:g}",
        f"corruption.copies={str(predicted > corrupted).lower()}",
    ]
    for corrupted, predicted in ((40, 20), (20, 20), (20, 40), (10, 40), (5, 40))
}  # rate-40 is 40/40
MORE_RATES = {f"rate-{percent}": [f"corruption.masked_fraction={percent / 100:g}"] for percent in (20, 30, 50, 60, 70)}
UNITS_AT_40 = {f"{name}-40": ["corruption.masked_fraction=0.4", *settings] for name, settings in UNITS.items()}
ABLATIONS = {
    "as it is": [],
    "masks: any spans": ["masking.unit=span"],
    "span lengths: p=0.2": ["masking.span_success_probability=0.2"],
    "span lengths: p=1": ["masking.span_success_probability=1.0"],
    "groups: any blocks": ["groups.mixing=random"],
    "groups: a rare token": ["groups.mixing=lexical"],
    "keys: masked copies": ["objective.nonparametric.keys=masked"],
    "own sequence: negatives": ["objective.nonparametric.own_sequence=negatives"],
}
"""What the phrase loss is made of, one choice changed at a time; single tokens are measured on other questions."""


OURS = {"out": "", "seeds": "[0,1,2]", "cells": "[]"}
"""What can be said of every study."""


@dataclass(frozen=True, slots=True)
class StudyPlan:
    """A study but for its files."""

    make: Callable[[Mapping[str, str], Sequence[str]], Study]
    """From what is ours and the settings of its training runs."""
    ours: Mapping[str, str]
    """What can be said of the study itself, with its default; all else are settings of its training runs."""
    required: Sequence[str] = ("files", "held_out")


def _trained(
    cells: Mapping[str, Sequence[str]],
    experiment: str,
    evaluations: Mapping[str, Sequence[str]],
    numbers: Mapping[str, str],
) -> StudyPlan:
    """Runs that differ by settings, each evaluated on held-out articles."""

    def make(ours: Mapping[str, str], given: Sequence[str]) -> Study:
        common = [f"experiment={experiment}", f"corpus.files={ours['files']}", *given]
        measure = [f"corpus.files={ours['held_out']}", f"limit={ours['articles']}"]
        stages: dict[str, Stages] = {
            name: {
                "run": ["train", "run={out}", "trainer.seed={seed}", *common, *settings],
                **{
                    each: ["evaluate", "out={out}", "encoder={stage:run}/encoder", *task, *measure]
                    for each, task in evaluations.items()
                },
            }
            for name, settings in cells.items()
        }
        columns = {
            f"{each}: {head}": Column(each, (number,)) for each in evaluations for number, head in numbers.items()
        }
        return Study(cells=stages, columns=columns, shared={})

    return StudyPlan(make, OURS | {"files": "", "held_out": "", "articles": "100"})


EDITS = {
    "base": [],
    "reversed": ["edit=reversed"],
    "shuffled word embeddings": ["edit=shuffled_word_embeddings"],
    "clean word embeddings": ["edit=clean_word_embeddings"],
    "oracle": ["edit=oracle"],
    "clean": ["edit=clean_all"],
    "matched norm": ["edit=matched_norm"],
    "matched deviation": ["edit=matched_std"],
    "first half": ["edit=first_half"],
    "every second": ["edit=every_second"],
}
"""What is done to a pretrained encoder before it is fine-tuned."""
TUNED_ON = {
    "stsb": (["epochs=5"], "dev_spearman"),
    "sst2": (["epochs=2", "limit=10000"], "dev_accuracy"),
    "cola": (["epochs=5"], "dev_matthews"),
}
"""Tasks that are small enough for a CPU, with their headlines."""


def _interventions(ours: Mapping[str, str], given: Sequence[str]) -> Study:
    """Edited encoders fine-tuned; an encoder that was made anew also at higher rates and for twice as long."""
    tune = ["out={out}", "seeds=[{seed}]", f"data_dir={ours['data_dir']}"]
    tasks = {name: TUNED_ON[name] for name in _chosen("tasks", ours["tasks"], TUNED_ON)}
    rates = {name: ("learning_rates=[5e-5]", 1) for name in EDITS} | {"clean, tuned": ("learning_rates=[1e-4,3e-4]", 2)}
    cells: dict[str, Stages] = {}
    for name, (rate, times) in rates.items():
        edit = EDITS[name.removesuffix(", tuned")]
        encoder = "{stage:edit}" if edit else ours["encoder"]
        cells[name] = {
            **({"edit": ["edit", "out={out}", f"encoder={ours['encoder']}", "seed={seed}", *edit]} if edit else {}),
            **{
                task: [
                    "finetune",
                    f"task=[{task}]",
                    f"encoder={encoder}",
                    *tune,
                    rate,
                    *_longer(settings, times),
                    *given,
                ]
                for task, (settings, _) in tasks.items()
            },
        }
    columns: dict[str, Column] = {}
    for task, (_, headline) in tasks.items():
        columns[f"{task}: last epoch"] = Column(task, ("tasks", task, "last_epoch", headline, "mean"))
        columns[f"{task}: best of best"] = Column(task, ("tasks", task, "best_of_best"), largest=True)
    return Study(cells=cells, columns=columns, shared={})


def _longer(settings: Sequence[str], times: int) -> list[str]:
    """Settings of a task with so many times the epochs."""
    return [f"epochs={times * int(each[7:])}" if each.startswith("epochs=") else each for each in settings]


LAYERS = {f"layers 1 to {kept}": [f"edits=[{{name: keep_layers, layers: {list(range(kept))}}}]"] for kept in (5, 4)}
"""Which layers of encoder-mini hold the phrases."""


def _retrievers(ours: Mapping[str, str], given: Sequence[str]) -> Study:
    """Edited phrase encoders, as they are, among the keys of held-out groups."""
    measure = ["out={out}", "task=in_batch", f"corpus.files={ours['held_out']}", f"limit={ours['articles']}", *given]
    cells: dict[str, Stages] = {"base": {"in batch": ["evaluate", f"encoder={ours['encoder']}", *measure]}}
    for name, edit in ({name: edit for name, edit in EDITS.items() if edit} | LAYERS).items():
        cells[name] = {
            "edit": ["edit", "out={out}", f"encoder={ours['encoder']}", "seed={seed}", *edit],
            "in batch": ["evaluate", "encoder={stage:edit}", *measure],
        }
    columns = {
        "start top-1": Column("in batch", ("start_top1",)),
        "end top-1": Column("in batch", ("end_top1",)),
    }
    return Study(cells=cells, columns=columns, shared={})


BLOCK_TOKENS = {"bytes": 600, "byte_bpe": 128, "wordpiece": 128}
"""Kinds of tokenizers, with the tokens of a block: about as much text in each."""


def _tokenizers(ours: Mapping[str, str], given: Sequence[str]) -> Study:
    """Fresh encoders over one kind of token each, among the keys of held-out groups and on the demo's questions."""
    learned = {name: ["tokenizer", "out={out}", f"corpus.files={ours['files']}"] for name in ("byte_bpe", "wordpiece")}
    shared = {name: [*command, f"kind={name}", "size=8192"] for name, command in learned.items()}
    common = ["run={out}", "trainer.seed={seed}", "experiment=tokenizer_study", f"corpus.files={ours['files']}"]
    trained, demo = "encoder={stage:run}/encoder", shipped_questions_file().parent / "*.jsonl"
    asked = ["evaluate", "out={out}", trained]
    cells: dict[str, Stages] = {}
    for name, tokens in BLOCK_TOKENS.items():
        start = f"encoder={{stage:{name}}}" if name in shared else f"encoder={name}"
        block, longest = f"max_block_tokens={tokens}", 16 * tokens
        sizes = [
            f"blocks.{block}",
            f"blocks.max_document_tokens={longest}",
            f"start.fresh.max_input_tokens={tokens + 128}",
        ]
        measure = [f"in_batch.{block}", f"in_batch.least_tokens={longest}", f"corpus.files={ours['held_out']}"]
        cells[name] = {
            "run": ["train", *common, start, *sizes, *given],
            "index": ["build", "index={out}", f"corpus.files=[{demo}]", trained, f"blocks.{block}"],
            "demo": [*asked, "task=demo", "index={stage:index}"],
            "noisy": [*asked, "task=demo", "index={stage:index}", "demo.letter_noise=0.1"],
            "in batch": [*asked, "task=in_batch", "in_batch.whole_words=true", *measure, f"limit={ours['articles']}"],
        }
    columns = {
        f"{stage}: {head}": Column(stage, ("total", key, "mean"))
        for stage in ("demo", "noisy")
        for head, key in (("hit@1", "hit_at_1"), ("hit@5", "hit_at_k"))
    }
    return Study(cells, columns | {"in batch: top-1": Column("in batch", ("top1", "mean"))}, shared)


PLANS = {
    "tokenizers": StudyPlan(_tokenizers, OURS | {"files": "", "held_out": "", "articles": "200"}),
    "interventions": StudyPlan(
        _interventions, OURS | {"data_dir": "", "encoder": "", "tasks": "[]"}, ("data_dir", "encoder")
    ),
    "retrievers": StudyPlan(
        _retrievers, OURS | {"held_out": "", "encoder": "encoder-mini", "articles": "100"}, ("held_out",)
    ),
    "transfer": StudyPlan(transfer_plan.transfer_study, OURS | transfer_plan.OURS, transfer_plan.REQUIRED),
    "masking": _trained(
        RATES | UNITS | CORRUPTION_AND_PREDICTION | MORE_RATES | UNITS_AT_40,
        "masking_study",
        {f"{unit}s": ["task=masked_tokens", f"masked_tokens.unit={unit}"] for unit in ("token", "word")},
        {"accuracy": "masked accuracy", "perplexity": "perplexity", "loss": "NLL"},
    ),
    "ablations": _trained(
        ABLATIONS,
        "ablations",
        {"in batch": ["task=in_batch"]},
        {"start_top1": "start top-1", "end_top1": "end top-1"},
    ),
}


@dataclass(frozen=True, slots=True)
class ChosenStudy:
    """The cells, where they go, and with which seeds they are trained."""

    study: Study
    out: Path
    seeds: tuple[int, ...]
    cells: tuple[str, ...]
    """Those that are run now."""

    @classmethod
    def of(cls, arguments: Sequence[str]) -> ChosenStudy:
        """From its name and KEY=VALUE. Raises SettingError for what is neither, lacking files and strange seeds."""
        name, *others = arguments or [""]
        if name not in PLANS:
            raise SettingError(
                "there is no such study",
                expected=f"first one of {', '.join(PLANS)}",
                got=name or "nothing",
                where="the command line",
                fix="name one of these; --help shows an example",
            )
        plan = PLANS[name]
        ours, given = _parsed(plan, others)
        study = plan.make(ours, given)
        out, seeds = Path(ours["out"] or f"runs/{name}"), _seeds(ours["seeds"])
        return cls(study, out, seeds, _chosen("cells", ours["cells"], study.cells))


def _chosen(key: str, value: str, there: Collection[str]) -> tuple[str, ...]:
    """The names in a list such as [rate-15,rate-40], all that are there if it is empty. Raises SettingError."""
    wanted = [name.strip() for name in value.strip().removeprefix("[").removesuffix("]").split(",") if name.strip()]
    if strange := [name for name in wanted if name not in there]:
        raise SettingError(
            f"the study has no such {key}",
            expected=f"{key} of {', '.join(there)}",
            got=", ".join(strange),
            where=key,
            fix="correct these",
        )
    return tuple(wanted or there)


def _parsed(plan: StudyPlan, arguments: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Our settings and those of training. Raises SettingError for what is no setting, and where files are lacking."""
    keys = [argument.partition("=")[0] for argument in arguments]
    strange = [argument for argument in arguments if "=" not in argument]
    repeated = sorted({key for key in keys if keys.count(key) > 1} - set(strange))
    pairs = dict(argument.partition("=")[::2] for argument in arguments)
    ours = {key: pairs.get(key, default) for key, default in plan.ours.items()}
    lacking = [key for key in plan.required if not ours[key].strip("[]")]
    if strange or repeated or lacking:
        wrong = {"": strange, "more than one of ": repeated, "nothing for ": lacking}
        raise SettingError(
            "the study cannot begin",
            expected=f"{' '.join(f'{key}=…' for key in plan.required)} and settings as KEY=VALUE, each once",
            got="; ".join(prefix + ", ".join(names) for prefix, names in wrong.items() if names),
            where="the command line",
            fix="correct these; --help shows an example",
        )
    return ours, [argument for argument, key in zip(arguments, keys, strict=True) if key not in plan.ours]


def _seeds(value: str) -> tuple[int, ...]:
    """The seeds in a list such as [0,1,2]. Raises SettingError."""
    parts = value.strip().removeprefix("[").removesuffix("]").split(",")
    if not all(part.strip().isdecimal() for part in parts):
        raise SettingError(
            "these are no seeds",
            expected="whole numbers of at least 0, such as [0,1,2]",
            got=value,
            where="seeds",
            fix="correct the list",
        )
    return tuple(int(part) for part in parts)
