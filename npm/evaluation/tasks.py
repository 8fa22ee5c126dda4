"""Tasks: data, prompt, labels and scoring, read from a YAML file whose keys are the fields of `Task`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import Field, PositiveInt

from npm.core.errors import SettingError, near
from npm.core.files import sha256_of_bytes
from npm.core.settings import Settings, read_settings
from npm.core.types import MASK_TEXT, Occurrence
from npm.corpus.text import normalized_text
from npm.evaluation.prompts import Template, check_conditions, is_templated, names_in
from npm.retrieval.settings import LEAST_TEMPERATURE, Combination, FillSettings

Split = Literal["dev", "test"]  # questions to choose settings on, and questions to report
Suite = Literal["closed", "open"]  # kinds of tasks: one of a few labels, by accuracy, or any phrase, by exact match
Development = Literal["none", "first_half"]
"""Development examples without a separate file: the first half of the file, or of each of its groups."""
TooLong = Literal["refuse", "keep_start", "keep_end"]
"""Treatment of inputs over the length limit: the longest field is cut; the template is never truncated."""
Macro = Literal["none", "answer_tokens", "group"]
"""Groups that an average goes over: tokens of the shortest answer, 1 to 4 or more, or the examples' own groups."""
LabelMean = Literal["sum", "occurrences", "words"]
"""Combination of the occurrences of all words of a label into one score; see `label_logs`."""
Calibration = Literal["none", "prompt", "corpus", "corpus_scaled"]
"""Divisor of a label's score; see `ClosedScoring.calibration`."""
BY_CORPUS = ("corpus", "corpus_scaled")


ClosedRetrieval = Literal["exact", "top_k"]  # occurrences of a label's words that count; see `ClosedScoring.retrieval`


class ClosedScoring(Settings):
    """Scoring of labels by retrieval; null takes the task's own choice, or else the default named here."""

    retrieval: ClosedRetrieval | None = None
    """`exact`: over all occurrences of the label's words (the default); `top_k`: over those among the best k rows."""
    k: PositiveInt | None = None
    """Rows that each query finds with `top_k`; unset: 4096."""
    temperature: Annotated[float, Field(ge=LEAST_TEMPERATURE)] | None = None
    """Divides scaled similarities; unset: 2."""
    combination: Combination | None = None
    """`product`: an occurrence weighs e^(s + t) (the default); `sum`: e^s + e^t."""
    label_mean: LabelMean | None = None
    """`sum`, `occurrences` or `words` (the default): how the occurrences of a label's words are combined."""
    calibration: Calibration | None = None
    """`corpus`: each word's evidence is divided by its geometric mean over 256 prompts made of sentences of the
    reference corpus (the default with `exact`); `corpus_scaled`: its logarithm by the standard deviation over them too;
    `prompt`: each label's by that for the template without the example; `none` (the default with `top_k`)."""
    verbalizer: str | None = None
    """`label_words`, the name of a shipped list, or a .json file; unset: the task's own."""
    temperature_twice: bool | None = None
    """Divide by the temperature twice in `npm`, as the reference does: 25 instead of 5."""
    single_tokens: bool | None = None
    """Take a word as the one token that it is after a space, wherever that token occurs, as in the reference; other
    words do not count. Else words are found as full words, of several tokens too."""
    last_tokens: Annotated[int, Field(ge=8)] | None = None
    """Longest prompt in tokens, special ones included: of a longer one its last tokens are encoded, as in the reference
    (256), even if that cuts the template; unset: the task cuts the example, and the template stays complete."""


@dataclass(frozen=True, slots=True)
class ResolvedScoring:
    """A `ClosedScoring` with defaults filled in."""

    # best on the development data of SST-2, AGN and Subj (docs/studies/npm.md)
    retrieval: ClosedRetrieval = "exact"
    k: int = 4096
    temperature: float = 2.0
    combination: Combination = Combination.product
    label_mean: LabelMean = "words"
    calibration: Calibration = "corpus"
    verbalizer: str = "label_words"
    temperature_twice: bool = False
    single_tokens: bool = False
    last_tokens: int | None = None


def resolved_scoring(*layers: ClosedScoring) -> ResolvedScoring:
    """The defaults, overridden by each layer in turn.

    >>> resolved_scoring(ClosedScoring(k=5, temperature=2.0), ClosedScoring(k=7)).k
    7
    """
    values = ((item.name, getattr(layer, item.name)) for layer in layers for item in fields(layer))
    said = {name: value for name, value in values if value is not None}
    if said.get("retrieval") == "top_k":
        said.setdefault("calibration", "none")  # the best k rows hold some of the words only
    return ResolvedScoring(**said)


