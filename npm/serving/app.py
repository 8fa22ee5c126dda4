"""The application: routes, errors, the page and what describes it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, Response
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException
from starlette.routing import Match

import npm
from npm.core.errors import UserError
from npm.serving import routes
from npm.serving.description import DESCRIPTION, PROBLEM
from npm.serving.middleware import state_of
from npm.serving.problems import CLIENT_LEFT, Problem
from npm.serving.routes import Service

STATIC = Path(__file__).parent / "static"
ROUTERS = (routes.state, routes.answering, routes.describing)


class Application(FastAPI):
    """FastAPI's application, whose description has the object that all refusals are."""

    def openapi(self) -> dict[str, Any]:
        """The description of the routes."""
        described = super().openapi()
        described["components"]["schemas"]["Problem"] = PROBLEM
        return described


def make_app(service: Service) -> FastAPI:
    """The application that answers with `service`, which is asked only when it runs."""

    @contextlib.asynccontextmanager
    async def running(_: FastAPI) -> AsyncIterator[None]:
        async with service.batcher.running(), service.reloader.running():
            yield

    app = Application(
        title="npmlm",
        version=npm.__version__,
        summary="Fills <mask> with phrases of a corpus, and shows where they occur.",
        description=DESCRIPTION,
        docs_url=None,
        redoc_url=None,
        lifespan=running,
        redirect_slashes=False,
    )
    app.state.service = service
    for router in ROUTERS:
        app.include_router(router)

    async def answer(request: Request, error: Exception) -> Response:
        if isinstance(error, HTTPException) and error.status_code == CLIENT_LEFT:
            return Response(status_code=CLIENT_LEFT)
        problem = service.problem(error)
        if problem.code == "method_not_allowed" and (methods := _methods(request)):
            problem.headers["Allow"] = ", ".join(methods)
        return problem.response(state_of(request).id)

    for kind in (Problem, UserError, RequestValidationError, HTTPException, TimeoutError, Exception):
        app.add_exception_handler(kind, answer)
    app.mount("/static", StaticFiles(directory=STATIC), name="static")
    for path, file in {"/": "index.html", "/docs": "docs.html", "/favicon.ico": "icon.svg"}.items():
        app.add_route(path, partial(_sent, STATIC / file), include_in_schema=False)
    return app


def _methods(request: Request) -> list[str]:
    """The methods of an address; in the header Allow the router names those of the first of its routes only."""
    candidates = (route for router in ROUTERS for route in router.routes)
    matching = [route for route in candidates if route.matches(request.scope)[0] is not Match.NONE]
    methods = {method for route in matching for method in getattr(route, "methods", ())}
    return sorted(methods | ({"HEAD"} if "GET" in methods else set()))


def _sent(file: Path, _: Request) -> Response:
    return FileResponse(file)
