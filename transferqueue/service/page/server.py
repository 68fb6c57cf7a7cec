"""The page on a thread of this process."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

from transferqueue.client.connecting import connect_async
from transferqueue.closing import Closing
from transferqueue.errors import ConfigError, PackageMissing, TransferQueueError
from transferqueue.service.page.app import Page
from transferqueue.service.page.feed import Feed
from transferqueue.service.page.guard import Guard

try:
    import uvicorn
except ModuleNotFoundError as _error:
    raise PackageMissing("uvicorn", "web") from _error

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable

    from transferqueue.net.keys import ClientKeys

GOODBYE_S = 2


class PageServer(Closing):
    """Serves the page of one service until it is closed."""

    def __init__(
        self,
        address: str | None,
        *,
        keys: ClientKeys | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
        names: Iterable[str] = (),
        token: str | None = None,
        interval_s: float = 1.0,
        timeout_s: float = 5.0,
    ) -> None:
        """``address`` and ``keys``: as `connect` takes them. ``port`` 0: any that is free.
        ``token``: what a browser must show, needed where others reach ``host``. ConfigError,
        and what `connect` raises."""
        self._socket = _listen(host, port)
        self.port = int(self._socket.getsockname()[1])
        self.host = host

        try:
            self._guard = Guard(host=host, port=self.port, names=names, token=token)
        except BaseException:
            self._socket.close()
            raise
        self._connect = partial(connect_async, address, keys=keys, timeout_s=timeout_s)
        self._interval_s = interval_s
        self._loop: asyncio.AbstractEventLoop | None = None
        self._goodbye: Callable[[], Coroutine[Any, Any, None]] | None = None
        self._failure: TransferQueueError | None = None
        self._is_up = threading.Event()
        self._thread = threading.Thread(target=self._run, name="transferqueue-page", daemon=True)
        self._thread.start()
        self._is_up.wait()  # no longer than connecting takes
        self._raise_failure()

    @property
    def address(self) -> str:
        """For a browser."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}/"

    def _raise_failure(self) -> None:
        if self._failure is not None:
            self.close()
            raise self._failure

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except TransferQueueError as error:
            self._failure = error
        finally:
            self._is_up.set()

    async def _serve(self) -> None:
        client = await self._connect()
        feed = Feed(client, interval_s=self._interval_s)
        app = Page(guard=self._guard, client=client, feed=feed).app()
        server = uvicorn.Server(
            uvicorn.Config(
                app,
                access_log=False,  # nothing of a request is written down
                log_level="warning",
                server_header=False,
                lifespan="off",
                ws="none",
                timeout_graceful_shutdown=GOODBYE_S,
                limit_concurrency=256,
            )
        )

        async def goodbye() -> None:
            await feed.end()
            server.should_exit = True

        self._loop, self._goodbye = asyncio.get_running_loop(), goodbye
        self._is_up.set()
        try:
            await server.serve(sockets=[self._socket])
        finally:
            await feed.end()
            await client.close()

    def close(self) -> None:
        """Let the browsers go, and end the thread. Idempotent."""
        if self._loop is not None and self._goodbye is not None and self._thread.is_alive():
            with contextlib.suppress(RuntimeError):  # it ended by itself meanwhile
                asyncio.run_coroutine_threadsafe(self._goodbye(), self._loop)
        self._thread.join()
        self._socket.close()


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
    except OSError as error:
        listening.close()
        raise ConfigError(f"cannot serve a page on {host}:{port}: {error}") from None
    listening.listen(128)
    return listening
