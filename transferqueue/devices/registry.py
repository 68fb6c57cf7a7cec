"""Finding a device by name: ``"cuda:0"``, ``"cuda:GPU-…"``, ``"host"``, ``"fake:FOLDER:0"``."""

from __future__ import annotations

from transferqueue.devices.base import Device
from transferqueue.entry_points import PluginGroup, imported
from transferqueue.errors import DeviceMissing, near_names

_DEVICES = PluginGroup(
    group="transferqueue.devices",
    noun="device",
    built_in={
        "cuda": "transferqueue.devices.cuda:open_cuda",
        "fake": "transferqueue.devices.fake_gpu:open_fake",
        "host": "transferqueue.devices.host:open_host",
    },
)


def find_device(name: str) -> Device:
    """A device of this process, to be closed by the caller. `DeviceMissing`.

    What follows the first colon is the kind's own: an ordinal, which counts in this process alone,
    or what the device says of itself in ``name``, which is good on the whole host.
    """
    kind, _, which = name.partition(":")
    installed = _DEVICES.installed()
    if kind not in installed:
        near = near_names(kind, installed)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise DeviceMissing(name, f"the kinds are {', '.join(sorted(installed))}{hint}")
    try:
        opener = imported(installed[kind])
    except (ImportError, AttributeError) as error:
        raise DeviceMissing(name, f"{installed[kind]} cannot be used: {error}") from error
    found = opener(which)
    if not isinstance(found, Device):
        raise DeviceMissing(name, f"{installed[kind]} gave no Device")
    return found


def is_kind(name: str) -> bool:
    """Whether it begins as names of devices do that can be found here."""
    return name.partition(":")[0] in _DEVICES.installed()
