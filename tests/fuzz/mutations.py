"""Messages that are nearly right, and bytes that are not messages. Decided by a seed alone."""

from __future__ import annotations

import copy
import random
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgpack

from transferqueue.wire.format import PREAMBLE, encode_message

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from transferqueue.wire.format import Message

Frames = list[bytes]

ODD_VALUES: list[Any] = [
    *(None, True, False, 0, -1, 1, 2, 255, 2**31, 2**48, 2**63 - 1, 2**63, 2**64 - 1, -(2**63)),
    *(0.0, -1.0, 1e308, float("nan"), float("inf"), float("-inf")),
    *("", "x", "\0", "é" * 300, "x" * 5000, b"", b"\xff" * 9),
    *([], [[]], [1, 2, 3], [None], ["a", 1], [[[[[[[[1]]]]]]]], {}, {"a": {"b": []}}),
    *([0, "<i8", [1]], [0, "<i8", [2**40]], [9, "<i8", [1]], [0, "|O", [1]], [-1, "<i8", [-1]]),
    *(["float32", [2], None, "tensor"], ["float32", [-1], 0, "tensor"], {"array": 0}),
]


class Mutator:
    """Makes the frames of one message after another out of those that were recorded."""

    def __init__(self, recorded: Sequence[Message], seed: int) -> None:
        self._recorded = recorded
        self._random = random.Random(seed)
        self._ways: list[Callable[[], tuple[str, Frames]]] = [
            self._other_values,
            self._other_values,
            self._other_bytes,
            self._other_frames,
            self._noise,
        ]

    def next(self) -> tuple[str, Frames]:
        """The operation that it was, or ``""``, and the frames to send."""
        return self._random.choice(self._ways)()

    def _pick(self) -> tuple[str, Message]:
        message = self._random.choice(self._recorded)
        request_id = self._random.getrandbits(63)  # one that was answered is answered again, only
        body = copy.deepcopy(message.body)
        return message.op, replace(message, request_id=request_id, body=body)

    def _other_values(self) -> tuple[str, Frames]:
        """A body in which some values, keys or sizes are others."""
        op, message = self._pick()
        body = message.body
        for _ in range(self._random.randint(1, 3)):
            self._change(body)
        _shorten(body, self._random.choice([0.0, 0.0, 0.0, 0.5]))
        header = [op, message.request_id, len(message.frames), body]
        return op, [_pack(header), *map(bytes, message.frames)]

    def _change(self, body: dict[str, Any]) -> None:
        places = list(_places(body))
        if not places:
            body["more"] = self._odd()
            return
        container, key = self._random.choice(places)
        what = self._random.random()
        if what < 0.7:
            container[key] = self._odd()
        elif what < 0.85:
            del container[key]
        elif isinstance(container, dict):
            container[str(self._odd())[:80]] = container.pop(key)
        else:
            container.append(container[key])

    def _odd(self) -> Any:
        return copy.deepcopy(self._random.choice(ODD_VALUES))

    def _other_bytes(self) -> tuple[str, Frames]:
        """A message in which some bytes are others, or cut off."""
        op, message = self._pick()
        frames = [bytes(frame) for frame in encode_message(message)]
        at = self._random.randrange(len(frames))
        frame = bytearray(frames[at])
        for _ in range(self._random.randint(1, 6)):
            if frame:
                frame[self._random.randrange(min(len(frame), 4096))] = self._random.randrange(256)
        if self._random.random() < 0.3:
            del frame[self._random.randint(0, len(frame)) :]
        frames[at] = bytes(frame)
        return op, frames

    def _other_frames(self) -> tuple[str, Frames]:
        """A message with frames too many, too few, swapped, or of other lengths."""
        op, message = self._pick()
        frames = [bytes(frame) for frame in encode_message(message)]
        way = self._random.randrange(5)
        if way == 0:
            frames.append(self._random.randbytes(self._random.randint(0, 300)))
        elif way == 1:
            frames.pop(self._random.randrange(len(frames)))
        elif way == 2:
            self._random.shuffle(frames)
        elif way == 3:
            frames = frames * 2
        else:
            frames = [frames[0], *(frame[: len(frame) // 2] for frame in frames[1:])]
        return op, frames or [b""]

    def _noise(self) -> tuple[str, Frames]:
        sizes = [self._random.choice([0, 1, 4, 16, 300, 5000]) for _ in range(3)]
        frames = [self._random.randbytes(size) for size in sizes[: self._random.randint(1, 3)]]
        if self._random.random() < 0.5:
            frames[0] = PREAMBLE + frames[0]
        return "", frames


def _shorten(body: dict[str, Any], timeout_s: float) -> None:
    """Whoever asks for an hour is given it, and this test would wait for the end of it."""
    wanted = body.get("timeout_s")
    if isinstance(wanted, int | float) and wanted > timeout_s:
        body["timeout_s"] = timeout_s


def _pack(header: list[Any]) -> bytes:
    packed: bytes = msgpack.packb(header, unicode_errors="surrogatepass")
    return PREAMBLE + packed


def _places(value: Any) -> Any:
    """Every place in a tree of lists and maps, as container and key."""
    keys = value.keys() if isinstance(value, dict) else range(len(value))
    for key in list(keys):
        yield value, key
        if isinstance(value[key], dict | list):
            yield from _places(value[key])