def task_scoring(task: Task, given: ClosedScoring) -> ResolvedScoring:
    """Scoring of the labels of `task`, unless `given` says otherwise."""
    return resolved_scoring(ClosedScoring(verbalizer=task.verbalizer), task.scoring, given)


class TaskData(Settings):
    """Source of the examples: a file, or a data set on the hub."""

    file: str = ""
    """Path under data_dir=, or next to the task's YAML file: .jsonl, .json, .csv, .tsv, also compressed."""
    hub: str = ""
    """`NAME@CONFIG/SPLIT` on the hub; "" where it is in none."""
    columns: dict[str, str] = field(default_factory=dict)
    """Name in the template (and `label`, `answers`, `old_answers`, `group`, `subject`) → its column, or a jinja2
    expression over the columns such as `[answer.value] + answer.aliases`."""
    hub_columns: dict[str, str] = field(default_factory=dict)
    """The same for the data set on the hub, where it differs from the file, such as `label: label - 1`."""
    development: Development = "none"
    development_file: str = ""
    """Examples to choose settings on, in the same columns, instead of `development`."""
    split: str = ""
    """Column with `dev` or `test` for each row, instead of both."""


class Label(Settings):
    """One class: its value in the file, its name, and the words that name it in a prompt."""

    value: str | int
    words: Annotated[list[str], Field(min_length=1)]
    name: str = ""
    """By default the value, or the first word if that is a number."""

    def check(self) -> None:
        """Fill the name in."""
        if not self.name:
            object.__setattr__(self, "name", self.value if isinstance(self.value, str) else self.words[0])
        if unclean := [word for word in self.words if not word or word != " ".join(word.split())]:
            raise SettingError(f"labels: a word of {self.name!r} is empty or has extra spaces: {unclean[0]!r}")


class Task(Settings):
    """One task of an evaluation."""

    name: str
    suite: Suite
    data: TaskData
    template: str
    """Prompt with `{{ field }}` for each field and one `<mask>`."""
    labels: list[Label] = field(default_factory=list)
    verbalizer: str = "label_words"
    corpus: str = ""
    """Name of the reference corpus: the folder below index= where index= holds several indexes."""
    macro: Macro = "none"
    examples_per_group: PositiveInt | None = None
    """Examples of each group of `macro` at most, as in the paper's protocol."""
    too_long: TooLong = "refuse"
    max_prompt_tokens: Annotated[int, Field(ge=8)] | None = None
    """Longest prompt in tokens, if less than the encoder takes."""
    fill: dict[str, Any] = field(default_factory=dict)
    """Open tasks: default settings of filling, by key."""
    subsets: dict[str, str] = field(default_factory=dict)
    """Open tasks: name → column that marks the examples of the subset, over which all is reported too."""
    methods: list[str] = field(default_factory=list)
    """Methods to run without method=; empty: all that the settings serve."""
    where: list[str] = field(default_factory=list)
    """Open tasks: conditions on the documents that answer an example, with `{column}` for the value of its row."""
    scoring: ClosedScoring = field(default_factory=ClosedScoring)
    """Closed tasks: chosen on development data."""
    folder: str = ""
    """Folder of the YAML file."""
    digest: str = ""
    """SHA-256 of the YAML file."""

    @cached_property
    def prompt(self) -> Template:
        """The compiled template."""
        return Template(self.template)

    @property
    def has_development(self) -> bool:
        """Return True if there are examples to choose settings on."""
        data = self.data
        return bool(data.development_file or data.split) or data.development != "none"

    def check(self) -> None:
        """Refuse contradictions."""
        is_closed, data, shown = self.suite == "closed", self.data, self.prompt.fields
        columns = data.columns | data.hub_columns
        gold = "label" if is_closed else "answers"
        others = [gold, "group", "subject", *(() if is_closed else ("old_answers",))]
        stray = [name for name in columns if name not in (*shown, *others)]
        telling = [
            name
            for own in (data.columns, columns)
            for name in shown
            if set(names_of(own.get(gold, gold))) & set(names_of(own.get(name, name)))
        ]
        of_open = [name for name in ("fill", "subsets", "where") if getattr(self, name)]
        of_closed = ["labels"] * bool(self.labels) + ["scoring"] * (self.scoring != ClosedScoring())
        divisions = (data.development != "none") + bool(data.development_file) + bool(data.split)
        is_blank = not shown or self.template.count(MASK_TEXT) > 1
        fill = read_settings(FillSettings, self.fill, "fill")
        problems: list[tuple[object, str]] = [
            (is_blank, f"template must have one {MASK_TEXT} and a field such as {{{{ text }}}}"),
            (
                stray,
                f"data.columns.{', '.join(stray)} is neither a field of the template, which shows {', '.join(shown)}, "
                f"nor one of {', '.join(others)}: use one name in both",
            ),
            (telling, f"template shows the {gold}: take out {', '.join(dict.fromkeys(telling))}"),
            (is_closed and of_open, f"{', '.join(of_open)}: for open tasks only"),
            (self.macro == "group" and "group" not in data.columns, "macro: group needs data.columns.group"),
            (self.examples_per_group and self.macro == "none", "examples_per_group needs macro"),
            (divisions > 1, "data.development, data.development_file and data.split exclude each other"),
            (not (data.file or data.hub), "data.file or data.hub is required"),
            (data.hub_columns and not data.hub, "data.hub_columns needs data.hub"),
            (any(map(is_templated, fill.where)), "move conditions with {column} from fill.where to where"),
            (not is_closed and of_closed, f"{', '.join(of_closed)}: for closed tasks only"),
            (is_closed and len(self.labels) < 2, "labels must be at least two"),
            (is_closed and self.macro == "answer_tokens", "macro: answer_tokens is for open tasks only"),
            (self.scoring.k and self.scoring.retrieval != "top_k", "scoring.k needs scoring.retrieval: top_k"),
        ]
        for kind, own in (
            ("names", [label.name for label in self.labels]),
            ("values", [str(label.value) for label in self.labels]),
            ("words", [word.casefold() for label in self.labels for word in label.words]),
        ):
            repeated = next((text for text in own if own.count(text) > 1), None)
            problems.append((repeated is not None, f"labels must have different {kind}, got {repeated!r} twice"))
        for applies, problem in problems:
            if applies:
                raise SettingError(problem)
        check_conditions(self.where, where="where")


