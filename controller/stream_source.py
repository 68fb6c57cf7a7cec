"""Where an asynchronous update gets its batch: from samples that stream through the data plane.

Each sample is one row of one partition: its prompt is put by the driver, its response by a rollout,
its scores by the stages behind, each of which claims what is ready for it. An update claims groups
that are complete. ``max_staleness`` of the partition keeps samples that are too old from being
handed out, whoever generated them and however long that took.
"""

from __future__ import annotations

import logging
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from controller.dataflow import fields_before
from controller.ledger import Ledger
from controller.prompt_rows import PROMPT_NUMBER
from controller.sources import WEIGHTS, ReadyBatch, SourceCounts
from controller.transports import TRAIN
from transferqueue import tag
from transferqueue.errors import ClaimError, RowsGone
from workers.stage_runner import StageLoop

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import transferqueue as tq
    from controller.claim_ahead import ClaimAhead, Taken
    from controller.dataflow import Dataflow
    from controller.driver_config import DriverConfig
    from controller.lease_keeper import LeaseKeeper
    from controller.prompt_queue import PromptQueue
    from controller.prompt_rows import PromptRows
    from controller.role_calls import Roles
    from controller.stage_run import StageRun
    from transferqueue.coordinator.predicate import Predicate
    from workers.stage_runner import Batch

log = logging.getLogger(__name__)

UPDATE = "update"
"""The task of the trainer."""

LOOK_S = 0.5
"""How long a claim waits before the driver looks after its roles and prompts."""


class BeyondStaleness(AssertionError):
    """The data plane handed out a sample that is older than it should be: a bug."""


