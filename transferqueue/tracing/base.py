"""What clients and servers know of spans. Nothing of OpenTelemetry is imported here.

A client that traces sends with each request, in its body under ``trace``, the W3C ``traceparent``
and ``tracestate`` of the span that it was made in, as two strings of at most `MAX_CHARS` together.
A server that traces opens a span below that one, from when the request came until it was answered,
waiting included. Who does not trace passes it over; a server without a trace in the request, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

MAX_CHARS = 512
"""Of both strings. Vendors fill ``tracestate`` up to as much; a longer one is left out."""


class Traced(Protocol):
    """A call that is to be sent."""

    def with_more(self, key: str, value: Any) -> Self:
        """The same, with one more value in its body."""
        ...


TracedT = TypeVar("TracedT", bound=Traced)


class CallSpans(Protocol):
    """A client's."""

    def of(self, name: str, **attributes: Any) -> AbstractContextManager[None]:
        """A span that is the current one in the block. An error that leaves it is noted."""
        ...

    def carried(self, calls: Sequence[TracedT]) -> list[TracedT]:
        """The calls, with the current span for their servers."""
        ...


class RequestSpans(Protocol):
    """A server's. Called by its one thread."""

    def begin(self, key: tuple[bytes, int], op: str, trace: object) -> None:
        """A request came. ``trace``: what its body has of a trace, which anybody may have made
        up."""
        ...

    def end(self, key: tuple[bytes, int], error: str = "") -> None:
        """It was answered; ``error``: the class of the error that it was answered with."""
        ...

    def close(self) -> None:
        """Nothing more comes; send off what there is. Idempotent."""
        ...


def checked_trace(trace: object) -> tuple[str, str] | None:
    """``traceparent`` and ``tracestate`` of a request; ``None`` for none, or what is none."""
    if not isinstance(trace, list | tuple) or len(trace) != 2:
        return None
    parent, state = trace
    if type(parent) is not str or type(state) is not str or len(parent) + len(state) > MAX_CHARS:
        return None
    return parent, state
