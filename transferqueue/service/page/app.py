"""The page's addresses. Each only reads.

/                 the page, its style, script and icon: nothing of the service is in them
/session          a token for a cookie, where a token is needed
/api/events       server-sent events, `frames.frame` each
/api/picture      a partition, `frames.packed`
/api/status …     as the command line prints it with ``--json``
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transferqueue.errors import InvalidInput, Missing, PackageMissing, TransferQueueError
from transferqueue.service.page.guard import HEADERS, SESSION, Guard

try:
    from starlette.applications import Starlette
    from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
    from starlette.routing import Route
except ModuleNotFoundError as _error:
    raise PackageMissing("starlette", "web") from _error

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.requests import Request
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from transferqueue.client.async_client import AsyncClient
    from transferqueue.service.page.feed import Feed

ASSETS = Path(__file__).parent / "assets"
MAX_TOKEN_BYTES = 1024
MAX_COLUMNS = 2048

_FILES = {
    "/": ("page.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
    "/draw.js": ("draw.js", "text/javascript"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}


class Guarded:
    """Asks the guard before anything else looks at a request, and marks every answer."""

    def __init__(self, app: ASGIApp, guard: Guard) -> None:
        self._app = app
        self._guard = guard

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            return

        async def marked(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = [(name.lower().encode(), text.encode()) for name, text in HEADERS.items()]
                message = {**message, "headers": [*message.get("headers", ()), *headers]}
            await send(message)

        heads = [
            (name.decode("latin-1"), text.decode("latin-1")) for name, text in scope["headers"]
        ]
        names = [name for name, _ in heads]
        if any(names.count(name) > 1 for name in ("host", "origin", "authorization")):
            await PlainTextResponse("a header twice", 400)(scope, receive, marked)
            return
        refusal = self._guard.refusal(scope["method"], scope["path"], dict(heads))
        if refusal is not None:
            refused = PlainTextResponse(refusal.text, refusal.status)
            await refused(scope, receive, marked)
            return
        await self._app(scope, receive, marked)


class Page:
    """What the addresses answer, over one client."""

    def __init__(self, *, guard: Guard, client: AsyncClient, feed: Feed) -> None:
        self._guard = guard
        self._client = client
        self._feed = feed

    def app(self) -> ASGIApp:
        """For a server to run."""
        looks: dict[str, Callable[[Request], Awaitable[Response]]] = {
            "/api/events": self._events,
            "/api/picture": self._picture,
            "/api/status": self._status,
            "/api/waits": self._waits,
            "/api/held": self._held,
        }
        inner = Starlette(
            routes=[
                *(Route(path, partial(_file, *file)) for path, file in _FILES.items()),
                Route(SESSION, self._session, methods=["POST"]),
                *(Route(path, look) for path, look in looks.items()),
            ],
            exception_handlers={TransferQueueError: _failed},
        )
        return Guarded(inner, self._guard)

    async def _session(self, request: Request) -> Response:
        given = b""
        async for part in request.stream():
            given += part
            if len(given) > MAX_TOKEN_BYTES:
                return PlainTextResponse("too long", 413)
        cookie = self._guard.session(given.decode("utf-8", "replace"))
        if cookie is None:
            return PlainTextResponse("not the token", 403)
        return Response(status_code=204, headers={"Set-Cookie": cookie})

    async def _events(self, request: Request) -> Response:
        del request
        if self._feed.is_full:
            return PlainTextResponse("too many browsers look already", 503)
        return StreamingResponse(self._feed.watch(), media_type="text/event-stream")

    async def _picture(self, request: Request) -> Response:
        columns = _number(request, "columns", 512, most=MAX_COLUMNS)
        made = await self._feed.picture(request.query_params.get("partition", ""), columns)
        return Response(made, media_type="application/octet-stream")

    async def _status(self, request: Request) -> Response:
        del request
        return JSONResponse(await self._client.status())

    async def _waits(self, request: Request) -> Response:
        return JSONResponse(await self._client.waits(limit=_number(request, "limit", 50, 1000)))

    async def _held(self, request: Request) -> Response:
        partition = request.query_params.get("partition")
        return JSONResponse(await self._client.held(partition=partition))


def _number(request: Request, name: str, default: int, most: int) -> int:
    text = request.query_params.get(name, str(default))
    if not (text.isascii() and text.isdigit() and len(text) < 9 and 1 <= int(text) <= most):
        raise InvalidInput(f"{name} is a number from 1 to {most}")
    return int(text)


async def _file(name: str, media_type: str, request: Request) -> Response:
    del request
    return Response((ASSETS / name).read_bytes(), media_type=media_type)


async def _failed(request: Request, error: Exception) -> Response:
    del request
    status = 404 if isinstance(error, Missing) else 400 if isinstance(error, InvalidInput) else 503
    body: dict[str, Any] = {"error": type(error).__name__, "text": str(error)}
    return JSONResponse(body, status)
