"""The study of masking: rates, units, and corruption against prediction, from one start at equal steps."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from npm.errors import SettingError
from npm.evaluation.study import Study

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
    for corrupted, predicted in ((40, 20), (20, 20), (20, 40), (10, 40))
}  # rate-40 is 40/40
METRICS = {"accuracy": "masked accuracy", "perplexity": "perplexity", "loss": "NLL"}
EVALUATED_UNITS = ("token", "word")
OURS = {"out": "runs/masking-study", "files": "", "held_out": "", "seeds": "[0,1,2]", "articles": "100"}
"""What can be said of the study itself; all else are settings of its training runs."""


@dataclass(frozen=True, slots=True)
class MaskingStudy:
    """The cells, where they go, and with which seeds they are trained."""

    study: Study
    out: Path
    seeds: tuple[int, ...]

    @classmethod
    def of(cls, arguments: list[str]) -> MaskingStudy:
        """From KEY=VALUE. Raises SettingError for what is none, for files that are lacking and strange seeds."""
        given = _parsed(arguments)
        ours = {key: given.pop(key) for key in OURS}
        evaluate = ["task=masked_tokens", f"corpus.files={ours['held_out']}", f"limit={ours['articles']}"]
        study = Study(
            cells=RATES | UNITS | CORRUPTION_AND_PREDICTION,
            train=["experiment=masking_study", f"corpus.files={ours['files']}", *map("=".join, given.items())],
            evaluations={f"{unit}s": [*evaluate, f"masked_unit={unit}"] for unit in EVALUATED_UNITS},
            metrics=METRICS,
        )
        return cls(study, Path(ours["out"]), _seeds(ours["seeds"]))


def _parsed(arguments: list[str]) -> dict[str, str]:
    """Our settings and those of training. Raises SettingError for what is no setting, and where files are lacking."""
    pairs = [argument.partition("=") for argument in arguments]
    keys = [key for key, _, _ in pairs]
    strange = [argument for argument in arguments if "=" not in argument]
    repeated = sorted({key for key in keys if keys.count(key) > 1} - set(strange))
    given = OURS | {key: value for key, _, value in pairs}
    lacking = [key for key in ("files", "held_out") if not given[key].strip("[]")]
    if strange or repeated or lacking:
        wrong = {"": strange, "more than one of ": repeated, "nothing for ": lacking}
        raise SettingError(
            "the study cannot begin",
            expected="files=[FILE,…] held_out=[FILE,…] and settings as KEY=VALUE, each once",
            got="; ".join(prefix + ", ".join(names) for prefix, names in wrong.items() if names),
            where="the command line",
            fix="correct these; --help shows an example",
        )
    return given


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
