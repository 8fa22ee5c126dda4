"""The routes: texts and labels in, answers out; the index and its documents; the state of the server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from http import HTTPStatus
from itertools import groupby
from operator import attrgetter
from time import perf_counter
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response, StreamingResponse
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException

import npm
from npm.core.display import answer_json
from npm.core.errors import ArtifactError, UserError
from npm.core.files import digest_of
from npm.core.types import MASK_TEXT
from npm.retrieval.queries import MAX_MASKS, read_query
from npm.serving import schema
from npm.serving.batcher import Batcher, Done, Job, give_up
from npm.serving.description import COMPUTED, WITH_BODY, refusals
from npm.serving.metrics import ServerMetrics
from npm.serving.middleware import state_of
from npm.serving.opened import OpenedIndex
from npm.serving.partitions import PartitionsLost
from npm.serving.problems import Problem, http_problem, invalid_request, stopping
from npm.serving.reload import IndexReloader
from npm.serving.settings import ServeSettings

LINES = "application/x-ndjson"
MOST_PASSAGE_CHARS = 200_000
"""Of all passages of a request: they are encoded while everybody else waits."""


@dataclass
class Service:
    """State that all routes share; `ready` turns False when the server is told to stop."""

    settings: ServeSettings
    reloader: IndexReloader
    metrics: ServerMetrics
    batcher: Batcher
    notice: Callable[[str], None]
    ready: bool = True

    def problem(self, error: Exception) -> Problem:
        """The problem that a client gets for an error, without the index's folder."""
        if isinstance(error, Problem):
            return error
        if isinstance(error, RequestValidationError):
            return invalid_request(error)
        if isinstance(error, HTTPException):
            return http_problem(error.status_code, error.headers)
        if isinstance(error, TimeoutError):
            self.metrics.rejected("deadline")
            return Problem("timeout")
        if not isinstance(error, UserError):
            return Problem("internal")
        opened = self.reloader.current
        if isinstance(error, ArtifactError):  # a broken index is the server's matter
            self.notice(str(error))
            message = f"the index {opened.facts.name} is unavailable: tell who runs the server, whose log says more"
            return Problem("index_unavailable", message, headers={"Retry-After": "60"})
        return Problem(error.code, str(error).replace(str(opened.folder), opened.facts.name))

    def deadline(self, timeout_ms: int | None) -> float:
        """Time by the clock of the event loop at which an answer to a request that just came is too late."""
        seconds = self.settings.timeout_seconds
        if timeout_ms is not None:
            seconds = min(seconds, timeout_ms / 1000)
        return asyncio.get_running_loop().time() + seconds


async def service_of(request: Request) -> Service:
    """The service of the application that was asked."""
    service: Service = request.app.state.service
    return service


Served = Annotated[Service, Depends(service_of)]
answering, describing, state = APIRouter(tags=["answers"]), APIRouter(tags=["index"]), APIRouter(tags=["state"])


@answering.post("/v1/fill", response_model=schema.Answers, responses=refusals(*WITH_BODY))
async def fill(service: Served, request: Request, body: schema.FillRequest) -> Response:
    """The best phrases for each text. A list of texts gives as many answers, one text a list of one.

    With `Accept: application/x-ndjson` each answer is a line, sent as soon as it is there.
    """
    _check_count(service, body.text)
    return await _filled(service, request, body.text, body)


@answering.get("/v1/fill", response_model=schema.Answers, responses=refusals(*COMPUTED))
async def fill_link(service: Served, request: Request, query: Annotated[schema.FillQuery, Query()]) -> Response:
    """The same for one text, as a link, with an ETag for caches: it changes with the index, its options and npmlm."""
    opened = service.reloader.current
    asked = f"{npm.__version__} {opened.state} {opened.fill_settings(query)} {query!r}"
    headers = {"ETag": f'W/"{digest_of(asked)}"', "Cache-Control": "private, no-cache", "Vary": "Accept"}
    if headers["ETag"] in request.headers.get("if-none-match", ""):
        return Response(status_code=HTTPStatus.NOT_MODIFIED, headers=headers)
    return await _filled(service, request, [query.text], query, headers)


