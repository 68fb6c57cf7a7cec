"""Eight clients at work while processes are killed and stopped, and the network is cut."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

import transferqueue as tq
from tests.chaos.record import FLOW, KEPT, Found, Ledger, broken_promises, read_records
from tests.chaos.rows import FIELDS, what_is_torn
from tests.chaos.worker import LEASE_S, ROWS_PER_WORKER, TASK
from tests.e2e.two_hosts import NEAR, TwoHosts, reason_to_skip
from tests.recovery.test_replicas import arena_files, is_complete
from tests.waiting import wait_until
from transferqueue.errors import NotReady, TransferQueueError
from transferqueue.net.keys import ClientKeys

if TYPE_CHECKING:
    from collections.abc import Callable

REPOSITORY = Path(__file__).resolve().parents[2]
BUDGET_BYTES = 256 << 20
SPILLING_BUDGET_BYTES, SPILL_BYTES = 6 << 20, 512 << 20
"""Where most of what is kept goes to a disk."""

NUM_WORKERS = 8
START_S = 120.0
DELAY_MS, LOSS = 2.0, 0.005

FEW_DESCRIPTORS = 12
"""More than at the start a process may have open: this client's connections, segments of memory and
of a disk."""


@dataclass(kw_only=True)
class Outcome:
    """What a soak found."""

    broken: list[str]
    ledger: Ledger
    done: Counter[str]
    """What was done to them."""
    num_restarts: int
    failures: list[str]
    """Processes of the service that could not be started again."""
    used_bytes: int
    """Once everything was cleared."""
    leases: int
    puts_under_way: int
    descriptors: int
    """Open in processes of the service, above what there were before the first worker came."""
    had_two_hosts: bool
    num_spilled: int
    """Slabs on the disk, and those that went there in the last lives of the shards."""


class ServiceProcess:
    """`service_program`, on this host or in a namespace."""

    def __init__(self, command: list[str]) -> None:
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=REPOSITORY, env=_env()
        )
        self.state = self._hear()

    def _hear(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the service ended"
        state: dict[str, Any] = json.loads(line)
        return state

    def send(self, number: int, *names: str) -> dict[str, Any]:
        """A signal to some processes of the service; its state then."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"signal": number, "names": names}).encode() + b"\n")
        self._process.stdin.flush()
        self.state = self._hear()
        return self.state

    def close(self) -> None:
        self._process.communicate()


class Workers:
    """Those who use the service. One that was killed has a successor, with a record of its own."""

    def __init__(self, folder: Path, commands: list[Callable[[str], list[str]]]) -> None:
        self._folder = folder
        self._commands = commands
        self._count = 0
        self._numbers: dict[int, int] = {}
        """Of the one at each place."""
        self.processes = [self._start(place) for place in range(len(commands))]

    def _start(self, place: int) -> subprocess.Popen[bytes]:
        self._count += 1
        earlier, self._numbers[place] = self._numbers.get(place, -1), self._count
        record = str(self._folder / f"{self._count:04d}.jsonl")
        firsts = [str(number * ROWS_PER_WORKER) for number in (self._count, earlier)]
        command = [*self._commands[place](record), *firsts]
        with open(record.removesuffix(".jsonl") + ".log", "wb") as log:
            return subprocess.Popen(command, cwd=REPOSITORY, env=_env(), stderr=log)

    def wait_begun(self) -> None:
        """Each has connected: eight Pythons with torch, on two cores, and a busy machine has other
        things to do."""
        wait_until(lambda: len(self.records()) >= len(self.processes), timeout_s=START_S)

    def kill(self, place: int) -> None:
        """At any moment of what it does; and another one takes its place."""
        self.processes[place].kill()
        self.processes[place].wait()
        self.processes[place] = self._start(place)

    def refuse_ended(self) -> None:
        """No worker ends by itself."""
        ended = [process.args for process in self.processes if process.poll() is not None]
        assert not ended, f"workers ended: {ended}"

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()

    def records(self) -> list[Path]:
        return sorted(self._folder.glob("*.jsonl"))


