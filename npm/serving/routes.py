"""The routes: texts and labels in, answers out; the index and its documents; the state of the server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from http import HTTPStatus
from itertools import groupby
from operator import attrgetter
from time import perf_counter
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request
from fastapi import Path as PathParameter
from fastapi.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from prometheus_client import CONTENT_TYPE_LATEST

import npm
from npm.core.errors import QueryError
from npm.core.files import digest_of
from npm.core.settings import as_json
from npm.core.types import MASK_TEXT
from npm.retrieval.queries import MAX_MASKS, check_text, read_query
from npm.serving import replies, requests
from npm.serving.batcher import Done, Job, give_up
from npm.serving.description import ANSWER_LINES, COMPUTED, KEYS, LINES, LINK_ANSWERS, WITH_BODY, refusals
from npm.serving.middleware import state_of
from npm.serving.opened import OpenedIndex
from npm.serving.partitions import PartitionsLost
from npm.serving.problems import Problem, stopping
from npm.serving.service import Served, Service
from npm.tracing.trace import SPANS_AT_ONCE

MAX_PASSAGE_CHARS = 200_000
"""Maximum characters of all passages of a request: they are encoded while everybody else waits."""


answering, describing = APIRouter(tags=["answers"], dependencies=KEYS), APIRouter(tags=["index"], dependencies=KEYS)
state = APIRouter(tags=["state"])


@answering.post("/v1/fill", response_model=replies.Answers, responses={200: ANSWER_LINES, **refusals(*WITH_BODY)})
async def fill(service: Served, request: Request, body: requests.FillRequest) -> Response:
    """The best phrases for each text: a list of as many answers, also for one text.

    A text of a list that cannot be answered has its `problem` in its place; if none can be, the request is refused.
    With `Accept: application/x-ndjson` each answer is a line, sent as soon as it is computed, from the first answer on.
    """
    _check_count(service, body.text)
    return await _filled(service, request, body.text, body)


@answering.get("/v1/fill", response_model=replies.Answers, responses={**LINK_ANSWERS, **refusals(*COMPUTED)})
async def fill_get(
    service: Served,
    request: Request,
    query: Annotated[requests.FillQuery, Query()],
    if_none_match: Annotated[
        str, Header(alias="If-None-Match", description="ETags of answers that the client has, or `*`.")
    ] = "",
) -> Response:
    """The same for one text, as a link, with an ETag for caches: it changes with the index, its options and npmlm."""
    opened = service.reloader.current
    tag = f'"{digest_of(f"{npm.__version__} {opened.state} {opened.fill_settings(query)} {query!r}")}"'
    headers = {"ETag": f"W/{tag}", "Cache-Control": "private, no-cache", "Vary": "Accept"}
    if {"*", tag} & {each.strip().removeprefix("W/") for each in if_none_match.split(",")}:
        return Response(status_code=HTTPStatus.NOT_MODIFIED, headers=headers)
    return await _filled(service, request, requests.SingleText([query.text]), query, headers)


@answering.post("/v1/over", response_model=replies.OverAnswers, responses=refusals(*WITH_BODY))
async def answer_from_passages(service: Served, request: Request, body: requests.OverRequest) -> Response:
    """Phrases from passages that come with the request, or scores of given words; no index is searched."""
    if (chars := sum(len(passage.text) for passage in body.passages)) > MAX_PASSAGE_CHARS:
        message = f"passages must have at most {MAX_PASSAGE_CHARS:,} characters together, got {chars:,}"
        raise Problem("too_long", message, field="passages")
    _check_count(service, body.text)
    for number, word in enumerate(body.words or ()):
        check_text(word, f"words.{number}")
    opened, group = service.reloader.current, f"over {id(body)}"
    jobs = text_jobs(
        body.text,
        lambda text, _: Job(lambda texts: opened.over(body, texts), group, text),
        max_masks=MAX_MASKS if body.words is None else 1,
    )
    done = await service.batcher.results(request, jobs, service.deadline(body.timeout_ms))
    values, times = in_places(service, request, done), took(request, done)
    if body.words is None:
        return JSONResponse(asdict(replies.OverAnswers(values, None, None, times)))
    scores: list[Any] = []
    evidence: list[float | None] = []
    for value in values:
        total = None if isinstance(value, replies.FailedText) else sum(value)
        evidence.append(total if total is None else min(1.0, total))
        scores.append(value if total is None else [score / total if total else 0.0 for score in value])
    single = isinstance(body.text, requests.SingleText)
    answer = replies.OverAnswers(None, scores[0] if single else scores, evidence[0] if single else evidence, times)
    return JSONResponse(asdict(answer))


@answering.post("/v1/labels", response_model=replies.LabelAnswers, responses=refusals(*WITH_BODY))
async def classify(service: Served, request: Request, body: requests.LabelsRequest) -> Response:
    """The share of each label for each text, by how well the occurrences of its words in the index fit the mask."""
    _check_count(service, body.text)
    for name, words in body.labels.items():
        check_text(name, "labels: the name of a label")
        for number, word in enumerate(words):
            check_text(word, f"labels.{name}.{number}")
    opened, group = service.reloader.current, f"labels {id(body)}"
    jobs = text_jobs(body.text, lambda text, _: Job(lambda texts: opened.labels(body, texts), group, text))
    done = await service.batcher.results(request, jobs, service.deadline(body.timeout_ms))
    found = in_places(service, request, done)
    answers = [each if isinstance(each, replies.FailedText) else each[0] for each in found]
    notes = next(each[1] for each in found if not isinstance(each, replies.FailedText))
    return JSONResponse(asdict(replies.LabelAnswers(answers, notes, opened.state, took(request, done))))


@answering.post("/v1/find", response_model=replies.FindAnswer, responses=refusals(*WITH_BODY))
async def find(service: Served, request: Request, body: requests.FindRequest) -> Response:
    """The number of places of a phrase in the corpus, word for word, and the first of them."""
    opened = service.reloader.current
    done = await service.batcher.results(request, [Job(lambda _: opened.find(body))], service.deadline(body.timeout_ms))
    return JSONResponse(asdict(replies.FindAnswer(done[0].value, opened.state, took(request, done))))


@answering.post("/v1/trace", response_model=replies.TraceAnswer, responses=refusals(*WITH_BODY))
async def trace(service: Served, request: Request, body: requests.TraceRequest) -> Response:
    """The names, numbers, dates and quotations of a text, each looked up and filled in its sentence."""
    opened, deadline = service.reloader.current, service.deadline(body.timeout_ms)
    if service.settings.log_texts:
        state_of(request).logged["text"] = [body.text]
    read = await service.batcher.results(request, [Job(lambda _: opened.spans(body))], deadline)
    # a sentence or a part of it is a job, so that texts of others come between, and abandoned requests are dropped
    sentences = [list(own) for _, own in groupby(read[0].value, key=attrgetter("first"))]
    parts = [own[first : first + SPANS_AT_ONCE] for own in sentences for first in range(0, len(own), SPANS_AT_ONCE)]
    if len(parts) > (most := service.settings.texts_per_request):
        limit = f"{most} sentences with spans, where {SPANS_AT_ONCE} spans count as a sentence"
        message = f"text must have at most {limit}, got {len(parts)}: send it in parts"
        raise Problem("too_long", message, field="text")
    jobs = [Job(partial(opened.traced, body, own)) for own in parts]
    done = [*read, *await service.batcher.results(request, jobs, deadline)]
    spans = [span for each in done[1:] for span in each.value]
    return JSONResponse(asdict(replies.TraceAnswer(spans, opened.state, took(request, done))))


@describing.get("/v1/index", response_model=replies.IndexFacts, responses=refusals(401))
async def get_index(service: Served) -> Response:
    """Facts of the index that answers, and limits."""
    return JSONResponse(asdict(service.reloader.current.facts))


@describing.get(
    "/v1/documents/{identifier:path}", response_model=replies.DocumentWindow, responses=refusals(401, 404, 422)
)
async def get_document(
    service: Served,
    identifier: Annotated[str, PathParameter(description="Id of the document.")],
    start_char: Annotated[int, Query(ge=0, description="First character of interest.")] = 0,
    end_char: Annotated[int | None, Query(ge=0, description="End of interest; unset: `start_char`.")] = None,
    around: Annotated[
        int, Query(ge=0, le=requests.MAX_AROUND_CHARS, description="Characters before and after.")
    ] = 2000,
) -> Response:
    """The text of a document around [start_char, end_char), `around` characters before and after."""
    opened = service.reloader.current
    window = await asyncio.to_thread(
        opened.document, identifier, start_char=start_char, end_char=end_char, around=around
    )
    if window is None:
        raise Problem(
            "not_found",
            f"no document has the id {identifier[:200]!r}; it may have been deleted since it was in an answer",
        )
    return JSONResponse(asdict(window))


@state.get("/health", responses=refusals())
async def health() -> dict[str, str]:
    """Answer of the process, which touches nothing."""
    return {"status": "ok", "version": npm.__version__}


@state.get("/ready", responses=refusals(503))
async def ready(service: Served) -> dict[str, str | int]:
    """Readiness: 503 once the server is shutting down, and while a partition is lost."""
    if not service.ready:
        raise stopping()
    opened = service.reloader.current
    if opened.partitions_lost:
        raise PartitionsLost(opened.partitions_lost, opened.facts.partitions)
    return {"status": "ready", "generation": opened.state.generation}


@state.get("/metrics", response_class=PlainTextResponse, responses=refusals())
async def metrics(service: Served) -> Response:
    """Counts and times in the text format of Prometheus."""
    return Response(service.metrics.text(), media_type=CONTENT_TYPE_LATEST)


def _check_count(service: Service, texts: Sequence[str]) -> None:
    """Raise Problem for no text, or more than the server takes at once."""
    most = service.settings.texts_per_request
    if not 1 <= len(texts) <= most:
        raise Problem(
            "too_many" if texts else "too_few", f"text must be 1 to {most} texts, got {len(texts)}", field="text"
        )


async def _filled(
    service: Service,
    request: Request,
    texts: Sequence[str],
    options: requests.Options,
    cached: Mapping[str, str] | None = None,
) -> Response:
    """Answers to the texts, with the headers `cached` unless a partition is lost."""
    opened, deadline = service.reloader.current, service.deadline(options.timeout_ms)
    jobs = fill_jobs(opened, texts, options)
    if service.settings.log_texts:
        state_of(request).logged["text"] = texts
    as_lines = LINES in request.headers.get("accept", "")
    done = await service.batcher.results(request, jobs, deadline, until_answer=as_lines)
    answers = in_places(service, request, done)  # without any answer the request is refused, before a line is sent
    if as_lines:
        lines = answer_lines(service, request, jobs, deadline, partial(_summary, request, opened, options))
        return StreamingResponse(lines, media_type=LINES)
    for each in answers:
        service.record_unanswered(each)
    summary = _summary(request, opened, options, done)
    if summary.partitions.answered < summary.partitions.asked:
        cached = None
    return JSONResponse({"answers": [asdict(each) for each in answers], **asdict(summary)}, headers=cached)


def _summary(request: Request, opened: OpenedIndex, options: requests.Options, done: Sequence[Done]) -> replies.Summary:
    used = opened.fill_settings(options)
    values = as_json({name: getattr(used, name) for name in requests.OPTIONS})
    settings = replies.UsedOptions(scoring=options.scoring, **values)
    partitions = opened.answered(frozenset[int]().union(*(each.lost for each in done)))
    failed = sum(isinstance(each.value, Exception) for each in done)
    return replies.Summary(len(done) - failed, failed, opened.state, settings, took(request, done), partitions)


def fill_jobs(opened: OpenedIndex, texts: Sequence[str], options: requests.Options) -> list[Job]:
    """A job for each text, which may be filled together with others that are filled alike.

    A text of several masks is filled alone: only its tokens tell whether it can be, and its refusal is its own.
    """
    settings = opened.fill_settings(options)
    group = f"{opened.state.digest} {options.allow_partial} {settings}"

    def job(text: str, where: str) -> Job:
        run = partial(opened.fill, settings=settings, where=where, allow_partial=options.allow_partial)
        return Job(run, group if text.count(MASK_TEXT) == 1 else "", text)

    return text_jobs(texts, job, max_masks=MAX_MASKS)


def text_jobs(texts: Sequence[str], job: Callable[[str, str], Job], *, max_masks: int = 1) -> list[Job]:
    """The `job` of each text and its name in messages; of a text that cannot be read, a job finished with its error."""
    jobs: list[Job] = []
    for number, given in enumerate(texts):
        where = "text" if isinstance(texts, requests.SingleText) else f"text.{number}"
        try:
            if len(given) > (most := requests.LIMITS["text_chars"]):
                raise QueryError(f"{where} must have at most {most:,} characters, got {len(given):,}", code="too_long")
            jobs.append(job(read_query(given, where=where, max_masks=max_masks), where))
        except QueryError as error:
            jobs.append(Job(lambda _: []))
            jobs[-1].result.set_result(Done(error))
    return jobs


def in_places(service: Service, request: Request, done: Sequence[Done]) -> list[Any]:
    """The values in the order of the texts, errors as FailedText. Raises the first error if there is nothing else."""
    errors = [each.value for each in done if isinstance(each.value, Exception)]
    if len(errors) == len(done):
        raise errors[0]
    failed = {id(error): replies.FailedText(service.problem(error).details(state_of(request).id)) for error in errors}
    return [failed.get(id(each.value), each.value) for each in done]


async def answer_lines(
    service: Service,
    request: Request,
    jobs: Sequence[Job],
    deadline: float,
    summary: Callable[[Sequence[Done]], replies.Summary],
) -> AsyncIterator[str]:
    """A line of JSON for each text, with its answer or its problem, in order, and a last one with the summary."""
    done: list[Done] = []
    try:
        for number, job in enumerate(jobs):
            problem = None
            try:
                async with asyncio.timeout_at(deadline):
                    found = await job.result
                if isinstance(found.value, QueryError):
                    raise found.value
                service.record_unanswered(found.value)
                line = {"answer": asdict(found.value)}
            except Exception as error:
                found, problem = Done(error), service.problem(error)
                line = {"problem": asdict(problem.details(state_of(request).id))}
            done.append(found)
            yield json.dumps({"index": number, **line}, ensure_ascii=False, allow_nan=False) + "\n"
            if problem and problem.status == HTTPStatus.INTERNAL_SERVER_ERROR:
                raise found.value
        yield json.dumps({"summary": asdict(summary(done))}) + "\n"
    finally:
        give_up(jobs)


def took(request: Request, done: Sequence[Done]) -> replies.Milliseconds:
    """Time of a request by part: the longest wait, and the computation of the batches with its texts."""
    # all texts of a batch have its times
    batches: set[tuple[float, float]] = {(each.encode_seconds, each.search_seconds) for each in done}
    parts: dict[str, Any] = {
        "queue": max(each.queue_seconds for each in done),
        "encode": sum(encode_seconds for encode_seconds, _ in batches),
        "search": sum(search_seconds for _, search_seconds in batches),
        "total": perf_counter() - state_of(request).arrived,
    }
    times = replies.Milliseconds(**{name: round(1000 * seconds, 3) for name, seconds in parts.items()})
    state_of(request).logged |= {"texts": len(done), "took_ms": asdict(times)}
    return times
