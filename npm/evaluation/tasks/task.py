"""What a task is: its data, its prompt, its labels, and how it is scored. Read from YAML by `task_file.py`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from enum import Enum
from typing import Annotated, Any, Protocol

from pydantic import Field, PositiveInt

from npm.core.settings import Settings
from npm.core.types import Answer, Occurrence, Progress
from npm.evaluation.metrics import Interval
from npm.retrieval.scoring import LEAST_TEMPERATURE, Combination


@dataclass(frozen=True, slots=True)
class Example:
    """A prompt with one `<mask>`, and its gold label (closed tasks) or its gold answers (open tasks)."""

    id: str
    """Its place in the file, from 0; unique within a task, and the same whatever `limit` is."""
    text: str
    """The task's template with the example's fields in it, one `<mask>`."""
    label: int = -1
    """Closed tasks: number of the right label, in the task's order."""
    answers: tuple[str, ...] = ()
    """Open tasks: everything that is right."""
    group: str = ""
    """What the example belongs to, such as a relation or a language; "" where the task names no such column."""
    subject: str = ""
    """Open tasks: the entity that is asked about; "" where the task names no such column."""
    cut: bool = False
    """Whether the text was longer than the encoder takes and the task allowed to cut it."""
    blank: bool = False
    """Whether nothing of the example stands in the text: its fields were blank, so that the template is all of it."""
    passage: str = ""
    """Closed tasks: the longest of the example's fields as it stands in the text."""
    subsets: tuple[str, ...] = ()
    """Open tasks: which of the task's subsets it is in."""
    where: tuple[str, ...] = ()
    """Open tasks: conditions on the documents that may answer it, beside those of fill.where."""
    old_answers: tuple[str, ...] = ()
    """Open tasks: what was right at the other date, where something else is right now."""


LABEL_WORDS = "label_words"
"""The verbalizer of the labels' own words, which needs no list."""


class Split(Enum):
    """What a question may be used for."""

    dev = "dev"  # to choose settings on
    test = "test"  # to report


class Suite(Enum):
    """Kinds of tasks."""

    closed = "closed"  # one of a few labels, by accuracy
    open = "open"  # any phrase, by exact match


class Reader(Enum):
    """Published folders of files that are read as they are."""

    lama = "lama"  # relations.jsonl, TREx/P*.jsonl, Google_RE/*_test.jsonl (Petroni et al. 2019)
    kamel = "kamel"  # question-templates.csv, P*/dev.jsonl (Kalo and Fichtel 2022)
    trivia_qa = "trivia_qa"  # unfiltered-web-dev.json (Joshi et al. 2017)
    templama = "templama"  # test.json, or test_with_aliases.json (Dhingra et al. 2022)


class Development(Enum):
    """Where the examples to choose settings on come from, if they have no file of their own."""

    none = "none"
    first_half = "first_half"  # of the file, or of each group of it; the second half is what is reported


class TooLong(Enum):
    """What becomes of an example that is longer than the encoder takes."""

    refuse = "refuse"
    keep_start = "keep_start"  # of the example's longest field; the words of the template stay
    keep_end = "keep_end"


class Macro(Enum):
    """What an average over groups goes over."""

    none = "none"
    answer_tokens = "answer_tokens"  # 1, 2, 3, 4 or more tokens of the shortest answer
    group = "group"  # the examples' own groups, such as languages


class LabelMean(Enum):
    """How the evidence of all occurrences of all words of a label becomes one score."""

    sum = "sum"  # all of it: frequent words win
    occurrences = "occurrences"  # divided by the number of occurrences of the label's words
    words = "words"  # the mean over the label's words of the mean over a word's occurrences


class Calibration(Enum):
    """What a label's score is divided by."""

    none = "none"
    prompt = "prompt"  # its score for the template without the example (domain-conditional PMI)
    corpus = "corpus"  # each word's score by its geometric mean over the template filled with sentences of the corpus
    corpus_scaled = "corpus_scaled"  # the same, and its logarithm by the standard deviation there


BY_CORPUS = (Calibration.corpus, Calibration.corpus_scaled)


class ClosedRetrieval(Enum):
    """Which occurrences of a label's words count."""

    exact = "exact"  # all that have a vector
    top_k = "top_k"  # those among the best k rows of a query, as in the reference


