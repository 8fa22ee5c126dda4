"""The application: routes, errors, the page and what describes it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from functools import partial
from http import HTTPStatus
from pathlib import Path

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, Response
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException

import npm
from npm.core.errors import UserError
from npm.serving import routes
from npm.serving.middleware import state_of
from npm.serving.problems import CLIENT_LEFT, Problem
from npm.serving.routes import Service

STATIC = Path(__file__).parent / "static"
PROBLEM_STATUSES = (401, 404, 408, 413, 421, 422, 429, 503, 504)
PROBLEM_SCHEMA = {
    "type": "object",
    "description": "RFC 9457",
    "properties": {
        "status": {"type": "integer"},
        **{name: {"type": "string"} for name in ("type", "title", "request_id")},
    },
}


def make_app(service: Service) -> FastAPI:
    """The application that answers with `service`, which is asked only when it runs."""

    @contextlib.asynccontextmanager
    async def running(_: FastAPI) -> AsyncIterator[None]:
        async with service.batcher.running(), service.reloader.running():
            yield

    content = {"application/problem+json": {"schema": PROBLEM_SCHEMA}}
    app = FastAPI(
        title="npmlm",
        version=npm.__version__,
        summary="Fills <mask> with phrases of a corpus, and shows where they occur. Offsets are Unicode code points.",
        docs_url=None,
        redoc_url=None,
        lifespan=running,
        responses={
            status: {"description": HTTPStatus(status).phrase, "content": content} for status in PROBLEM_STATUSES
        },
    )
    app.state.service = service
    for router in (routes.state, routes.answering, routes.describing):
        app.include_router(router)

    async def answer(request: Request, error: Exception) -> Response:
        if isinstance(error, HTTPException) and error.status_code == CLIENT_LEFT:
            return Response(status_code=CLIENT_LEFT)
        return service.problem(error).response(state_of(request).id)

    for kind in (Problem, UserError, RequestValidationError, HTTPException, TimeoutError, Exception):
        app.add_exception_handler(kind, answer)
    app.mount("/static", StaticFiles(directory=STATIC), name="static")
    for path, file in {"/": "index.html", "/docs": "docs.html", "/favicon.ico": "icon.svg"}.items():
        app.add_route(path, partial(_sent, STATIC / file), include_in_schema=False)
    return app


def _sent(file: Path, _: Request) -> Response:
    return FileResponse(file)
