"""Samples of a task for ``torch.utils.data.DataLoader``: claimed by its workers, acked by the loop.

::

    from transferqueue.integrations.torch_data import ClaimedBatches, ClaimedLoader

    batches = ClaimedBatches(client, task="actor", fields=["input_ids", "advantages"], n=64)
    for columns in ClaimedLoader(batches, num_workers=2, multiprocessing_context="spawn"):
        train(columns["input_ids"], columns["advantages"])

Every worker process connects for itself, claims batches and reads them ahead. The loop's process
acks a batch when the loop asks for the next one: a batch that was only prefetched is not consumed.

What is promised: at least once, counted. A sample whose batch the loop has finished is given to
nobody again. What was read ahead when the loop ends, by ``break``, by an exception or because a
worker was killed, is given back at once; if the loop's own process is killed, when the leases end.
Only a loop that ends between its work on a batch and the ack sees that batch twice, and
``columns.deliveries`` says so. (Torch reports a killed worker by an exception anywhere in the
loop's work; a loop that calls ``loader.ack()`` as its step is done has no such batch.)

Ranks need no sharding: the ranks of one task claim from one queue, and none gets what another has.
Ranks that must see the same samples (tensor or pipeline parallel) pass a ``RankAware`` sampler and
at most one worker: their batches come in one order, which several workers could not keep.
"""

from __future__ import annotations