class ClosedScoring(Settings):
    """How labels are scored by retrieval; null takes the task's own choice, or else the default named here."""

    retrieval: ClosedRetrieval | None = None
    """`exact`: over all occurrences of the label's words (the default); `top_k`: over those among the best k rows."""
    k: PositiveInt | None = None
    """Rows that each query finds with `top_k`; 4096."""
    temperature: Annotated[float, Field(ge=LEAST_TEMPERATURE)] | None = None
    """Divides scaled similarities; 2, and at least 0.001."""
    combination: Combination | None = None
    """`product`: an occurrence weighs e^(s + t) (the default); `sum`: e^s + e^t."""
    label_mean: LabelMean | None = None
    """`sum`, `occurrences` or `words` (the default): how the occurrences of a label's words are put together."""
    calibration: Calibration | None = None
    """`corpus`: each word's evidence is divided by its geometric mean over 256 prompts made of sentences of the
    reference corpus (the default with `exact`); `corpus_scaled`: its logarithm by the standard deviation over them too;
    `prompt`: each label's by that for the template without the example; `none` (the default with `top_k`)."""
    verbalizer: str | None = None
    """`label_words`, the name of a shipped list, `expanded`, or a file (.json, .txt); the task's own."""
    temperature_twice: bool | None = None
    """Whether `npm` divides by the temperature twice, as the reference does: 25 in place of 5."""
    single_tokens: bool | None = None
    """Whether a word is the one token that stands for it behind a space, wherever that token stands, as in the
    reference; other words count for nothing, and lists in .txt files are cut to the shortest of them. Else words are
    found as whole words, of several tokens too."""
    last_tokens: Annotated[int, Field(ge=8)] | None = None
    """Longest prompt in tokens, special ones included: of a longer one its last tokens are encoded, as in the reference
    (256), whatever they are; unset: the task cuts the example, and the template stays whole."""


@dataclass(frozen=True, slots=True)
class ResolvedScoring:
    """A `ClosedScoring` with nothing left open."""

    retrieval: ClosedRetrieval
    k: int
    temperature: float
    combination: Combination
    label_mean: LabelMean
    calibration: Calibration
    verbalizer: str
    temperature_twice: bool = False
    single_tokens: bool = False
    last_tokens: int | None = None


DEFAULT_SCORING: dict[str, Any] = {
    "retrieval": ClosedRetrieval.exact,
    "k": 4096,
    "temperature": 2.0,
    "combination": Combination.product,
    "label_mean": LabelMean.words,
    "calibration": Calibration.corpus,
    "verbalizer": LABEL_WORDS,
}
"""For tasks without development data: what held on those of SST-2, AGN and Subj (docs/results/zero-shot.md)."""


def resolved_scoring(*layers: ClosedScoring) -> ResolvedScoring:
    """What is left when each layer overrides those before it, and they override the defaults.

    >>> resolved_scoring(ClosedScoring(k=5, temperature=2.0), ClosedScoring(k=7)).k
    7
    """
    said: dict[str, Any] = {}
    for layer in layers:
        values = {item.name: getattr(layer, item.name) for item in fields(layer)}
        said |= {name: value for name, value in values.items() if value is not None}
    chosen = DEFAULT_SCORING | said
    if chosen["retrieval"] is ClosedRetrieval.top_k and "calibration" not in said:
        chosen["calibration"] = Calibration.none  # the best k rows hold some of the words only
    return ResolvedScoring(**chosen)


@dataclass(frozen=True, slots=True)
class TaskData:
    """Where the examples are. A file at hand is read; the hub is named for those who have it."""

    file: str
    """Path under data_dir=, or beside the task's YAML file: .jsonl, .jsonl.zst, .json, .csv, .tsv; with `reader` also
    a published folder. `a | b` is the first that is there."""
    reader: Reader | None = None
    """What makes rows of a published folder."""
    hub: str = ""
    """Name of the data set on the model hub; "" where it is in none."""
    config: str = ""
    """Of the hub's data set, or the part of a published folder, such as TREx."""
    split: str = "test"
    dates: tuple[int | str, ...] = ()
    """Reader templama: the two dates that are compared, the earlier first."""
    columns: dict[str, str] = field(default_factory=dict)
    """Name in the template (and `label`, `answers`, `old_answers`, `group`, `subject`) → column of it."""
    detokenise: bool = False
    """Whether the fields are in Treebank tokens, which are joined again: `it 's` becomes `it's`."""
    development: Development = Development.none
    development_file: str = ""
    """Examples to choose settings on, in the same columns; stands in for `development`."""


