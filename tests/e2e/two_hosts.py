"""Two network namespaces with a slow and lossy link between them, as two hosts would have.

The kernel's own emulator (``netem``) makes the link where it is there. Where it is not, this file
does: run as a program, it carries packets between two TUN devices, late, and some not at all.
"""

from __future__ import annotations

import fcntl
import os
import random
import select
import shutil
import struct
import subprocess
import sys
import time
from collections import deque
from pathlib import Path

NEAR, FAR = "10.213.77.1", "10.213.77.2"

_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
_MTU = 1500


def reason_to_skip() -> str | None:
    """Why there can be no namespaces here, if so."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if missing:
        return f"not installed: {', '.join(missing)} (package iproute2)"
    name = f"tq-probe-{os.getpid()}"
    if subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False).returncode:
        return "this kernel or container allows no network namespaces"
    has_netem = _has_netem(name)
    _run("ip", "netns", "del", name)
    if not has_netem and not Path("/dev/net/tun").exists():
        return "neither netem nor /dev/net/tun is there"
    return None


class TwoHosts:
    """Namespaces ``near`` and ``far``. ``delay_ms``: each way. ``loss``: of packets, 0 to 1."""

    def __init__(self, *, delay_ms: float, loss: float = 0.0, rate_mbit: float = 1000.0) -> None:
        self.near, self.far = f"tq-near-{os.getpid()}", f"tq-far-{os.getpid()}"
        self._relay: subprocess.Popen[bytes] | None = None
        self._link = (delay_ms, loss, rate_mbit)

    def __enter__(self) -> TwoHosts:
        try:
            self._open()
        except BaseException:
            self.close()
            raise
        return self

    def _open(self) -> None:
        for name in (self.near, self.far):
            _run("ip", "netns", "add", name)
            _run("ip", "-n", name, "link", "set", "lo", "up")
        if _has_netem(self.near):
            self._connect_by_netem()
        else:
            self._connect_by_relay()
        for name, address in ((self.near, NEAR), (self.far, FAR)):
            _run("ip", "-n", name, "addr", "add", f"{address}/24", "dev", "link0")
        self.set_link(up=True)

    def _connect_by_netem(self) -> None:
        delay_ms, loss, rate_mbit = self._link
        _run(
            *("ip", "link", "add", "link0", "netns", self.near, "type", "veth"),
            *("peer", "name", "link0", "netns", self.far),
        )
        for name in (self.near, self.far):
            _run("ip", "netns", "exec", name, "ethtool", "-K", "link0", "gso", "off", optional=True)
            _run(
                *("tc", "-n", name, "qdisc", "add", "dev", "link0", "root", "netem", "limit"),
                *("10000", "delay", f"{delay_ms}ms", "loss", f"{100 * loss}%"),
                *("rate", f"{rate_mbit}mbit"),
            )

    def _connect_by_relay(self) -> None:
        self._relay = subprocess.Popen(
            [sys.executable, __file__, self.near, self.far, *map(str, self._link)],
            stdout=subprocess.PIPE,
            stdin=subprocess.PIPE,
        )
        assert self._relay.stdout is not None
        assert self._relay.stdout.readline() == b"ready\n"

    def set_link(self, *, up: bool) -> None:
        """Cut the link, or mend it."""
        for name in (self.near, self.far):
            _run("ip", "-n", name, "link", "set", "link0", "up" if up else "down")

    def command(self, host: str, *arguments: str) -> list[str]:
        """A command line that runs on one of the hosts."""
        return ["ip", "netns", "exec", host, *arguments]

    def close(self) -> None:
        if self._relay is not None:
            self._relay.communicate()  # ends when its stdin does
            self._relay = None
        for name in (self.near, self.far):
            _run("ip", "netns", "del", name, optional=True)

    def __exit__(self, *_: object) -> None:
        self.close()


def _has_netem(namespace: str) -> bool:
    added = _run(
        *("tc", "-n", namespace, "qdisc", "add", "dev", "lo", "root", "netem", "delay", "1ms"),
        optional=True,
    )
    if added:
        _run("tc", "-n", namespace, "qdisc", "del", "dev", "lo", "root")
    return added


def _run(*command: str, optional: bool = False) -> bool:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        if optional:
            return False
        raise
    if done.returncode and not optional:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.returncode == 0


# -- the relay ------------------------------------------------------------------------------------


class _Way:
    """Packets from one device to the other."""

    def __init__(self, source: int, sink: int, delay_s: float, loss: float, rate: float) -> None:
        self.source = source
        self._sink = sink
        self._delay_s = delay_s
        self._loss = loss
        self._bytes_per_s = rate
        self._free_s = 0.0
        self._queue: deque[tuple[float, bytes]] = deque()

    def take(self, now_s: float, dice: random.Random) -> None:
        try:
            packet = os.read(self.source, _MTU + 100)
        except OSError:
            return  # the link is down
        if dice.random() < self._loss or len(self._queue) > 2000:
            return
        self._free_s = max(self._free_s, now_s) + len(packet) / self._bytes_per_s
        self._queue.append((self._free_s + self._delay_s, packet))

    def give(self, now_s: float) -> float:
        """Deliver what is due; when the next packet is."""
        while self._queue and self._queue[0][0] <= now_s:
            packet = self._queue.popleft()[1]
            try:
                os.write(self._sink, packet)
            except OSError:
                continue  # the link is down
        return self._queue[0][0] if self._queue else now_s + 1.0


def _open_tun(namespace: str, name: str) -> int:
    fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(fd, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _IFF_TUN | _IFF_NO_PI))
    _run("ip", "link", "set", name, "netns", namespace)
    _run("ip", "-n", namespace, "link", "set", name, "name", "link0")
    return fd


def _relay(near: str, far: str, delay_ms: float, loss: float, rate_mbit: float) -> None:
    first = _open_tun(near, f"tqn{os.getpid()}")
    second = _open_tun(far, f"tqf{os.getpid()}")
    shape = (delay_ms / 1000, loss, rate_mbit * 1e6 / 8)
    ways = {first: _Way(first, second, *shape), second: _Way(second, first, *shape)}
    dice = random.Random(0)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    poll = select.poll()
    for fd in (first, second, 0):
        poll.register(fd, select.POLLIN)
    while True:
        now_s = time.monotonic()
        due_s = min(way.give(now_s) for way in ways.values())
        for fd, event in poll.poll(max(0.0, due_s - time.monotonic()) * 1000):
            if fd == 0:
                return
            if event & select.POLLERR:
                time.sleep(0.005)  # the link is down
            else:
                ways[fd].take(time.monotonic(), dice)


if __name__ == "__main__":
    _relay(sys.argv[1], sys.argv[2], *map(float, sys.argv[3:6]))