class Stream:
    """`Mode.FULLY_ASYNC`."""

    def __init__(
        self,
        *,
        client: tq.Client,
        dataflow: Dataflow,
        roles: Roles,
        rows: PromptRows,
        queue: PromptQueue,
        config: DriverConfig,
        keeper: LeaseKeeper,
        ahead: ClaimAhead,
    ) -> None:
        self._client = client
        self._dataflow = dataflow
        self._roles = roles
        self._rows = rows
        self.queue = queue
        self._config = config
        self._pacing = config.pacing
        self._keeper = keeper
        self._ahead = ahead
        self._look_ahead = config.look_ahead
        self._ledger = Ledger()
        self._rows_dropped = 0
        self._rollout_processes: list[str] = []
        self._prompts: list[int] = []
        """Prompts of the batch that `next` gave, until `tend`."""

    # -- start ------------------------------------------------------------------------------------

    def start(self, version: int) -> None:
        self._create_partition()
        self._adopt()
        self._client.advance_policy(version, partition=TRAIN)
        self._rollout_processes = self._roles.processes_of(self._dataflow.rollout.role)
        for stage in self._dataflow.streaming:
            if stage.generates:
                loop = self._loop(stage.name, self._config.update_rows)
                self._roles.stream(stage.role, loop, WEIGHTS, self._config.max_staleness)
            else:
                loop = self._loop(stage.name, self._config.stage_rows)
                self._roles.serve(stage.role, stage.method, loop)

    def _create_partition(self) -> None:
        self._client.create_partition(
            TRAIN,
            tasks=[*(stage.name for stage in self._dataflow.streaming), UPDATE],
            retention="consumed",
            max_staleness=self._config.max_staleness,
            on_stale="drop",
        )

    def _loop(self, task: str, batch_rows: int) -> StageLoop:
        return StageLoop(
            task=task, partition=TRAIN, batch_rows=batch_rows, lease_s=self._config.lease_s
        )

    def _adopt(self) -> None:
        """Take over the samples that an earlier driver left in the data plane."""
        alive = self._client.select(TRAIN, fields=[PROMPT_NUMBER])
        if not len(alive):
            return
        wanted = [PROMPT_NUMBER, *(["is_greedy"] if self._rows.with_greedy else [])]
        handle = self._client.wait(alive, fields=wanted)
        columns = self._client.get_columns(handle, fields=wanted)
        prompts = np.asarray(columns[PROMPT_NUMBER])
        greedy = np.asarray(columns.get("is_greedy", np.zeros(len(prompts), dtype=bool)))
        numbers, counts = np.unique(prompts, return_counts=True)
        whole = np.isin(prompts, numbers[counts == self._rows.group_size])
        if not whole.all():
            self._client.clear(alive[~whole])
        self._ledger.add(alive.uids[whole], prompts[whole], greedy[whole])
        self.queue.found(np.unique(prompts[whole]).tolist())
        log.info("took over %d samples of %d prompts", whole.sum(), len(np.unique(prompts[whole])))

    # -- batches ----------------------------------------------------------------------------------

    def next(self, version: int, num_updates: int) -> ReadyBatch:
        taken = self._taken(version, num_updates)
        claim = taken.claim
        versions = np.asarray(claim.tags["policy_version"], dtype=np.int64)
        prompts, greedy = self._ledger.rows(claim.handle.uids)
        self._ledger.remove(claim.handle.uids)
        self._prompts = np.unique(prompts).tolist()
        if int(version - versions.min()) > self._config.max_staleness:
            raise BeyondStaleness(f"version {version} got samples of {versions.min()}")
        return ReadyBatch(
            batch=claim.handle,
            stages=self._dataflow.on_batches,
            run=taken.run,
            versions=versions,
            prompts=prompts,
            greedy=greedy,
            rows_given_again=int((np.asarray(claim.deliveries) > 1).sum()),
            held=claim,
        )

    def _taken(self, version: int, num_updates: int) -> Taken:
        """At once when the batch was taken ahead: prompts can wait until the trainer has it
        (`tend`)."""
        deadline_s = time.monotonic() + self._config.claim_timeout_s
        while True:
            self._roles.check()
            if not self._ahead.is_begun:
                self._feed(num_updates)  # first: a claim by group has to know the tag
                self._ahead.begin(self._claimed)
            taken = self._ahead.wait(0.0)
            if taken is None:
                self._feed(num_updates)
                taken = self._ahead.wait(LOOK_S)
            if taken is not None:
                return taken
            if time.monotonic() > deadline_s and self._ahead.not_ready is not None:
                raise self._ahead.not_ready

    def look_ahead(
        self, version: int, num_updates: int, start: Callable[[Batch], StageRun] | None
    ) -> None:
        if self._look_ahead.is_another_due(num_updates):
            fresh = tag("policy_version") >= self._look_ahead.oldest_version(version)
            self._ahead.begin(partial(self._claimed, where=fresh), start)

    def _claimed(self, where: Predicate | None = None) -> tq.Claim:
        """What is too old for the weights in use is not handed out; ``where``: for later ones."""
        from transferqueue import samplers

        size = self._rows.group_size
        claim = self._client.claim(
            task=UPDATE,
            partition=TRAIN,
            fields=fields_before(self._dataflow.on_batches),
            n=self._config.prompts_per_step * size,
            sampler=samplers.Groups(size=size) if size > 1 else None,
            where=where,
            timeout_s=LOOK_S,
            lease_s=self._config.lease_s,
        )
        self._keeper.hold(claim)
        return claim

    def pause(self) -> None:
        self._ahead.pause()

    def tend(self, num_updates: int) -> None:
        self._feed(num_updates)
        self.queue.trained(self._prompts)  # outstanding until here, by the rule of the pacing
        self._prompts = []

    def published(self, version: int) -> None:
        self._client.advance_policy(version, partition=TRAIN)

    def _feed(self, num_updates: int) -> None:
        """Hand out the prompts that are due, and make up for samples that were dropped."""
        self._look_for_losses()
        due = self._pacing.prompts_due(
            num_updates=num_updates, num_outstanding=self.queue.num_outstanding
        )
        if due:
            self._put(self.queue.take(due))

    def _put(self, numbers: Sequence[int]) -> None:
        rows = self._rows.rows(numbers)
        handle = self._client.put(rows.columns, partition=TRAIN, tags={"group": rows.prompts})
        # The coordinator hears of a put a moment later. Until then a claim by group does not know
        # the tag, and a look for losses would miss these samples.
        self._client.wait(handle, fields=[PROMPT_NUMBER])
        self._ledger.add(handle.uids, rows.prompts, rows.greedy)

    def _look_for_losses(self) -> None:
        """A prompt whose samples have not all survived can never be a complete group."""
        partition = self._client.status()["partitions"].get(TRAIN, {})
        dropped = int(partition.get("stale_rows_dropped", 0))
        if dropped == self._rows_dropped:
            return
        self._rows_dropped = dropped
        torn, left = self._ledger.tear(self._client.select(TRAIN).uids)
        if len(left):
            self._clear(left)
        self.queue.lost(torn.tolist())

    def _clear(self, uids: np.ndarray) -> None:
        alive = self._client.select(TRAIN)
        self._client.clear(alive[np.isin(alive.uids, uids)])

    # -- afterwards -------------------------------------------------------------------------------

    def commit(self, used: list[ReadyBatch]) -> None:
        for ready in used:
            self._keeper.let_go(ready.held)
            try:
                ready.held.ack()
            except (ClaimError, RowsGone) as error:
                log.warning("samples were taken away before they could be acked: %s", error)

    def give_back(self, unused: list[ReadyBatch]) -> None:
        self._do_without_the_next()
        for ready in unused:
            self._ledger.add(ready.held.handle.uids, ready.prompts, ready.greedy)
            self.queue.found(np.unique(ready.prompts).tolist())
            self._let_others_have(ready.held)
        self._rows_dropped = -1  # some may have grown too old: look

    def _do_without_the_next(self) -> None:
        claim = self._ahead.take_back()
        if claim is not None:
            self._let_others_have(claim)

    def _let_others_have(self, claim: tq.Claim) -> None:
        self._keeper.let_go(claim)
        try:
            claim.give_back()
        except (ClaimError, RowsGone) as error:
            log.warning("samples could not be given back: %s", error)

    def counts(self) -> SourceCounts:
        counts = SourceCounts(stale_rows_dropped=max(0, self._rows_dropped))
        for report in self._roles.reports(self._rollout_processes).values():
            for generations in report["generations"]:
                counts.generations_resumed += generations["resumed"]
                counts.generations_dropped += generations["dropped"]
            for first in report["first_token_at_s"]:
                _merge_earliest(counts.first_token_at_s, first)
        return counts

    def close(self) -> None:
        self._do_without_the_next()
        self._roles.stop()


def _merge_earliest(into: dict[int, float], other: dict[int, Any]) -> None:
    for version, at_s in other.items():
        into[version] = min(at_s, into.get(version, at_s))