import contextlib
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from transferqueue.client.connecting import connect
from transferqueue.client.data_operations import DEFAULT_PARTITION
from transferqueue.errors import (
    Closed,
    ConfigError,
    DeadlineExceeded,
    InvalidInput,
    LeaseExpired,
    NotReady,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy as np

    from transferqueue.client.sync_client import Client
    from transferqueue.coordinator.predicate import Predicate
    from transferqueue.coordinator.samplers import Sampler

REFUSED = (
    "batch_size", "shuffle", "sampler", "batch_sampler", "collate_fn", "drop_last",
    "persistent_workers",
)  # fmt: skip
"""Options of a DataLoader that have no meaning for batches that are claimed whole, by workers that
end with the loop."""


class Columns(dict[str, Any]):
    """The columns of one batch by name, exactly as they were put (see `Client.get_columns`)."""

    deliveries: np.ndarray  # uint8[rows]
    """How often each sample has been given to the task, this time included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadBatch:
    """A batch on its way from the worker that claimed it to the loop that will ack it."""

    claim_id: int
    columns: dict[str, Any]
    deliveries: np.ndarray  # uint8[rows]

    def for_loop(self) -> Columns:
        columns = Columns(self.columns)
        columns.deliveries = self.deliveries
        return columns


class ClaimedBatches(IterableDataset[ReadBatch]):
    """Batches of ``n`` samples for a task, as `Client.claim` gives them. Read by `ClaimedLoader`.

    ``client`` tells where the service is and is not used otherwise. An epoch ends when no batch
    has become ready for ``idle_s`` seconds, or after ``max_batches`` of all workers together.
    ``lease_s`` is for the time that a batch lies read ahead, and then anew for the loop's work on
    it.
    """

    def __init__(
        self,
        client: Client,
        *,
        task: str,
        fields: Sequence[str],
        n: int,
        partition: str = DEFAULT_PARTITION,
        sampler: Sampler | None = None,
        where: Predicate | None = None,
        idle_s: float = 30.0,
        max_batches: int | None = None,
        lease_s: float = 120.0,
    ) -> None:
        if max_batches is not None and max_batches < 0:
            raise InvalidInput(f"max_batches must be 0 or more, got {max_batches}")
        self._arguments = client._ops.connect_arguments
        self.claims_of = secrets.token_hex(8)
        """In whose name all workers claim, so that the loop can let go of what they hold."""
        self._max_batches = max_batches
        self.lease_s = lease_s
        self.shares_batches = sampler is not None and sampler.sharing is not None
        """Whether other ranks are to get the same batches, so that their order matters."""
        self._claim: dict[str, Any] = {
            "task": task,
            "fields": list(fields),
            "n": n,
            "partition": partition,
            "sampler": sampler,
            "where": where,
            "timeout_s": idle_s,
            "lease_s": lease_s,
        }

    def connect(self) -> Client:
        """A client of this process: one that was inherited by a fork cannot be used."""
        client = connect(**self._arguments)
        client._ops.name_claims(self.claims_of)
        return client

    def __iter__(self) -> Iterator[ReadBatch]:
        with self.connect() as client:
            yield from self._read(client)

    def _read(self, client: Client) -> Iterator[ReadBatch]:
        num_left = self._share()
        while num_left is None or num_left > 0:
            try:
                claim = client.claim(**self._claim)
            except (NotReady, Closed):  # nothing came, or the loop was left
                return
            columns = client.get_columns(claim.handle)
            yield ReadBatch(claim_id=claim.claim_id, columns=columns, deliveries=claim.deliveries)
            num_left = None if num_left is None else num_left - 1

    def _share(self) -> int | None:
        """How many batches this worker reads, ``None``: as many as there are."""
        info = get_worker_info()
        if self._max_batches is None or info is None:
            return self._max_batches
        return len(range(info.id, self._max_batches, info.num_workers))


class ClaimedLoader:
    """Iterates over `ClaimedBatches` through a ``DataLoader``, and acks what was consumed.

    ``options`` are those of a ``DataLoader`` that concern its workers: ``num_workers``,
    ``prefetch_factor``, ``multiprocessing_context``, … A batch is acked when the loop asks for the
    next one, and given back when the loop is left; `ack` acks the one in hand before.
    """

    def __init__(self, batches: ClaimedBatches, **options: Any) -> None:
        for name in REFUSED:
            if options.get(name):
                raise ConfigError(f"{name} has no meaning here: batches are claimed whole")
        if batches.shares_batches and options.get("num_workers", 0) > 1:
            raise ConfigError(
                f"a sampler that gives several ranks the same batches needs num_workers of 0 or 1, "
                f"got {options['num_workers']}: several workers keep no order"
            )
        self._batches = batches
        self._options = options
        self._client: Client | None = None
        self._in_hand: ReadBatch | None = None

    def __iter__(self) -> Iterator[Columns]:
        batches = self._batches
        batches.claims_of = secrets.token_hex(8)
        loader: DataLoader[Any] = DataLoader(
            batches, batch_size=None, collate_fn=_as_read, **self._options
        )
        with batches.connect() as client:
            self._client = client
            reading = iter(loader)
            try:
                for batch in reading:
                    if self._is_still_ours(batch):
                        self._in_hand = batch
                        yield batch.for_loop()
                        self.ack()
            finally:
                self._in_hand = None
                self._let_go(client)  # also ends what a worker waits for
                _close(reading)
                self._let_go(client)

    def ack(self) -> None:
        """The batch in hand is consumed. LeaseExpired if its work took longer than ``lease_s``."""
        batch, self._in_hand = self._in_hand, None
        if batch is not None and self._client is not None:
            client = self._client
            client._run(client._ops.control.ack(batch.claim_id))

    def _is_still_ours(self, batch: ReadBatch) -> bool:
        """Hold the batch for the loop's work. One that lay here for too long is given again to
        somebody, so it is passed over."""
        assert self._client is not None
        control = self._client._ops.control
        try:
            self._client._run(control.extend(batch.claim_id, self._batches.lease_s))
        except LeaseExpired:
            return False
        return True

    def _let_go(self, client: Client) -> None:
        """Let others have what was claimed and is not acked."""
        with contextlib.suppress(DeadlineExceeded):
            client._run(client._ops.upkeep.leave(self._batches.claims_of))


def _as_read(batch: Any) -> Any:
    """Torch's own conversion would turn object columns into lists."""
    return batch


def _close(reading: Any) -> None:
    """End the workers now, or the generator when there are none."""
    fetcher = getattr(reading, "_dataset_fetcher", None)
    if fetcher is not None:
        fetcher.dataset_iter.close()
    else:
        reading._shutdown_workers()