def names_of(expression: str) -> tuple[str, ...]:
    """The columns that an expression of `data.columns` reads.

    >>> names_of("answers or [answer.value]"), names_of("my column")
    (('answers', 'answer'), ('my column',))
    """
    try:
        return names_in("{{" + expression + "}}")
    except SettingError:
        return (expression,)


EXAMPLE = """
suite: closed
data: {file: my-reviews.csv, columns: {text: review, label: stars}}
template: "{{ text }} It was <mask>."
labels:
  - {value: 0, words: [terrible, bad]}
  - {value: 1, words: [great]}
"""
"""The smallest task; the documentation shows it too."""


DEMO = Path(__file__).parents[1] / "assets" / "demo"
"""Folder of the demo corpus, of the questions about it, and of the tasks that ask them."""


def task_names(folder: Path) -> list[str]:
    """The names of the tasks in a folder of YAML files."""
    return sorted(path.stem for path in folder.glob("*.yaml"))


def load_task(name_or_path: str | Path, *, folder: Path, others: Sequence[str] = ()) -> Task:
    """The task of a name in `folder`, or of a file, which ends in .yaml or .yml or holds a slash.

    `others` are names of tasks that are no files, for the message. Raises SettingError for what is not a task.
    """
    given = str(name_or_path)
    path = Path(given)
    if path.suffix not in (".yaml", ".yml") and path.name == given:
        path = (DEMO if given == "demo" else folder) / f"{given}.yaml"
        if given not in (shipped := ["demo", *task_names(folder)]):
            near_by = near(given, [*others, *shipped])
            raise SettingError(f"unknown task {given!r}: {near_by}, or give the path of a .yaml file")
    try:
        data = path.read_bytes()
        content = yaml.safe_load(data.decode("utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        detail = error.strerror if isinstance(error, OSError) else " ".join(str(error).split())
        raise SettingError(f"cannot read the task {path}: {detail}") from error
    if not isinstance(content, dict) or not content:
        raise SettingError(f"{path} must be a YAML file such as:{EXAMPLE.rstrip()}")
    keys = [item.name for item in fields(Task) if item.name not in ("folder", "digest")]
    if unknown_keys := [str(key) for key in content if str(key).partition(".")[0] not in keys]:
        raise SettingError(f"{path}: unknown setting {unknown_keys[0]}: {near(unknown_keys[0], keys)}")
    if isinstance(content.get("where"), str):
        content["where"] = [content["where"]]
    facts = {"name": path.stem, **content, "folder": str(path.parent.absolute()), "digest": sha256_of_bytes(data)}
    try:
        return read_settings(Task, facts)
    except SettingError as error:
        raise SettingError(f"{path}: {error}") from error


SHIPPED_LISTS = Path(__file__).parents[1] / "assets" / "verbalizers"


@dataclass(frozen=True, slots=True)
class Verbalizer:
    """The words of each label, in the order of the task's labels."""

    name: str
    words: tuple[tuple[str, ...], ...]

    @property
    def facts(self) -> dict[str, str]:
        """Name, and a digest that is equal for equal lists, wherever they come from."""
        return {"name": self.name, "digest": sha256_of_bytes(json.dumps(self.words).encode())}


def load_verbalizer(task: Task, choice: str) -> Verbalizer:
    """The words of `label_words`, of a shipped list, or of a .json file next to the task's file or at its path.

    A file holds `{label: [words], …}`, or a list of words for each label in the task's order. Raises SettingError if
    it does not, a label has no words, or a word belongs to two labels.
    """
    lists: Any = [label.words for label in task.labels]
    if choice != "label_words":
        places = (SHIPPED_LISTS / f"{choice}.json", Path(task.folder, choice), Path(choice).expanduser())
        path = next((place for place in places if place.suffix == ".json" and place.is_file()), None)
        if path is None:
            known = ["label_words", *sorted(each.stem for each in SHIPPED_LISTS.glob("*.json"))]
            raise SettingError(f"unknown verbalizer {choice!r}: {near(choice, known)}, or give a .json file")
        try:
            lists = json.loads(path.read_text(encoding="utf-8-sig"))
        except (OSError, ValueError, RecursionError) as error:
            raise SettingError(f"cannot read the verbalizer {path}: {error}") from error
        if isinstance(lists, dict):
            lists = [lists.get(label.name) for label in task.labels]
    are_lists = isinstance(lists, list) and all(isinstance(words, list) and words for words in lists)
    if not (
        are_lists
        and len(lists) == len(task.labels)
        and all(isinstance(word, str) and word.strip() for words in lists for word in words)
    ):
        names = ", ".join(label.name for label in task.labels)
        raise SettingError(f"verbalizer {choice} must have a list of words for each label of task {task.name}: {names}")
    owners: dict[str, int] = {}
    kept = []
    for number, words in enumerate(lists):
        spelled: dict[str, str] = {}
        for word in words:
            spelled.setdefault(normalized_text(word), " ".join(word.split()))
        if shared := [word for plain, word in spelled.items() if owners.setdefault(plain, number) != number]:
            raise SettingError(f"verbalizer {choice}: {shared[0]!r} is a word of two labels of task {task.name}")
        kept.append(tuple(spelled.values()))
    return Verbalizer(Path(choice).name, tuple(kept))


@dataclass(frozen=True, slots=True)
class Example:
    """A prompt with one `<mask>`, and its gold label (closed tasks) or its gold answers (open tasks)."""

    id: str  # its position in the file, from 0; unique within a task, and independent of `limit`
    text: str  # the task's template with the example's fields in it, one `<mask>`
    label: int = -1  # closed tasks: index of the right label, in the task's order
    answers: tuple[str, ...] = ()  # open tasks: everything that is right
    group: str = ""  # such as a relation or a language; "" where the task names no such column
    subject: str = ""  # open tasks: the entity in question; "" where the task names no such column
    cut: bool = False  # the text was longer than the encoder takes and the task allowed to cut it
    blank: bool = False  # its fields were blank, so that the template is all of the text
    passage: str = ""  # closed tasks: the longest of its fields as it appears in the text
    subsets: tuple[str, ...] = ()  # open tasks: which of the task's subsets it is in
    where: tuple[str, ...] = ()  # open tasks: conditions on the documents that may answer it, besides fill.where
    old_answers: tuple[str, ...] = ()  # open tasks: right at another date but not now


@dataclass(frozen=True, slots=True)
class Evidence:
    """The word that counts most for one label, and the occurrence of it that fits best."""

    label: int
    word: str
    score: float  # log of the occurrence's weight, before anything is divided
    occurrence: Occurrence


@dataclass(frozen=True, slots=True)
class LabelPrediction:
    """The scores of all labels for one example of a closed task; they sum to 1."""

    scores: tuple[float, ...]
    evidence: tuple[Evidence, ...] = ()

    @property
    def label(self) -> int:
        """The best label; the first of equals."""
        return self.scores.index(max(self.scores))