class Trouble:
    """What happens to them, as a seed has it."""

    def __init__(
        self,
        service: ServiceProcess,
        workers: Workers,
        hosts: TwoHosts | None,
        seed: int,
        copies: tq.Client | None,
    ) -> None:
        """``copies``: of a service that keeps two of each row."""
        self._copies = copies
        self._only_copy: str | None = None
        """The shard that has all rows, since the other lost its memory."""
        self._service = service
        self._workers = workers
        self._hosts = hosts
        self._dice = random.Random(seed)
        self.done: Counter[str] = Counter()
        self._kinds: list[Callable[[], None]] = [
            self.kill_a_shard,
            self.kill_the_coordinator,
            self.kill_all,
            self.kill_a_worker,
            self.kill_a_worker,
            self.stop_a_shard,
            self.stop_a_worker,
            *([self.cut_the_link] if hosts else []),
            *([self.lose_a_shard, self.lose_a_shard] if copies else []),
        ]

    def make(self) -> None:
        kind = self._dice.choice(self._kinds)
        kind()
        self.done[kind.__name__.replace("_", " ")] += 1

    def pause(self, low_s: float = 0.5, high_s: float = 3.0) -> None:
        time.sleep(self._dice.uniform(low_s, high_s))

    def _shard(self) -> str:
        return f"shard-{self._dice.randrange(2)}"

    def kill_a_shard(self) -> None:
        self._kill(self._shard())

    def kill_the_coordinator(self) -> None:
        self._kill("coordinator")

    def kill_all(self) -> None:
        self._kill("shard-0", "shard-1", "coordinator")

    def _kill(self, *names: str) -> None:
        """Not the one shard that has all rows while the other, which has lost its memory, has not
        got them back: two copies that are lost at once are lost."""
        if self._only_copy in names and self._is_whole_again():
            self._only_copy = None
        self._service.send(signal.SIGKILL, *(name for name in names if name != self._only_copy))

    def _is_whole_again(self) -> bool:
        assert self._copies is not None
        with contextlib.suppress(TransferQueueError):
            return is_complete(self._copies)
        return False  # it does not say

    def kill_a_worker(self) -> None:
        self._workers.kill(self._dice.randrange(len(self._workers.processes)))

    def stop_a_shard(self) -> None:
        name = self._shard()
        self._service.send(signal.SIGSTOP, name)
        self.pause(0.2, 1.5)
        self._service.send(signal.SIGCONT, name)

    def lose_a_shard(self) -> None:
        """Its memory and its journal go with it, while the other one has everything."""
        assert self._copies is not None
        self._wait_for_second_copies(self._copies)
        name = self._shard()
        self._service.send(signal.SIGSTOP, name)
        for path in arena_files(self._copies, int(name[-1])):
            path.unlink()
        self._service.send(signal.SIGKILL, name)
        self._only_copy = f"shard-{1 - int(name[-1])}"

    def _wait_for_second_copies(self, client: tq.Client) -> None:
        try:
            wait_until(lambda: is_complete(client), timeout_s=60)
        except AssertionError as late:
            late.add_note(json.dumps(client.status()["shards"], default=str))
            late.add_note(f"done until now: {list(self.done.items())}")
            raise

    def stop_a_worker(self) -> None:
        process = self._dice.choice(self._workers.processes)
        process.send_signal(signal.SIGSTOP)
        self.pause(0.2, LEASE_S + 1)
        process.send_signal(signal.SIGCONT)

    def cut_the_link(self) -> None:
        assert self._hosts is not None
        self._hosts.set_link(up=False)
        self.pause(0.2, 2.0)
        self._hosts.set_link(up=True)


def soak(
    seconds: float, seed: int, folder: Path, *, spill: bool = False, replicas: bool = False
) -> Outcome:
    """Trouble for so long, then peace, and a look at what is there. ``folder``: for records, and
    for what is spilled. ``replicas``: with two copies of each row, and shards that lose theirs."""
    has_hosts = reason_to_skip() is None
    with ExitStack() as stack:
        hosts = stack.enter_context(TwoHosts(delay_ms=DELAY_MS, loss=LOSS)) if has_hosts else None
        settings = _settings(hosts, folder / "spilled" if spill else None, replicas=replicas)
        service = ServiceProcess(_service_command(hosts, settings))
        stack.callback(service.close)
        near, keys = service.state["endpoints"][0], service.state["keys"]
        with tq.connect(near, keys=ClientKeys.load(Path(keys))) as client:
            client.create_partition(FLOW, tasks=[TASK], retention="consumed")
            before = _descriptors(service)
            workers = Workers(folder, _worker_commands(service.state, hosts))
            stack.callback(workers.close)
            workers.wait_begun()
            trouble = Trouble(service, workers, hosts, seed, client if replicas else None)
            until_s = time.monotonic() + seconds
            while time.monotonic() < until_s:
                trouble.pause()
                trouble.make()
                workers.refuse_ended()
            trouble.pause(3.0, 3.0)
            workers.close()
            wait_until(lambda: _is_whole(service), timeout_s=20)
            ledger = read_records(workers.records())
            spilled = [shard["spill"] for shard in client.status()["shards"] if shard["spill"]]
            found = Found(kept=_all_kept(client, ledger), flow=_all_that_flows(client, ledger))
            return Outcome(
                broken=broken_promises(ledger, found),
                ledger=ledger,
                done=trouble.done,
                num_restarts=service.state["num_restarts"],
                failures=service.state["failures"],
                had_two_hosts=has_hosts,
                num_spilled=sum(disk["moved"] + disk["slabs"] for disk in spilled),
                **_left_after_clearing(client, service, before),
            )


