"""A field that is read on to a device."""

from __future__ import annotations

from typing import Any


class FieldOn(str):
    """The name of a field, and the device that its tensor is to land on. Made by `on`."""

    __slots__ = ("device",)

    device: str

    def __new__(cls, name: str, device: str) -> FieldOn:
        made = super().__new__(cls, name)
        made.device = device
        return made

    def __getnewargs__(self) -> Any:
        return str(self), self.device

    def __repr__(self) -> str:
        return f"on({self.device!r}, {str(self)!r})"


def on(device: object, field: str) -> FieldOn:
    """A field of ``reads`` whose tensor is fetched straight to a device, by the best way there is:
    ``reads=["input_ids", tq.on("cuda", "values")]``.

    ``device``: as `Client.get` takes it; ``"cuda"`` is the current one of the process that reads.
    """
    if not isinstance(field, str):
        raise TypeError(f"on() takes a device and the name of a field, got {field!r:.80}")
    return FieldOn(field, str(device))
