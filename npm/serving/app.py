"""The application: routes, errors, the page and what describes it."""

from __future__ import annotations

from functools import partial
from http import HTTPStatus
from pathlib import Path

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, Response
from fastapi.staticfiles import StaticFiles
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException

import npm
from npm.core.errors import UserError
from npm.serving.partitions import PartitionsLost
from npm.serving.problems import Problem, stopping
from npm.serving.routes import add_filling, add_index
from npm.serving.service import LEFT, Service, state_of

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
    content = {"application/problem+json": {"schema": PROBLEM_SCHEMA}}
    app = FastAPI(
        title="npmlm",
        version=npm.__version__,
        summary="Fills <mask> with phrases that stand in a corpus, and says where. Offsets are Unicode code points.",
        docs_url=None,
        redoc_url=None,
        lifespan=service.running,
        responses={
            status: {"description": HTTPStatus(status).phrase, "content": content} for status in PROBLEM_STATUSES
        },
    )
    add_errors(app, service)
    add_states(app, service)
    add_filling(app, service)
    add_index(app, service)
    add_pages(app)
    return app


def add_errors(app: FastAPI, service: Service) -> None:
    """Answer every error as a problem."""

    async def answer(request: Request, error: Exception) -> Response:
        if isinstance(error, HTTPException) and error.status_code == LEFT:
            return Response(status_code=LEFT)
        return service.problem(error).response(state_of(request).id)

    for kind in (Problem, UserError, RequestValidationError, HTTPException, Exception):
        app.add_exception_handler(kind, answer)


def add_states(app: FastAPI, service: Service) -> None:
    """How the server does: for load balancers and for Prometheus."""

    @app.get("/health", tags=["state"])
    async def health() -> dict[str, str]:
        """Whether the process answers; touches nothing."""
        return {"status": "ok", "version": npm.__version__}

    @app.get("/ready", tags=["state"])
    async def ready() -> dict[str, str | int]:
        """Whether questions are taken: 503 when the server is told to stop, and while a partition is lost."""
        if not service.ready:
            raise stopping()
        opened = service.keeper.current
        if opened.partitions_lost:
            raise PartitionsLost(opened.partitions_lost, opened.facts.partitions)
        return {"status": "ready", "generation": opened.state.generation}

    if service.settings.metrics:

        @app.get("/metrics", tags=["state"], response_class=Response)
        async def metrics() -> Response:
            """Counts and times in the text format of Prometheus."""
            return Response(service.metrics.text(), media_type=CONTENT_TYPE_LATEST)


def add_pages(app: FastAPI) -> None:
    """The page, and the description of the routes, both without anything from another server."""
    app.mount("/static", StaticFiles(directory=STATIC), name="static")
    for path, file in {"/": "index.html", "/docs": "docs.html", "/favicon.ico": "icon.svg"}.items():
        app.add_route(path, partial(_sent, STATIC / file), include_in_schema=False)


def _sent(file: Path, _: Request) -> Response:
    return FileResponse(file)