@answering.post("/v1/over", response_model=schema.OverAnswers, responses=refusals(*WITH_BODY))
async def over(service: Served, request: Request, body: schema.OverRequest) -> Response:
    """Phrases from passages that come with the request, or the probability of given words; no index is asked."""
    if (chars := sum(len(passage.text) for passage in body.passages)) > MOST_PASSAGE_CHARS:
        message = f"passages must have at most {MOST_PASSAGE_CHARS:,} characters together, got {chars:,}"
        raise Problem("too_long", message, field="passages")
    text = read_query(body.text, max_masks=MAX_MASKS if body.words is None else 1)
    job = Job(lambda _: service.reloader.current.over(body.model_copy(update={"text": text})))
    done = await service.batcher.results(request, [job], service.deadline(body.timeout_ms))
    answers, scores = ([done[0].value], None) if body.words is None else (None, done[0].value)
    return JSONResponse(asdict(schema.OverAnswers(answers, scores, took(request, done))))


@answering.post("/v1/labels", response_model=schema.LabelAnswers, responses=refusals(*WITH_BODY))
async def labels(service: Served, request: Request, body: schema.LabelsRequest) -> Response:
    """The share of each label for each text, by how well the occurrences of its words in the index fit the mask."""
    _check_count(service, body.text)
    texts = [read_query(text, where=f"text.{number}") for number, text in enumerate(body.text)]
    opened = service.reloader.current
    job = Job(lambda _: opened.labels(body.model_copy(update={"text": texts})))
    done = await service.batcher.results(request, [job], service.deadline(body.timeout_ms))
    answers, notes = done[0].value
    return JSONResponse(asdict(schema.LabelAnswers(answers, notes, opened.state, took(request, done))))


@answering.post("/v1/find", response_model=schema.FindAnswer, responses=refusals(*WITH_BODY))
async def find(service: Served, request: Request, body: schema.FindRequest) -> Response:
    """The number of places of a phrase in the corpus, word for word, and the first of them."""
    opened = service.reloader.current
    done = await service.batcher.results(request, [Job(lambda _: opened.find(body))], service.deadline(body.timeout_ms))
    return JSONResponse(asdict(schema.FindAnswer(done[0].value, opened.state, took(request, done))))


@answering.post("/v1/trace", response_model=schema.TraceAnswer, responses=refusals(*WITH_BODY))
async def trace(service: Served, request: Request, body: schema.TraceRequest) -> Response:
    """The names, numbers, dates and quotations of a text, each looked up and filled in its sentence."""
    opened, deadline = service.reloader.current, service.deadline(body.timeout_ms)
    if service.settings.log_texts:
        state_of(request).logged["text"] = [body.text]
    read = await service.batcher.results(request, [Job(lambda _: opened.spans(body))], deadline)
    # a sentence is a job, so that texts of others come between, and what nobody waits for any more is not computed
    sentences = [list(own) for _, own in groupby(read[0].value, key=attrgetter("first"))]
    if len(sentences) > (most := service.settings.texts_per_request):
        message = f"text must have at most {most} sentences with spans, got {len(sentences)}: send it in parts"
        raise Problem("too_long", message, field="text")
    jobs = [Job(partial(opened.traced, body, own)) for own in sentences]
    done = [*read, *await service.batcher.results(request, jobs, deadline)]
    spans = [span for each in done[1:] for span in each.value]
    return JSONResponse(asdict(schema.TraceAnswer(spans, opened.state, took(request, done))))


@describing.get("/v1/index", response_model=schema.IndexFacts, responses=refusals(401))
async def index(service: Served) -> Response:
    """Facts of the index that answers, and limits."""
    return JSONResponse(asdict(service.reloader.current.facts))


