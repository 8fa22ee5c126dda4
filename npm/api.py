"""The verbs about indexes as functions of `npm`: build, add, delete, compact, verify, adapt, label, find and trace."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from pydantic import NonNegativeInt

from npm.core.errors import ArtifactError, CorpusError, exclusive
from npm.core.settings import Fraction, PathText, checked, read_settings
from npm.core.types import Document, Progress, silent
from npm.indexing.build import build_index
from npm.indexing.changes import ChangeResult, add_documents, delete_documents
from npm.indexing.compact import compact_index
from npm.indexing.inspect import index_encoder, verify_index, verify_vectors
from npm.indexing.phrase_index import PhraseIndex, select
from npm.indexing.settings import AddSettings, CompactSettings, DeleteSettings, IndexBuildSettings
from npm.models.encoder import Encoder
from npm.models.settings import Precision
from npm.retrieval.filler import PhraseFiller
from npm.retrieval.settings import FilterSettings, Retrieval, given_options
from npm.tracing.settings import TraceSettings

if TYPE_CHECKING:
    from npm.evaluation.labeling import LabeledText
    from npm.retrieval.remote import RemoteFiller
    from npm.tracing.find import Found
    from npm.tracing.trace import Trace
    from npm.tuning.adapt import Adaptation

Documents = str | Path | Document | Iterable[str | Path | Document]
"""Paths, globs or hub data sets, or documents themselves."""


@dataclass(frozen=True, slots=True)
class IndexState:
    """An index after a call: what it holds now, and what the call did."""

    folder: Path
    generation: int
    documents: int
    """Documents that answer."""
    tokens: int
    """Tokens of its segments, with those of deleted documents."""
    vectors: int
    added: int
    """Documents that this call added, and deleted, with those that were replaced."""
    deleted: int
    was_finished: bool
    """There was nothing to do: the same call had been made before."""
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Verification:
    """Result of `verify`: files read, and the difference of a sample of vectors encoded again."""

    bytes: int
    vectors: int
    least_cosine: float
    notes: tuple[str, ...]


def build(
    documents: Documents,
    index: str | Path,
    encoder: Encoder | str | Path | None = None,
    *,
    progress: Progress = silent,
    **settings: Any,
) -> IndexState:
    """Build an index in the folder `index` over files or documents, or go on where the same call was stopped.

    `documents` are paths, globs or hub data sets, or documents themselves, whose `fields` are kept; `encoder` None is
    the shipped one. `settings` are those of `npmlm build`: a group is a mapping, as in `search={"tier": "exact"}`, or
    its keys are written out, as in `**{"search.tier": "exact"}`. Raises UserErrors as `npmlm build` does.
    """
    notes: list[str] = []
    folder, loaded, name = _opened_with(index, encoder)
    chosen = read_settings(IndexBuildSettings, {"encoder": name, **settings})
    with _corpus_files(documents, chosen.corpus.files) as (files, kept):
        corpus = replace(chosen.corpus, files=files, kept_fields=chosen.corpus.kept_fields or kept)
        chosen = replace(chosen, corpus=corpus)
        built = build_index(folder, chosen, loaded, progress=progress, notice=notes.append)
    assert built.manifest is not None, "all stages were run"
    added = 0 if built.was_finished else built.manifest.counts.documents
    return _after(folder, ChangeResult(built.manifest, built.was_finished, added), *notes)


def add(
    documents: Documents,
    index: str | Path,
    encoder: Encoder | str | Path | None = None,
    *,
    device: str = "auto",
    precision: Precision | str = "auto",
    progress: Progress = silent,
    **settings: Any,
) -> IndexState:
    """Add files or documents to the index in the folder `index`, or go on where the same call was stopped.

    `settings` are those of `npmlm add`, such as `replace=True`; `encoder` is needed where `PhraseFiller.open` needs it.
    """
    folder = _opened_with(index, encoder)[0]
    chosen = read_settings(AddSettings, settings)
    with _corpus_files(documents, chosen.corpus.files) as (files, _):
        chosen = replace(chosen, corpus=replace(chosen.corpus, files=files))
        made_by = _encoder_of(folder, encoder, device, precision)
        changed = add_documents(folder, chosen, made_by, progress=progress)
    return _after(folder, changed)


def delete(ids: str | Iterable[str], index: str | Path) -> IndexState:
    """Delete the documents with these ids from the index in the folder `index`; `compact` takes their space back."""
    folder = _opened_with(index, None)[0]
    named = [ids] if isinstance(ids, str) else list(ids) if isinstance(ids, Iterable) else ids
    changed = delete_documents(folder, DeleteSettings(ids=named))
    return _after(folder, changed)


def compact(index: str | Path, *, retrain: bool = False, progress: Progress = silent) -> IndexState:
    """Rewrite the index in the folder `index` as one segment without its deleted documents."""
    folder = _opened_with(index, None)[0]
    changed = compact_index(folder, CompactSettings(retrain=retrain), progress=progress)
    return _after(folder, changed)


def verify(
    index: str | Path,
    encoder: Encoder | str | Path | None = None,
    *,
    reencoded_batches: int = 2,
    seed: int = 0,
    device: str = "auto",
    precision: Precision | str = "auto",
    progress: Progress = silent,
) -> Verification:
    """Read and check every byte of the index in the folder `index`, and encode a sample of its vectors again.

    Without an encoder, or with `reencoded_batches` 0, none is encoded; of the first a note says so. Raises
    ArtifactError on the first fault.
    """
    folder = _opened_with(index, encoder)[0]
    for name, number in (("reencoded_batches", reencoded_batches), ("seed", seed)):
        checked(number, NonNegativeInt, name)
    checked_bytes = 0

    def count(_: str, byte_count: int) -> None:
        nonlocal checked_bytes
        checked_bytes += byte_count
        progress("verify", checked_bytes, None)

    verify_index(folder, count)
    if reencoded_batches == 0:
        return Verification(checked_bytes, 0, 1.0, ())
    try:
        made_by = _encoder_of(folder, encoder, device, precision)
    except ArtifactError as error:
        if encoder is not None:
            raise
        note = f"no vector was encoded again: {error}; give its encoder with encoder=…"
        return Verification(checked_bytes, 0, 1.0, (note,))
    found = verify_vectors(folder, made_by, batches=reencoded_batches, seed=seed)
    return Verification(checked_bytes, found.row_count, found.worst_cosine, ())


def adapt(
    questions: str | Path | Sequence[str | Path] | Mapping[str, str | Sequence[str]],
    index: str | Path | PhraseFiller,
    encoder: Encoder | str | Path | None = None,
    *,
    retrieval: Retrieval | str = Retrieval.hybrid,
    seed: int = 0,
    device: str = "auto",
    precision: Precision | str = "auto",
    progress: Progress = silent,
) -> Adaptation:
    """Let an index, a folder or an opened filler, learn from corrected answers, as `npmlm adapt` does.

    `questions` are files, or the right answer or answers of each text with one `<mask>`. An opened filler answers with
    what was learned after `refresh()`. Raises UserErrors as `npmlm adapt` does.
    """
    from npm.tuning.adapt import adapt_index, corrected_answers, read_corrections

    if isinstance(questions, Mapping):
        given = corrected_answers(questions)
    else:
        given = read_corrections([*map(str, [questions] if isinstance(questions, str | Path) else questions)])
    chosen = checked(retrieval, Retrieval, "retrieval"), checked(seed, NonNegativeInt, "seed")
    filler = _filler_of(index, encoder, device, precision)
    return adapt_index(filler, given, retrieval=chosen[0], seed=chosen[1], progress=progress)


def label(
    texts: Iterable[str | Mapping[str, Any]],
    labels: Mapping[str, Sequence[str]] | Sequence[str] | str | Path,
    index: str | Path | PhraseFiller,
    encoder: Encoder | str | Path | None = None,
    *,
    template: str = "",
    multi_label: bool = False,
    min_score: float | None = None,
    device: str = "auto",
    precision: Precision | str = "auto",
    progress: Progress = silent,
) -> list[LabeledText]:
    """Label texts, or rows with the columns of `template`, by the words of the labels, as `npmlm label` does.

    `index` is a folder, or a filler that was opened before. Raises UserErrors as `npmlm label` does.
    """
    from npm.evaluation.labeling import label_rows, label_task

    filler = _filler_of(index, encoder, device, precision)
    several = [texts] if isinstance(texts, str | Mapping) else list(texts)
    rows = [each if isinstance(each, Mapping) else {"text": each} for each in several]
    placed = [(f"text {number}", row) for number, row in enumerate(rows, start=1)]
    several_labels, least = checked(multi_label, bool, "multi_label"), checked(min_score, Fraction | None, "min_score")
    task = label_task(labels, checked(template, str, "template"))
    options: dict[str, Any] = {"multi_label": several_labels, "min_score": least}
    return list(label_rows(filler, task, placed, **options, progress=progress))


def find(
    phrase: str,
    index: str | Path | PhraseFiller | RemoteFiller,
    *,
    show: int = 10,
    match_case: bool = False,
    documents: Sequence[str] | None = None,
    where: Sequence[str] | str = (),
    progress: Progress = silent,
) -> Found:
    """Count the places where the index, a folder or a filler, has a phrase word for word; the first `show`.

    `documents` and `where` default to the settings of the filler.
    A filler of a server reads at most the documents that the server does, and `complete` is False if there are more.
    Raises QueryError for a phrase of function words alone, and errors as `PhraseFiller.open` and its filters do.
    """
    from npm.retrieval.remote import RemoteFiller
    from npm.tracing.find import Found, find_phrase

    checked(show, NonNegativeInt, "show")
    if isinstance(index, PhraseFiller):
        documents = index.settings.documents if documents is None else documents
        where = where or index.settings.where
    chosen = FilterSettings(**given_options(FilterSettings, documents=documents, where=where))
    if isinstance(index, RemoteFiller):
        body = {"phrase": phrase, "show": show, "match_case": match_case, **asdict(chosen)}
        return index.ask("/v1/find", body, "found", Found)
    opened = index.index if isinstance(index, PhraseFiller) else PhraseIndex.open(_opened_with(index, None)[0])
    allowed = select(opened, chosen.documents, chosen.where)
    return find_phrase(opened, phrase, match_case=match_case, show=show, allowed=allowed, progress=progress)


def trace(
    text: str,
    index: str | Path | PhraseFiller | RemoteFiller,
    *,
    kinds: Sequence[str] | None = None,
    right_passed: float | None = None,
    documents: Sequence[str] | None = None,
    where: Sequence[str] | str = (),
    progress: Progress = silent,
) -> Trace:
    """Trace the names, numbers, dates and quotations of a text back to the index, a folder or a filler.

    `kinds` are those traced, None: all; `right_passed` as in `npmlm trace`. Raises QueryError for a text that is
    empty or no text, and errors as `PhraseFiller.open` and its filters do.
    """
    from npm.retrieval.remote import RemoteFiller
    from npm.tracing.trace import Trace, TracedSpan, Tracer

    filters = {"documents": documents, "where": where}
    settings = TraceSettings(**given_options(TraceSettings, kinds=kinds, right_passed=right_passed, **filters))
    if isinstance(index, RemoteFiller):
        spans = index.ask("/v1/trace", {"text": text, **asdict(settings)}, "spans", tuple[TracedSpan, ...])
        return Trace(text, spans)
    return Tracer(_filler_of(index), settings).trace(text, progress=progress)


def _after(folder: Path, changed: ChangeResult, *notes: str) -> IndexState:
    manifest = changed.manifest
    return IndexState(
        folder=folder,
        generation=manifest.generation,
        documents=manifest.counts.documents - manifest.deleted_documents,
        tokens=manifest.counts.tokens,
        vectors=manifest.counts.rows,
        added=changed.added_documents,
        deleted=changed.deleted_documents,
        was_finished=changed.was_finished,
        notes=tuple(note.removeprefix("note: ") for note in (*notes, changed.advice) if note),
    )


def _opened_with(index: object, encoder: object) -> tuple[Path, Encoder | None, str]:
    """The folder, and the encoder, loaded or by name; raises SettingError for one of another kind."""
    given = checked(encoder, Encoder | PathText | None, "encoder")
    folder = Path(checked(index, PathText, "index"))
    return (folder, given, "") if isinstance(given, Encoder) else (folder, None, given or "")


def _encoder_of(folder: Path, encoder: Encoder | str | Path | None, device: str, precision: Precision | str) -> Encoder:
    """The encoder given, or the one that belongs to the index; raises ArtifactError if it did not make it."""
    given = checked(encoder, Encoder | PathText | None, "encoder")
    where, chosen = checked(device, str, "device"), checked(precision, Precision, "precision")
    return index_encoder(folder, given, device=where, dtype=chosen)


def _filler_of(
    index: str | Path | PhraseFiller,
    encoder: Encoder | str | Path | None = None,
    device: str = "auto",
    precision: Precision | str = "auto",
) -> PhraseFiller:
    if isinstance(index, PhraseFiller):
        return index
    folder, loaded, name = _opened_with(index, encoder)
    return PhraseFiller.open(folder, loaded or name or None, device=device, dtype=precision)


@contextmanager
def _corpus_files(documents: Documents, named_files: list[str]) -> Iterator[tuple[list[Any], list[str]]]:
    """Files to read, and which fields are kept of them; documents are written to one that is removed at the end."""
    if named_files:
        raise exclusive("documents", "corpus.files")
    one = isinstance(documents, str | bytes | Document) or not isinstance(documents, Iterable)
    several: list[Any] = [documents] if one else list(documents)  # type: ignore[arg-type]
    handed_over = [each for each in several if isinstance(each, Document)]
    if not handed_over:
        yield several, []
        return
    with TemporaryDirectory(prefix="npmlm-") as folder:
        file = Path(folder) / "documents.jsonl"
        try:
            if len(handed_over) < len(several):
                raise TypeError(f"{len(handed_over)} documents among {len(several)}")
            records = [{**each.fields, "id": each.id, "title": each.title, "text": each.text} for each in handed_over]
            file.write_text("".join(json.dumps(record, allow_nan=False) + "\n" for record in records))
        except (TypeError, ValueError) as error:
            problem = "documents must be all paths, or all Documents with fields that JSON can hold"
            raise CorpusError(f"{problem}: {error}") from error
        try:
            yield [str(file)], sorted({name for each in handed_over for name in each.fields})
        except CorpusError as error:
            raise CorpusError(str(error).replace(str(file), "documents")) from None