@dataclass(frozen=True, slots=True)
class Label:
    """One class: what the file calls it, what we call it, and the words that name it in a prompt."""

    value: str | int
    name: str
    words: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Task:
    """One task of an evaluation."""

    name: str
    suite: Suite
    data: TaskData
    template: str
    """Prompt with `{field}` for each field and one `<mask>`; a file may bring its own (`template_column`)."""
    labels: tuple[Label, ...] = ()
    verbalizer: str = LABEL_WORDS
    corpus: str = ""
    """Name of the reference corpus: the folder below index= where index= holds several indexes."""
    macro: Macro = Macro.none
    examples_per_group: int | None = None
    """Examples of each group of `macro` at most, as in the paper's protocol."""
    template_column: str = ""
    """Column that holds the template of each example ([X] for the subject, [Y] for the mask, as in LAMA)."""
    too_long: TooLong = TooLong.refuse
    max_prompt_tokens: int | None = None
    """Longest prompt in tokens, if less than the encoder takes."""
    fill: dict[str, Any] = field(default_factory=dict)
    """Open tasks: settings of filling, by key, that hold where the command does not say otherwise."""
    subsets: dict[str, str] = field(default_factory=dict)
    """Open tasks: name → column that says whether an example is in the subset, over which all is reported too."""
    where: tuple[str, ...] = ()
    """Open tasks: conditions on the documents that answer an example, with `{column}` for what its row has there."""
    scoring: ClosedScoring = field(default_factory=ClosedScoring)
    """Chosen on development data."""
    paper: dict[str, float] = field(default_factory=dict)
    """What Min et al. 2022 report, by method, per cent."""
    digest: str = ""
    """SHA-256 of the YAML file."""

    @property
    def has_development(self) -> bool:
        """Whether there are examples to choose settings on."""
        return bool(self.data.development_file) or self.data.development is not Development.none


@dataclass(frozen=True, slots=True)
class Evidence:
    """The word that counts most for one label, and the occurrence of it that fits best."""

    label: int
    word: str
    score: float
    """Log of the occurrence's weight, before anything is divided."""
    occurrence: Occurrence


@dataclass(frozen=True, slots=True)
class LabelPrediction:
    """The scores of all labels for one example of a closed task; they sum to 1."""

    scores: tuple[float, ...]
    evidence: tuple[Evidence, ...] = ()

    @property
    def label(self) -> int:
        """The best label; the first of equals."""
        return max(range(len(self.scores)), key=lambda number: self.scores[number])

    def record(self) -> dict[str, Any]:
        """As in a line of predictions.jsonl."""
        return {"scores": list(self.scores), "evidence": [asdict(each) for each in self.evidence]}


class ClosedMethod(Protocol):
    """Chooses among the labels of a closed task."""

    name: str

    def prepare(self, task: Task) -> None:
        """Raise UserError for whatever would stop `predict`, so that it is known before any task is asked."""

    def predict(self, task: Task, examples: Sequence[Example], progress: Progress) -> list[LabelPrediction]:
        """One prediction an example."""

    def facts(self) -> dict[str, Any]:
        """What the predictions of the last call depend on: settings, fingerprints, counts; goes into metrics.json."""


class OpenMethod(Protocol):
    """Fills the mask of an open task with phrases, best first."""

    name: str

    def predict(self, task: Task, examples: Sequence[Example], progress: Progress) -> list[Answer]:
        """One answer an example."""

    def facts(self) -> dict[str, Any]:
        """As for a closed method."""


@dataclass(frozen=True, slots=True)
class TaskScores:
    """A task's metric by method, over the same examples."""

    task: str
    count: int
    """Examples."""
    methods: Mapping[str, Interval]
    """Method name → mean and 95 % confidence interval, as shares of 1."""
    paper: Mapping[str, float] = field(default_factory=dict)
    """Method name → what Min et al. 2022 report, per cent."""
