"""The application: routes, errors, the page and what describes it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from fastapi.routing import APIRoute
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException
from starlette.middleware.gzip import GZipMiddleware
from starlette.routing import Match

import npm
from npm.core.errors import UserError
from npm.core.files import sha256_of_bytes
from npm.serving import routes
from npm.serving.description import DESCRIPTION, TAGS, complete
from npm.serving.middleware import state_of
from npm.serving.problems import CLIENT_LEFT, Problem
from npm.serving.service import Service

STATIC = Path(__file__).parent / "static"
ROUTERS = (routes.state, routes.answering, routes.describing)


class KeptFiles(StaticFiles):
    """Files whose addresses change with their content."""

    def file_response(self, *given: Any, **named: Any) -> Response:
        """The file, for a browser to keep."""
        response = super().file_response(*given, **named)
        response.headers["Cache-Control"] = "public, max-age=31536000, immutable"
        return response


class Application(FastAPI):
    """FastAPI's application with a complete description."""

    def openapi(self) -> dict[str, Any]:
        """The description of the routes."""
        if self.openapi_schema is None:
            complete(super().openapi())
        return super().openapi()


def make_app(service: Service) -> FastAPI:
    """The application that answers with `service`, which is used only when it runs."""

    @contextlib.asynccontextmanager
    async def running(_: FastAPI) -> AsyncIterator[None]:
        async with service.batcher.running(), service.reloader.running():
            yield

    app = Application(
        title="npmlm",
        version=npm.__version__,
        summary="Fills <mask> with phrases of a corpus, and shows where they occur.",
        description=DESCRIPTION,
        openapi_tags=TAGS,
        generate_unique_id_function=_operation_id,
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
    app.add_middleware(GZipMiddleware, minimum_size=1_000, compresslevel=6)
    # a page names its files by the digest of all, so that a browser keeps them and never mixes two versions
    files = sorted(path for path in STATIC.rglob("*") if path.is_file())
    hashed = f"static/{sha256_of_bytes(b''.join(path.read_bytes() for path in files))[:16]}"
    app.mount(f"/{hashed}", KeptFiles(directory=STATIC), name="static")
    for path, file in {"/": "index.html", "/docs": "docs.html", "/favicon.ico": "icon.svg"}.items():
        content = (STATIC / file).read_text("utf-8").replace("static/", f"{hashed}/")
        media_type = "image/svg+xml" if file.endswith(".svg") else "text/html"
        app.add_route(path, partial(_sent, content, media_type), include_in_schema=False)
    return app


def _methods(request: Request) -> list[str]:
    """The methods of an address; in the header Allow the router names those of the first of its routes only."""
    candidates = (route for router in ROUTERS for route in router.routes)
    matching = [route for route in candidates if route.matches(request.scope)[0] is not Match.NONE]
    methods = {method for route in matching for method in getattr(route, "methods", ())}
    return sorted(methods | ({"HEAD"} if "GET" in methods else set()))


def _operation_id(route: APIRoute) -> str:
    first, *others = route.name.split("_")
    return first + "".join(map(str.capitalize, others))


def _sent(content: str, media_type: str, _: Request) -> Response:
    return Response(content, media_type=media_type)
