"""One rank as a child process, and the loop that runs in it."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

from transferqueue.errors import TransferQueueError
from workers import process_wire
from workers.errors import WorkerDied
from workers.failing import Step, wrapping
from workers.forking import start_child
from workers.host import HostCall, HostSetup, WorkerHost
from workers.local_thread import CoroutineThread

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from workers.process_wire import Parcel

END_TIMEOUT_S = 5.0
FAREWELL_S = 1.0

MAKING = "__init__"
UNREADY = (
    "; what it printed says why. A child process imports the program that started it, so a script "
    'makes its groups under `if __name__ == "__main__":`'
)

_Head = tuple[int, str, str]
"""Number of the call, a method of `WorkerHost`, and what messages call it."""


class ProcessRank:
    """The parent's end. Calls go out in order; an answer may overtake that of a coroutine."""

    def __init__(self, setup: HostSetup) -> None:
        self._rank = setup.rank
        self._process, self._pipe = start_child(
            partial(serve, rank=setup.rank), f"worker-{setup.rank}"
        )
        self._numbers = itertools.count(1)
        self._waiting: dict[int, tuple[str, Future[Any]]] = {}
        self._lock = threading.Lock()
        self._sending = threading.Lock()
        self._death: str | None = None
        name = f"worker-{setup.rank}"
        self._sender = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"{name}-send")
        self._receiver = threading.Thread(target=self._receive, name=f"{name}-receive", daemon=True)
        self._receiver.start()
        self.ready: Future[Any] = self._ask(MAKING, "make", (setup,))
        """Done when the workers are made."""

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def submit(self, call: HostCall) -> Future[Any]:
        return self._ask(call.label, "run", (call,))

    def query(self, method: str, *args: Any) -> Future[Any]:
        """Ask the host."""
        return self._ask(method, method, args)

    def _ask(self, label: str, method: str, args: tuple[Any, ...]) -> Future[Any]:
        answer: Future[Any] = Future()
        self._sender.submit(self._send, label, method, args, answer).add_done_callback(
            lambda sent: _fail_unsent(sent, answer)
        )
        return answer

    def _send(self, label: str, method: str, args: Any, answer: Future[Any]) -> None:
        """What arguments wait for is waited for here, in the order of the calls."""
        with wrapping(label, self._rank):
            args = tuple(_resolved_call(arg) for arg in args)
            number = next(self._numbers)
            with self._lock:
                if self._death is not None:
                    raise WorkerDied(label, self._rank, self._death)
                self._waiting[number] = (label, answer)
            head: _Head = (number, method, label)
            try:
                with self._sending:
                    process_wire.send(self._pipe, head, args)
            except OSError:
                pass  # it has died; the receiver notices and tells all who wait
            except BaseException:
                with self._lock:
                    self._waiting.pop(number, None)
                raise

    def _receive(self) -> None:
        with contextlib.suppress(EOFError, OSError):
            while True:
                (number, has_failed), parcel = process_wire.receive(self._pipe)
                with self._lock:
                    label, answer = self._waiting.pop(number)
                self._give(answer, label, parcel, has_failed=has_failed)
        self._died()

    def _give(self, answer: Future[Any], label: str, parcel: Parcel, *, has_failed: bool) -> None:
        try:
            with wrapping(label, self._rank, Step.RETURNING):
                value = parcel.open()
        except TransferQueueError as error:
            value, has_failed = error, True
        if has_failed:
            answer.set_exception(value)
        else:
            answer.set_result(value)

    def _died(self) -> None:
        self._process.join(END_TIMEOUT_S)
        reason = _how_it_ended(self._process.pid, self._process.exitcode)
        with self._lock:
            self._death = reason
            waiting = list(self._waiting.values())
            self._waiting.clear()
        for label, answer in waiting:
            why = reason + UNREADY if label == MAKING else reason
            answer.set_exception(WorkerDied(label, self._rank, why))

    def let_go(self) -> None:
        """Begin to end, without waiting."""
        self._sender.shutdown(wait=False, cancel_futures=True)
        if not self._sending.acquire(timeout=FAREWELL_S):
            return  # in the middle of a call that it does not take: it will be killed
        try:
            with contextlib.suppress(OSError):
                process_wire.send(self._pipe, None, None)
        finally:
            self._sending.release()

    def join(self) -> None:
        """End; kill the process when it does not."""
        self._process.join(END_TIMEOUT_S)
        if self._process.is_alive():
            self._process.kill()
        self._receiver.join()
        self._sender.shutdown(wait=True)
        self._process.join()
        self._pipe.close()
        self._process.close()


def _resolved_call(value: Any) -> Any:
    return value.resolved() if isinstance(value, HostCall) else value


def _fail_unsent(sent: Future[Any], answer: Future[Any]) -> None:
    if sent.cancelled():
        answer.cancel()
    elif (error := sent.exception()) is not None:
        answer.set_exception(error)


def _how_it_ended(pid: int | None, exit_code: int | None) -> str:
    if exit_code is None:
        return f"process {pid} closed its pipe and is stuck"
    if exit_code < 0:
        return f"process {pid} was killed by {signal.Signals(-exit_code).name}"
    return f"process {pid} ended with exit status {exit_code}"


def serve(pipe: Connection, *, rank: int) -> None:
    """The program of the child: run what comes, until the parent says so or is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends this
    _Child(pipe, rank).serve()


class _Child:
    def __init__(self, pipe: Connection, rank: int) -> None:
        self._pipe = pipe
        self._rank = rank
        self._sending = threading.Lock()
        self._coroutines = CoroutineThread("coroutines")
        self._host: WorkerHost | None = None

    def serve(self) -> None:
        with contextlib.suppress(EOFError, OSError):
            while True:
                head, parcel = process_wire.receive(self._pipe)
                if head is None:
                    break
                self._answer(head, parcel)
        self._coroutines.close()
        if self._host is not None:
            self._host.close()

    def _answer(self, head: _Head, parcel: Parcel) -> None:
        number, method, label = head
        try:
            with wrapping(label, self._rank, Step.ARRIVING):
                args = parcel.open()
            if method == "run" and self._host is not None and self._host.is_async(args[0]):
                self._coroutines.start(self._answer_later(number, args[0]))
                return
            value = getattr(self if method == "make" else self._host, method)(*args)
        except TransferQueueError as error:
            self._send(number, error, has_failed=True)
        else:
            self._reply(number, label, value)

    async def _answer_later(self, number: int, call: HostCall) -> None:
        assert self._host is not None
        try:
            value = await self._host.run_async(call)
        except TransferQueueError as error:
            self._send(number, error, has_failed=True)
        else:
            self._reply(number, call.label, value)

    def make(self, setup: HostSetup) -> None:
        os.environ.update(
            RANK=str(setup.rank),
            WORLD_SIZE=str(setup.world_size),
            LOCAL_RANK=str(setup.local_rank),
            MASTER_ADDR=setup.master_address,
            MASTER_PORT=str(setup.master_port),
        )
        self._host = WorkerHost(setup)

    def _reply(self, number: int, label: str, value: Any) -> None:
        """An answer that cannot be sent is a failure of the method that made it."""
        try:
            with wrapping(label, self._rank):
                self._send(number, value, has_failed=False)
        except TransferQueueError as error:
            self._send(number, error, has_failed=True)

    def _send(self, number: int, value: Any, *, has_failed: bool) -> None:
        with self._sending:
            process_wire.send(self._pipe, (number, has_failed), value)
