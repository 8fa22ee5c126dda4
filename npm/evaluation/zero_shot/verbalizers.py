"""Verbalizers: the words that stand for each label of a task, from the task, a shipped list, or a file.

Shapes: q examples, W words of all labels, L labels, w words of one label.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from npm.core.errors import SettingError, named, near
from npm.core.types import SURROGATE
from npm.corpus.text import normalised_text
from npm.evaluation.tasks.task import LABEL_WORDS, LabelMean
from npm.evaluation.zero_shot.neighbours import NEIGHBOURS_PER_GROUP, neighbouring_words

if TYPE_CHECKING:
    from npm.evaluation.tasks.task import Task
    from npm.evaluation.zero_shot.occurrences import WordOccurrences, WordScores
    from npm.indexing.phrase_index import PhraseIndex
    from npm.models.encoder import Encoder


WORDS_NAMED = 12
"""Words that a message lists at most."""


class LabelWords:
    """The words that stand for each label: a word may stand for several labels, and is looked for once."""

    def __init__(self, names: tuple[str, ...], words: tuple[tuple[str, ...], ...]) -> None:
        """`names` of the labels [L], and the words of each in the same order."""
        self.names = names
        self.words = tuple(dict.fromkeys(word for of_label in words for word in of_label))
        number_of = {word: number for number, word in enumerate(self.words)}
        self._given = [np.array([number_of[word] for word in dict.fromkeys(each)], dtype=np.int64) for each in words]
        self.numbers = self._given  # L times i64 [w], the words that count for each label
        self._counted_once: list[str] = []

    def check(self, occurrences: WordOccurrences, *, where: str) -> None:
        """Raise SettingError if none of a label's words has an occurrence with vectors, or two labels share them all.

        From here on a label's words that are one to the tokenizer, and so found at the same places, count once.
        """
        counts, totals = occurrences.counts, occurrences.total_counts  # i64 [W] each
        for name, numbers in zip(self.names, self.numbers, strict=True):
            if not counts[numbers].any():
                shown = ", ".join(f"{self.words[n]} ({totals[n]})" for n in numbers[:WORDS_NAMED].tolist())
                raise SettingError(
                    f"{where}: no word of the label {name!r} has a vector in the corpus, by their counts: {shown}; "
                    "choose others with zero_shot.closed.verbalizer"
                )
        alike = _alike(occurrences)
        owners: dict[int, tuple[str, int]] = {}  # first of the words that are alike → label and word it counts for
        kept: list[np.ndarray] = []
        self._counted_once = []
        for name, numbers in zip(self.names, self._given, strict=True):
            own: list[int] = []
            for number in numbers.tolist():
                owner, counted = owners.setdefault(alike.get(number, number), (name, number))
                if counted != number and owner != name:
                    one, other = self.words[counted], self.words[number]
                    raise SettingError(
                        f"{where}: {one!r} of the label {owner!r} and {other!r} of {name!r} are the same tokens: "
                        "take one out"
                    )
                if counted == number:
                    own.append(number)
                else:
                    self._counted_once.append(
                        f"the words {self.words[counted]!r} and {self.words[number]!r} of the label {name!r} stand at "
                        "the same places of the corpus: they count once"
                    )
            kept.append(np.array(own, dtype=np.int64))
        self.numbers = kept

    def counts(self, occurrences: WordOccurrences) -> dict[str, dict[str, int]]:
        """How many occurrences with vectors each word of each label has."""
        counts = occurrences.counts.tolist()
        return {
            name: {self.words[number]: counts[number] for number in numbers.tolist()}
            for name, numbers in zip(self.names, self.numbers, strict=True)
        }

    def notes(self, occurrences: WordOccurrences) -> list[str]:
        """A line for each label some of whose words have no occurrence, and for words that `check` counts once."""
        counts, totals = occurrences.counts, occurrences.total_counts  # i64 [W] each
        notes = list(self._counted_once)
        for name, numbers in zip(self.names, self.numbers, strict=True):
            missing = numbers[counts[numbers] == 0].tolist()
            if missing:
                shown = [
                    f"{self.words[n]} ({totals[n]} without vectors)" if totals[n] else self.words[n] for n in missing
                ]
                more = ", …" if len(shown) > WORDS_NAMED else ""
                notes.append(
                    f"{len(missing)} of the {len(numbers)} words of the label {name!r} are not in the corpus: "
                    + ", ".join(shown[:WORDS_NAMED])
                    + more
                )
        return notes

    def best_words(self, logs: np.ndarray) -> np.ndarray:
        """The word of each label with the most evidence, i64 [q, L], of `logs` f64 [q, W]."""
        return np.stack([of_label[logs[:, of_label].argmax(axis=1)] for of_label in self.numbers], axis=1)


def _alike(occurrences: WordOccurrences) -> dict[int, int]:
    """For each word that stands at just the places of an earlier one the first such word, by number."""
    firsts: dict[tuple[int, int], list[int]] = {}
    alike: dict[int, int] = {}
    for number, (first, stop) in enumerate(pairwise(occurrences.offsets.tolist())):
        if first == stop:
            continue
        same_beginning = firsts.setdefault((stop - first, int(occurrences.starts[first])), [])
        for earlier in same_beginning:
            begin = int(occurrences.offsets[earlier])
            here, there = slice(first, stop), slice(begin, begin + stop - first)
            if all(np.array_equal(each[here], each[there]) for each in (occurrences.starts, occurrences.lengths)):
                alike[number] = earlier
                break
        else:
            same_beginning.append(number)
    return alike


def label_logs(scores: WordScores, labels: LabelWords, mean: LabelMean) -> np.ndarray:
    """log of each label's evidence, f64 [q, L]; -inf without any.

    With E_v the evidence of word v over its n_v occurrences: `sum` is Σ E_v, `occurrences` is Σ E_v / Σ n_v, `words` is
    the mean of E_v / n_v over the words that have occurrences.
    """
    columns = []
    for numbers in labels.numbers:
        held = numbers[scores.counts[numbers] > 0]  # i64 [w]
        logs = scores.log_sums[:, held]  # f64 [q, w]
        if mean is LabelMean.words:
            columns.append(np.logaddexp.reduce(logs - np.log(scores.counts[held]), axis=1) - np.log(len(held)))
        else:
            count = scores.counts[held].sum() if mean is LabelMean.occurrences else 1
            columns.append(np.logaddexp.reduce(logs, axis=1) - np.log(count))
    return np.stack(columns, axis=1)  # [q, L]


def label_shares(logs: np.ndarray) -> np.ndarray:
    """e^x over the sum of its row, f64 [q, L]; equal shares where no label has evidence.

    >>> label_shares(np.log([[1.0, 3.0]])).round(6).tolist()
    [[0.25, 0.75]]
    >>> label_shares(np.full((1, 2), -np.inf)).tolist()
    [[0.5, 0.5]]
    """
    tops = logs.max(axis=1, keepdims=True)  # f64 [q, 1]
    weights = np.where(np.isneginf(tops), 1.0, np.exp(logs - np.where(np.isneginf(tops), 0.0, tops)))  # f64 [q, L]
    return weights / weights.sum(axis=1, keepdims=True)


EXPANDED = "expanded"
SHIPPED_LISTS = Path(__file__).parents[2] / "assets" / "verbalizers"
FILE_ENDINGS = (".json", ".txt")
FORMS = (
    "JSON: [[words of the first label], …] in the task's order of labels, or {label: [words], …}; "
    "text: a line a label, its words parted by commas"
)
SHOWN = 8
"""Words or names that a message lists."""


@dataclass(frozen=True, slots=True)
class Verbalizer:
    """The words that stand for each label; a word, whatever its case, stands for one label only."""

    name: str
    """As in the setting; the name of a file without its folder."""
    words: tuple[tuple[str, ...], ...]
    """For each label of the task, in its order; of one or several words of the language each."""
    notes: tuple[str, ...] = ()
    """What a reader should know: words that were listed twice, lists that belong to no label."""

    @property
    def digest(self) -> str:
        """SHA-256 of the words: equal for equal lists, wherever they come from."""
        return hashlib.sha256(json.dumps(self.words).encode()).hexdigest()


def shipped_verbalizers() -> list[str]:
    """Names of the lists that are shipped, in alphabetical order."""
    return sorted(path.stem for path in SHIPPED_LISTS.glob("*.json"))


def load_verbalizer(
    task: Task,
    choice: str,
    *,
    index: PhraseIndex | None = None,
    encoder: Encoder | None = None,
    cut_lists: bool = False,
) -> Verbalizer:
    """The verbalizer that a setting names, in the order of the task's labels.

    `choice` is `label_words`, the name of a shipped list, a file (.json, .txt; `load_task` has made one beside the
    task's own file a whole path), or `expanded`: the label words and those that stand near them in `index`, whose
    vectors `encoder` made. A list under a label's name is the label's; where none has its
    name, the one list that holds one of its label words is. `cut_lists` cuts the lists of a .txt file to the length of
    the shortest. Raises SettingError if there is no such list, it is not
    in one of the forms, a label has no words, or a word stands for two labels.
    """
    if choice == LABEL_WORDS:
        return _checked(LABEL_WORDS, [label.words for label in task.labels], task, where=f"task {task.name}")
    if choice == EXPANDED:
        if index is None or encoder is None:
            raise SettingError(f"task {task.name}: the verbalizer {EXPANDED} needs index=DIR")
        return expand(index, encoder, load_verbalizer(task, LABEL_WORDS), NEIGHBOURS_PER_GROUP)
    if choice in shipped_verbalizers():
        return _read(SHIPPED_LISTS / f"{choice}.json", task, name=choice)
    path = Path(choice).expanduser()
    if path.suffix.lower() not in FILE_ENDINGS:
        known = [LABEL_WORDS, *shipped_verbalizers(), EXPANDED]
        raise SettingError(
            f"task {task.name}: unknown verbalizer {choice!r}: {near(choice, known)}, or a .json or .txt file"
        )
    return _read(path, task, name=path.name, cut_lists=cut_lists)


def expand(index: PhraseIndex, encoder: Encoder, verbalizer: Verbalizer, count: int) -> Verbalizer:
    """`verbalizer` with up to `count` more words a label: those nearer to its words than to those of other labels.

    Distance is between vectors of `index`, as in neighbours.py. The same index gives the same words.
    Raises SettingError if the index holds no vector of any word of a label.
    """
    found = neighbouring_words(index, encoder, verbalizer.words, count)
    words = tuple((*own, *more) for own, more in zip(verbalizer.words, found, strict=True))
    name = EXPANDED if verbalizer.name == LABEL_WORDS else f"{EXPANDED} {verbalizer.name}"
    return Verbalizer(name, words, verbalizer.notes)


def _read(path: Path, task: Task, *, name: str, cut_lists: bool = False) -> Verbalizer:
    """The lists of a file, brought into the order of the task's labels."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        detail = error.strerror if isinstance(error, OSError) else error
        raise SettingError(f"cannot read the verbalizer {path}: {detail}") from error
    if path.suffix.lower() == ".txt":
        separated = _comma_separated(text)
        shortest = min(map(len, separated), default=0) if cut_lists else None
        return _in_order(name, [words[:shortest] for words in separated], task, path)
    try:
        lists: Any = json.loads(text, object_pairs_hook=_without_repeats)
    except (ValueError, RecursionError) as error:
        raise SettingError(f"{path} is not JSON: {error}") from error
    if isinstance(lists, dict):
        for label, words in lists.items():
            _check_words(words, path, place=f"under {label!r}")
        ordered, unused = _by_label(lists, task, path)
        notes = (f"no label of task {task.name} has the lists {', '.join(unused)} of {name}",) if unused else ()
        return _checked(name, ordered, task, where=str(path), notes=notes)
    if not isinstance(lists, list):
        raise SettingError(f"{path} must be {FORMS}, got a JSON {type(lists).__name__}")
    for number, words in enumerate(lists, start=1):
        _check_words(words, path, place=f"in list {number}")
    return _in_order(name, lists, task, path)


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    lists = dict(pairs)
    if len(lists) < len(pairs):
        raise ValueError(f"a name stands twice among {', '.join(name for name, _ in pairs[:SHOWN])}")
    return lists


def _comma_separated(text: str) -> list[list[str]]:
    """The words of each line that is not empty.

    >>> _comma_separated("bad, not good,\\n\\ngreat\\n")
    [['bad', 'not good'], ['great']]
    """
    lines = [line for line in text.splitlines() if line.strip()]
    return [[word.strip() for word in line.split(",") if word.strip()] for line in lines]


def _check_words(words: Any, path: Path, *, place: str) -> None:
    if not isinstance(words, list):
        raise SettingError(f"{path}: expected a list of words {place}, got {words!r:.80}")
    for word in words:
        if not isinstance(word, str) or not word.strip() or SURROGATE.search(word):
            raise SettingError(f"{path}: expected a word {place}, got {word!a:.80}")


def _in_order(name: str, lists: Sequence[Sequence[str]], task: Task, path: Path) -> Verbalizer:
    """Lists that stand in the order of the task's labels."""
    if len(lists) != len(task.labels):
        raise SettingError(f"{path} has {len(lists)} lists of words, task {task.name} has {len(task.labels)} labels")
    return _checked(name, lists, task, where=str(path))


def _by_label(lists: Mapping[str, list[str]], task: Task, path: Path) -> tuple[list[list[str]], list[str]]:
    """The list of each label, and the names of those that are no label's."""
    spelt: dict[str, str] = {}
    for name in lists:
        first = spelt.setdefault(normalised_text(name), name)
        if first != name:
            raise SettingError(f"{path} has two lists with the same name, {first!r} and {name!r}")
    holding: dict[str, list[str]] = {}
    for name, words in lists.items():
        for word in {normalised_text(word) for word in words}:
            holding.setdefault(word, []).append(name)
    chosen: list[str] = []
    for label in task.labels:
        own_name = spelt.get(normalised_text(label.name))
        by_words = {name for word in label.words for name in holding.get(normalised_text(word), ())}
        candidates = [own_name] if own_name is not None else sorted(by_words)
        if len(candidates) != 1 or candidates[0] in chosen:
            raise SettingError(
                f"{path} must have one list for the label {label.name!r} of task {task.name}, got lists for "
                f"{named(list(lists), most=SHOWN)}" + (f"; fitting: {', '.join(candidates)}" if candidates else "")
            )
        chosen.append(candidates[0])
    return [lists[name] for name in chosen], [name for name in lists if name not in chosen]


def _checked(
    name: str, lists: Iterable[Sequence[str]], task: Task, *, where: str, notes: tuple[str, ...] = ()
) -> Verbalizer:
    """Words stripped, each once; a word of two labels, or a label without words, is refused."""
    owners: dict[str, str] = {}
    repeated: list[str] = []
    kept: list[tuple[str, ...]] = []
    for label, words in zip(task.labels, lists, strict=True):
        own: list[str] = []
        for word in words:
            plain = normalised_text(word)
            if plain not in owners:
                owners[plain] = label.name
                own.append(" ".join(word.split()))
            elif owners[plain] == label.name:
                repeated.append(word)
            else:
                raise SettingError(f"{where}: {word!r} is a word of two labels, {owners[plain]} and {label.name}")
        if not own:
            raise SettingError(f"{where}: no words for the label {label.name!r} in {name}")
        kept.append(tuple(own))
    if repeated:
        notes += (f"listed twice for a label in {name}, counted once: {named(repeated, most=SHOWN)}",)
    return Verbalizer(name, tuple(kept), notes)
