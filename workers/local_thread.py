"""One rank as a thread of this process."""

from __future__ import annotations

import asyncio
import copy
import os
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from tensordict import TensorDictBase

from transferqueue.view import DataProto
from workers.failing import wrapping
from workers.host import WorkerHost
from workers.pending import Pending

if TYPE_CHECKING:
    from workers.host import HostCall, HostSetup


class CoroutineThread:
    """An event loop in a thread, made at the first coroutine. `close` cancels what still runs."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def start(self, coroutine: Any) -> Future[Any]:
        """Run it beside those that run already."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(
                target=self._loop.run_forever, name=self._name, daemon=True
            )
            self._thread.start()
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def close(self) -> None:
        if self._loop is None or self._thread is None:
            return
        asyncio.run_coroutine_threadsafe(_cancel_others(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._loop = None


async def _cancel_others() -> None:
    loop = asyncio.get_running_loop()
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    await loop.shutdown_default_executor()


class ThreadRank:
    """Runs calls one after another in a thread; coroutines start in turn and then overlap."""

    def __init__(self, setup: HostSetup) -> None:
        name = f"worker-{setup.rank}"
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)
        self._coroutines = CoroutineThread(f"{name}-coroutines")
        self._host: WorkerHost | None = None
        self.ready: Future[Any] = self._thread.submit(self._make, setup)
        """Done when the workers are made."""

    def _make(self, setup: HostSetup) -> None:
        self._host = WorkerHost(setup)

    @property
    def pid(self) -> int:
        return os.getpid()

    def submit(self, call: HostCall) -> Future[Any]:
        answer: Future[Any] = Future()
        call = call.mapped(_copied)
        self._thread.submit(self._begin, call).add_done_callback(
            lambda begun: _follow(begun, answer)
        )
        return answer

    def query(self, method: str, *args: Any) -> Future[Any]:
        """Ask the host."""
        return self._thread.submit(lambda: getattr(self._made(), method)(*args))

    def _begin(self, call: HostCall) -> Any:
        """The answer, or the future of a coroutine's."""
        host = self._made()
        with wrapping(call.label, host.rank):
            call = call.mapped(_arrived)
        if host.is_async(call):
            return self._coroutines.start(host.run_async(call))
        return host.run(call)

    def _made(self) -> WorkerHost:
        assert self._host is not None, "the group raises when a rank could not be made"
        return self._host

    def let_go(self) -> None:
        """Begin to end: what has not started never will."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def join(self) -> None:
        """End. Waits for the method that runs: a thread cannot be cut off."""
        self._thread.shutdown(wait=True)
        self._coroutines.close()
        if self._host is not None:
            self._host.close()


def _copied(value: Any) -> Any:
    """A batch copied: threads share memory, and a worker may edit what it is given."""
    if isinstance(value, DataProto):
        return copy.deepcopy(value)
    return value.clone() if isinstance(value, TensorDictBase) else value


def _arrived(value: Any) -> Any:
    """What was to come, of which others may get the same."""
    return _copied(value.resolve()) if isinstance(value, Pending) else value


def _follow(source: Future[Any], target: Future[Any]) -> None:
    """Give ``target`` what ``source`` has, which may be another future to follow."""
    if source.cancelled():
        target.cancel()
        return
    error = source.exception()
    if error is not None:
        target.set_exception(error)
    elif isinstance(source.result(), Future):
        source.result().add_done_callback(lambda inner: _follow(inner, target))
    else:
        target.set_result(source.result())