def _env() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}


def _settings(hosts: TwoHosts | None, spill_dir: Path | None, *, replicas: bool) -> dict[str, Any]:
    settings: dict[str, Any] = {"budget_bytes": BUDGET_BYTES}
    if replicas:
        settings["replicas"] = 2
    if spill_dir is not None:
        spill_dir.mkdir()
        settings = {"budget_bytes": SPILLING_BUDGET_BYTES, "spill_dir": str(spill_dir)}
        settings["spill_bytes"] = SPILL_BYTES
    if hosts is not None:
        settings["host"] = NEAR
    return settings


def _service_command(hosts: TwoHosts | None, settings: dict[str, Any]) -> list[str]:
    program = [sys.executable, "-m", "tests.chaos.service_program", json.dumps(settings)]
    return program if hosts is None else hosts.command(hosts.near, *program)


def _worker_commands(
    state: dict[str, Any], hosts: TwoHosts | None
) -> list[Callable[[str], list[str]]]:
    """Half of them on the other host, if there is one, by either way for large bytes; the others by
    shared memory and Unix sockets."""
    program, keys = [sys.executable, "-m", "tests.chaos.worker"], state["keys"]
    near = state["endpoints"][0]

    def here(transport: str) -> Callable[[str], list[str]]:
        return lambda record: [*program, near, keys, transport, record]

    def there(transport: str) -> Callable[[str], list[str]]:
        assert hosts is not None
        far = [*program, state["endpoints"][1], keys, transport]
        return lambda record: hosts.command(hosts.far, *far, record)

    ways = [here("shm"), here("ipc")]
    if hosts is not None:
        ways = [ways[0], there("tcp"), ways[1], there("sockets")]
    return [ways[place % len(ways)] for place in range(NUM_WORKERS)]


def _is_whole(service: ServiceProcess) -> bool:
    pids = service.send(0)["pids"].values()
    return all(os.path.exists(f"/proc/{pid}") for pid in pids)


def _all_kept(client: tq.Client, ledger: Ledger) -> Counter[int]:
    handle = client.select(KEPT, min_rows=0)
    client.wait(handle, fields=FIELDS)
    return _numbers(client, handle, ledger)


def _all_that_flows(client: tq.Client, ledger: Ledger) -> Counter[int]:
    """Claim until nothing comes for longer than a dead worker's lease."""
    numbers: Counter[int] = Counter()
    with contextlib.suppress(NotReady):
        while True:
            claim = client.claim(
                task=TASK,
                partition=FLOW,
                fields=FIELDS,
                n=256,
                allow_partial=True,
                timeout_s=LEASE_S + 4,
            )
            numbers += _numbers(client, claim.handle, ledger)
            claim.ack()
    return numbers


def _numbers(client: tq.Client, handle: tq.BatchHandle, ledger: Ledger) -> Counter[int]:
    numbers: Counter[int] = Counter()
    for part in handle.split(64) if len(handle) else ():
        got = client.get_columns(part)
        torn = what_is_torn(got)
        if torn:
            ledger.torn.append(torn)
        numbers.update(got["number"].tolist())
    return numbers


def _descriptors(service: ServiceProcess) -> dict[str, int]:
    return {name: psutil.Process(pid).num_fds() for name, pid in service.send(0)["pids"].items()}


def _left_after_clearing(
    client: tq.Client, service: ServiceProcess, before: dict[str, int]
) -> dict[str, int]:
    for partition in client.status()["partitions"]:
        client.clear(partition=partition)

    def left() -> dict[str, int]:
        shards = client.status()["shards"]
        on_disk = sum(shard["spill"]["used_bytes"] for shard in shards if shard["spill"])
        return {
            "used_bytes": on_disk + sum(shard["used_bytes"] for shard in shards),
            "leases": sum(shard["leases"] for shard in shards),
            "puts_under_way": sum(shard["puts_under_way"] for shard in shards),
            "descriptors": sum(
                max(0, count - before[name] - FEW_DESCRIPTORS)
                for name, count in _descriptors(service).items()
            ),
        }

    with contextlib.suppress(AssertionError):
        wait_until(lambda: not any(left().values()), timeout_s=45)
    return left()
