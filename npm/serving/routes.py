"""The routes under /v1: texts and labels in, answers out; and what can be known of the index and its documents."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict
from http import HTTPStatus
from typing import Annotated, Any

from fastapi import FastAPI, Query, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from pydantic import ConfigDict
from starlette.convertors import PathConvertor, register_url_convertor

from npm.core.display import answer_json
from npm.core.errors import QueryError, SettingError
from npm.retrieval.queries import MOST_MASKS, check_query
from npm.serving import schema
from npm.serving.compute import Done, Job
from npm.serving.opened import OpenedIndex
from npm.serving.problems import Problem, http_problem
from npm.serving.service import Service, give_up, state_of, took

LINES = "application/x-ndjson"
MOST_PASSAGE_CHARS = 200_000
"""Of all passages of a request: they are encoded while everybody else waits."""


class FillQuery(schema.Options):
    """A text to be filled, in an address; numbers are written as text there."""

    model_config = ConfigDict(extra="forbid", strict=False)

    text: schema.Text
    """A text with `<mask>` where a phrase is missing."""


class DocumentIdConvertor(PathConvertor):
    """A path with any characters; Starlette's own ends at a line break."""

    regex = "(?s:.*)"


register_url_convertor("document_id", DocumentIdConvertor())


def add_filling(app: FastAPI, service: Service) -> None:
    """`/v1/fill`: phrases of the index for the masks of texts."""

    @app.post("/v1/fill", tags=["answers"], response_model=schema.Answers)
    async def fill(request: Request, body: schema.FillRequest) -> Response:
        """The best phrases for each text. A list of texts gives as many answers, one text a list of one.

        With `Accept: application/x-ndjson` each answer is a line, sent as soon as it is there.
        """
        one = isinstance(body.text, str)
        texts = [body.text] if isinstance(body.text, str) else body.text
        most = service.settings.texts_per_request
        if not 1 <= len(texts) <= most:
            raise QueryError(f"text must be 1 to {most} texts, got {len(texts)}")
        _check_texts(texts, one=one)
        opened = service.keeper.current
        jobs = service.jobs(opened, texts, body)
        if LINES in request.headers.get("accept", ""):
            service.submit(request, jobs)
            return StreamingResponse(_lines(service, request, jobs), media_type=LINES)
        return JSONResponse(_answers(request, opened, body, await service.results(request, jobs)))

    @app.get("/v1/fill", tags=["answers"], response_model=schema.Answers)
    async def fill_link(request: Request, query: Annotated[FillQuery, Query()]) -> Response:
        """The same for one text, as a link; an answer has an ETag, which changes with the index."""
        _check_given_once(request, lists=("documents", "where"))
        _check_texts([query.text], one=True)
        opened = service.keeper.current
        asked = json.dumps([opened.state.digest, query.text, str(opened.fill_settings(query))])
        tag = f'W/"{hashlib.sha256(asked.encode()).hexdigest()[:32]}"'
        headers = {"ETag": tag, "Cache-Control": "private, no-cache"}
        if tag in request.headers.get("if-none-match", ""):
            return Response(status_code=HTTPStatus.NOT_MODIFIED, headers=headers)
        done = await service.results(request, service.jobs(opened, [query.text], query))
        if _lost(done):
            headers = {"Cache-Control": "no-store"}
        return JSONResponse(_answers(request, opened, query, done), headers=headers)