@describing.get(
    "/v1/documents/{identifier:path}", response_model=schema.DocumentWindow, responses=refusals(401, 404, 422)
)
async def document(
    service: Served,
    identifier: str,
    start_char: Annotated[int, Query(ge=0)] = 0,
    end_char: Annotated[int | None, Query(ge=0)] = None,
    around: Annotated[int, Query(ge=0, le=schema.MOST_AROUND_CHARS)] = 2000,
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
    """Readiness: 503 when the server is told to stop, and while a partition is lost."""
    if not service.ready:
        raise stopping()
    opened = service.reloader.current
    if opened.partitions_lost:
        raise PartitionsLost(opened.partitions_lost, opened.facts.partitions)
    return {"status": "ready", "generation": opened.state.generation}


@state.get("/metrics", response_class=Response, responses=refusals())
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
    options: schema.Options,
    cached: Mapping[str, str] | None = None,
) -> Response:
    """Answers to the texts, with the headers `cached` unless a partition is lost."""
    opened, deadline = service.reloader.current, service.deadline(options.timeout_ms)
    jobs = fill_jobs(opened, texts, options)
    if service.settings.log_texts:
        state_of(request).logged["text"] = texts
    if LINES in request.headers.get("accept", ""):
        service.batcher.submit(jobs)
        return StreamingResponse(answer_lines(service, request, jobs, deadline), media_type=LINES)
    done = await service.batcher.results(request, jobs, deadline)
    used = opened.fill_settings(options)
    settings = schema.UsedOptions(
        used.k, used.occurrences, used.retrieval.value, used.documents, used.where, used.min_share, options.scoring
    )
    partitions = opened.answered(lost := frozenset[int]().union(*(each.lost for each in done)))
    answers = [each.value for each in done]
    found = schema.Answers(answers, opened.state, settings, took(request, done), partitions)
    return JSONResponse(asdict(found), headers=None if lost else cached)


def fill_jobs(opened: OpenedIndex, texts: Sequence[str], options: schema.Options) -> list[Job]:
    """A job for each text, which may be filled together with others that are filled alike.

    A text of several masks is filled alone: only its tokens tell whether it can be, and its refusal is its own.
    Raises QueryError for a text that cannot be filled, with its place in the request.
    """
    settings = opened.fill_settings(options)
    group = f"{opened.state.digest} {options.allow_partial} {settings}"
    jobs: list[Job] = []
    for number, given in enumerate(texts):
        text = read_query(given, where=f"text.{number}", max_masks=MAX_MASKS)
        run = partial(opened.fill, settings=settings, where=f"text.{number}", allow_partial=options.allow_partial)
        jobs.append(Job(run, group if text.count(MASK_TEXT) == 1 else "", text))
    return jobs


async def answer_lines(service: Service, request: Request, jobs: Sequence[Job], deadline: float) -> AsyncIterator[str]:
    """Each answer as a line of JSON, in order; where one fails, a problem is the last line."""
    done: list[Done] = []
    try:
        for job in jobs:
            async with asyncio.timeout_at(deadline):
                done.append(await job.result)
            yield answer_json(done[-1].value) + "\n"
        took(request, done)
    except Exception as error:
        problem = service.problem(error)
        yield json.dumps(problem.record(state_of(request).id)) + "\n"
        if problem.status == HTTPStatus.INTERNAL_SERVER_ERROR:
            raise
    finally:
        give_up(jobs)


def took(request: Request, done: Sequence[Done]) -> schema.Milliseconds:
    """Time of a request by part: the longest wait, and the computation of the batches with its texts."""
    # all texts of a batch have its times
    batches: set[tuple[float, float]] = {(each.encode_seconds, each.search_seconds) for each in done}
    parts: dict[str, Any] = {
        "queue": max(each.queue_seconds for each in done),
        "encode": sum(encode_seconds for encode_seconds, _ in batches),
        "search": sum(search_seconds for _, search_seconds in batches),
        "total": perf_counter() - state_of(request).arrived,
    }
    times = schema.Milliseconds(**{name: round(1000 * seconds, 3) for name, seconds in parts.items()})
    state_of(request).logged |= {"texts": len(done), "took_ms": asdict(times)}
    return times
