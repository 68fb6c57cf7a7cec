"""Work that waits for a fake GPU, seen at every moment between two of its steps."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, TypeVar

from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import pytest

    from transferqueue.devices.fake_gpu import FakeStream

T = TypeVar("T")


def returned_by(method: str, of: type[T], monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """All that a method returns from now on, whoever calls it, as it grows."""
    found: list[Any] = []
    call = getattr(of, method)

    def noted(one: T, *arguments: Any) -> Any:
        found.append(call(one, *arguments))
        return found[-1]

    monkeypatch.setattr(of, method, noted)
    return found


class Work:
    """On a thread of its own. Its failure is raised by `result`."""

    def __init__(self, do: Callable[[], object]) -> None:
        self._do, self._failure = do, [BaseException("it has not ended")]
        self._result: object = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._result = self._do()
            self._failure.clear()
        except BaseException as error:  # noqa: BLE001 - raised where it is looked at
            self._failure[:] = [error]

    @property
    def is_over(self) -> bool:
        return not self._thread.is_alive()

    def result(self) -> object:
        """When it has ended."""
        self._thread.join(30.0)
        if self._failure:
            raise self._failure.pop()
        return self._result

    def step_by_step(self, streams: Sequence[FakeStream]) -> Iterator[None]:
        """Before each step of the device, which is made when the next is asked for; until it has
        nothing left to do and the work is over."""
        while True:
            wait_until(lambda: self.is_over or any(stream.num_left for stream in streams))
            if not any(stream.num_left for stream in list(streams)):
                return
            yield
            stepped = [stream.step() for stream in list(streams)]
            assert any(stepped), "no stream goes on"