def add_index(app: FastAPI, service: Service) -> None:
    """What else can be asked: passages that come along, labels, facts of the index, and documents."""

    @app.post("/v1/over", tags=["answers"], response_model=schema.OverAnswers)
    async def over(request: Request, body: schema.OverRequest) -> Response:
        """Phrases from passages that come with the request, or the probability of given words; no index is asked."""
        texts = [passage if isinstance(passage, str) else passage.text for passage in body.passages]
        if (chars := sum(map(len, texts))) > MOST_PASSAGE_CHARS:
            raise SettingError(f"passages must have at most {MOST_PASSAGE_CHARS:,} characters together, got {chars:,}")
        if body.words is None:
            _check_texts([body.text], one=True)
        opened = service.keeper.current
        job = Job(lambda _: opened.over(body), deadline=service.deadline(body.timeout_ms))
        done = await service.results(request, [job])
        answers, scores = ([done[0].value], None) if body.words is None else (None, done[0].value)
        return JSONResponse(asdict(schema.OverAnswers(answers, scores, took(request, done))))

    @app.post("/v1/labels", tags=["answers"], response_model=schema.LabelAnswer)
    async def labels(request: Request, body: schema.LabelsRequest) -> Response:
        """The share of each label, by how well the occurrences of its words in the index fit the mask."""
        _check_texts([body.text], one=True, most_masks=1)
        opened = service.keeper.current
        job = Job(lambda _: opened.labels(body), deadline=service.deadline(body.timeout_ms))
        done = await service.results(request, [job])
        shares, notes = done[0].value
        return JSONResponse(asdict(schema.LabelAnswer(body.text, shares, notes, opened.state, took(request, done))))

    @app.get("/v1/index", tags=["index"], response_model=schema.IndexFacts)
    async def index() -> Response:
        """What answers, and within which limits."""
        return JSONResponse(asdict(service.keeper.current.facts))

    @app.get("/v1/documents/{identifier:document_id}", tags=["index"], response_model=schema.DocumentWindow)
    async def document(
        request: Request,
        identifier: str,
        start_char: Annotated[int, Query(ge=0)] = 0,
        end_char: Annotated[int | None, Query(ge=0)] = None,
        around: Annotated[int, Query(ge=0, le=schema.MOST_AROUND_CHARS)] = 2000,
    ) -> Response:
        """The text of a document around [start_char, end_char), `around` characters before and behind."""
        _check_given_once(request)
        opened = service.keeper.current
        window = await asyncio.to_thread(
            opened.document, identifier, start_char=start_char, end_char=end_char, around=around
        )
        if window is None:
            raise Problem(
                HTTPStatus.NOT_FOUND,
                f"no document has the id {identifier[:200]!r}; it may have been deleted since it was in an answer",
            )
        return JSONResponse(asdict(window))


def _answers(request: Request, opened: OpenedIndex, options: schema.Options, done: Sequence[Done]) -> dict[str, Any]:
    """An `Answers` as JSON values."""
    used = opened.fill_settings(options)
    settings = schema.UsedOptions(
        used.k, used.occurrences, used.retrieval.value, used.documents, used.where, options.scoring
    )
    answers = [each.value for each in done]
    return asdict(schema.Answers(answers, opened.state, settings, took(request, done), opened.answered(_lost(done))))


def _lost(done: Sequence[Done]) -> frozenset[int]:
    """The partitions that did not answer some of the texts."""
    return frozenset[int]().union(*(each.lost for each in done))


async def _lines(service: Service, request: Request, jobs: Sequence[Job]) -> AsyncIterator[str]:
    """Each answer as a line of JSON, in order; where one fails, a problem is the last line."""
    done: list[Done] = []
    loop = asyncio.get_running_loop()
    try:
        for job in jobs:
            await asyncio.wait([job.result], timeout=max(0.0, job.deadline - loop.time()))
            if not job.result.done() or job.result.cancelled():
                service.metrics.rejected("deadline")
                raise http_problem(504)
            done.append(job.result.result())
            yield answer_json(done[-1].value) + "\n"
        took(request, done)
    except Exception as error:
        problem = service.problem(error)
        yield json.dumps(problem.record(state_of(request).id)) + "\n"
        if problem.status == HTTPStatus.INTERNAL_SERVER_ERROR:
            raise
    finally:
        give_up(jobs)


def _check_given_once(request: Request, *, lists: Sequence[str] = ()) -> None:
    """Raise Problem for a parameter of the address that is given twice and is none of `lists`."""
    for name in set(request.query_params) - set(lists):
        if len(values := request.query_params.getlist(name)) > 1:
            got = " and ".join(value[:200] for value in values[:2])
            raise Problem(HTTPStatus.UNPROCESSABLE_ENTITY, f"{name} must be given once, got {got}")


def _check_texts(texts: Sequence[str], *, one: bool, most_masks: int = MOST_MASKS) -> None:
    """Raise QueryError for a text that cannot be filled, with its place in the request."""
    for number, text in enumerate(texts):
        check_query(text, where="text" if one else f"text.{number}", most_masks=most_masks)
