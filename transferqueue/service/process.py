"""The program of a coordinator or shard process: ``python -m transferqueue.service.process``.

Reads its settings from stdin, as `service.child` writes them, and ends when stdin closes. With
``outlives_parent`` it leaves what it holds for a successor when nobody told it to end. Imports
neither torch nor ray, so that it runs in a fraction of a second.
"""

from __future__ import annotations

import json
import logging
import os
import resource
import signal
import sys
from typing import TYPE_CHECKING, Any

from transferqueue.checkpoint.restore_plan import SavedPlane
from transferqueue.errors import TransferQueueError
from transferqueue.homes import Homes
from transferqueue.net.keys import ServiceKeys
from transferqueue.service.child import NOT_AGAIN, STOP
from transferqueue.service.hosted import HostedShards
from transferqueue.wire.format import encode_error

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from transferqueue.service.runnable import Runnable
    from transferqueue.tracing.base import RequestSpans

    OnHosted = Callable[[Sequence[Mapping[str, Any]]], None]
    ShouldStop = Callable[[], bool]

MAX_FILES = 1 << 20


def _never() -> bool:
    return False


def make_server(
    settings: dict[str, Any],
    on_hosted: OnHosted | None = None,
    should_stop: ShouldStop = _never,
) -> Runnable:
    """The server that the settings ask for. ``on_hosted``, ``should_stop``: see `ShardServer`."""
    if "import_from" in settings:
        sys.path += [path for path in settings["import_from"] if path not in sys.path]
    spans = _request_spans(settings) if settings.get("tracing") else None
    server = _made(settings, on_hosted, should_stop)
    if spans is not None:
        server.trace(spans)
    return server


def _request_spans(settings: dict[str, Any]) -> RequestSpans:
    from transferqueue.tracing.loading import request_spans

    is_shard = settings["role"] == "shard"
    return request_spans(
        settings["tracing"], f"shard-{settings['slot']}" if is_shard else "coordinator"
    )


def _made(
    settings: dict[str, Any], on_hosted: OnHosted | None, should_stop: ShouldStop
) -> Runnable:
    if settings["role"] == "coordinator":
        return _coordinator(settings)
    from transferqueue.shard.server import ShardServer
    from transferqueue.shard.settings import ShardSettings

    return ShardServer(
        ShardSettings.from_plain(settings), on_hosted=on_hosted, should_stop=should_stop
    )


def _coordinator(settings: dict[str, Any]) -> Runnable:
    from transferqueue.coordinator.samplers.registry import load_samplers
    from transferqueue.coordinator.server import CoordinatorServer

    restore = settings.get("restore")
    return CoordinatorServer(
        service_id=settings.get("saved_service_id", settings["service_id"]),
        endpoints=settings["endpoints"],
        keys=ServiceKeys.from_plain(settings["keys"]) if settings.get("keys") else None,
        num_shards=settings["num_shards"],
        journal_path=settings.get("journal_path"),
        epoch=settings.get("epoch", 0),
        samplers=load_samplers(settings.get("samplers", ())),
        life=settings.get("life", 0),
        homes=Homes.from_plain(settings.get("homes")),
        saved=None if restore is None else SavedPlane.from_plain(restore),
        replicas=settings.get("replicas", 1),
        takeover_s=settings.get("takeover_s"),
    )


def _make_hosted(settings: dict[str, Any], should_stop: ShouldStop) -> Runnable:
    return make_server(settings, should_stop=should_stop)


class Parent:
    """What comes over stdin, or by signal."""

    def __init__(self, server: Runnable) -> None:
        self._server = server
        self.said_stop = False
        """Whether this process was told to end; else it has lost its parent, or failed."""

    def hear(self) -> None:
        self.said_stop = STOP.strip() in os.read(sys.stdin.fileno(), 1 << 10)
        self._server.stop()

    def end(self) -> None:
        self.said_stop = True
        self._server.stop()


def say(message: dict[str, Any]) -> None:
    """One line to the parent."""
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def open_as_many_files_as_allowed() -> None:
    """Every connection is a descriptor, and a shell's usual limit is 1,024 of them: whoever
    connects and says nothing would keep the clients of a large job out until it is cut off."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_FILES)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def main() -> int:
    """Serve until stdin closes or SIGTERM comes. Exit status 1 when the start failed. SIGUSR1: a
    shard takes no new samples any more, because its node is to go."""
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # until there is a shard to hear it
    open_as_many_files_as_allowed()
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s %(message)s")
    settings = json.loads(sys.stdin.buffer.readline())
    hosted = HostedShards(settings, _make_hosted)
    try:
        server = make_server(settings, hosted.hear)
    except TransferQueueError as error:
        say({"error": encode_error(error)})
        return 1
    parent = Parent(server)
    signal.signal(signal.SIGTERM, lambda *_: parent.end())
    signal.signal(signal.SIGUSR1, lambda *_: server.drain())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    server.watch(sys.stdin.fileno(), parent.hear)
    try:
        say({"endpoints": server.endpoints, "pid": os.getpid()})
        server.run()
    finally:
        is_orphan = not parent.said_stop and server.failure is None
        keep = is_orphan and bool(settings.get("outlives_parent"))
        hosted.close(keep=keep)
        server.close(keep=keep)
    return 0 if server.failure is None else NOT_AGAIN


if __name__ == "__main__":
    sys.exit(main())
