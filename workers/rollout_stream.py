"""A rollout that streams: prompts come in as slots become free, samples go out as they end.

The prompt of a sample and its response are fields of one row. The response is put with the tag
``policy_version`` of its oldest token, in the same commit, so that the data plane can tell how old
a sample is as soon as anyone can see it.
"""

from __future__ import annotations

import logging
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from transferqueue.errors import ClaimError, FieldExists, NotReady, RowsGone
from transferqueue.handle import BatchHandle
from workers.roles.partial_rollout import FinishedRows, PartialRollout

if TYPE_CHECKING:
    import threading

    import transferqueue as tq
    from workers.stage_runner import StageLoop, StageRunner

log = logging.getLogger(__name__)

METHOD = "generate_sequences"

VERSIONS_KEPT = 16
"""Of the times of first tokens."""


class RolloutStream:
    """One rollout's loop over a partition."""

    def __init__(
        self,
        runner: StageRunner,
        loop: StageLoop,
        *,
        weights: str,
        max_staleness: int | None = None,
    ) -> None:
        """``weights``: the published name. ``max_staleness``: generations that are older than
        this behind the weights in use begin again; ``None`` lets them be."""
        self._runner = runner
        self._client = runner.client
        self._loop = loop
        self._weights = weights
        self._max_staleness = max_staleness
        self._rollout = runner.role
        self._generations = PartialRollout(runner.role)
        self._claims: list[_Held] = []
        self.first_token_at_s: dict[int, float] = {}
        """Version -> wall-clock time of the first token drawn with it; the newest few."""

    def run(self, stop: threading.Event) -> None:
        """Until ``stop`` is set; what is under way then is given back."""
        try:
            while not stop.is_set():
                self._admit()
                self._refresh()  # after the wait for prompts, so that new ones get the newest
                self._advance()
                self._keep()
        finally:
            self._give_back()

    def counts(self) -> dict[str, int]:
        """Generations finished, resumed and dropped so far."""
        return asdict(self._generations.counts)

    def _refresh(self) -> None:
        try:
            newer = self._client.fetch(
                self._weights, newer_than=self._rollout.version, timeout_s=0.0
            )
        except NotReady:
            return
        with self._runner.lock:
            self._generations.load_weights(newer.state_dict, newer.version)
        if self._max_staleness is not None:
            self._generations.drop_older_than(newer.version - self._max_staleness)

    def _admit(self) -> None:
        free = self._generations.num_free
        if not free:
            return
        idle = free == self._rollout.config.slots
        timeout_s = self._loop.poll_s if idle else 0.0
        for claim in self._runner.claims(METHOD, self._loop, free, timeout_s):
            self._admit_claimed(claim)

    def _admit_claimed(self, claim: tq.Claim) -> None:
        handle = self._unanswered(claim)
        if not len(handle):
            claim.ack()
            return
        try:
            data = self._client.get_columns(handle, fields=self._runner.reads(METHOD))
        except RowsGone as error:
            log.info("prompts were cleared before they were read: %s", error)
            claim.give_back()
            return
        keys = handle.uids.tolist()
        self._claims.append(_Held(claim, keys, self._loop.lease_s))
        self._generations.admit(keys, data)

    def _unanswered(self, claim: tq.Claim) -> tq.BatchHandle:
        """Of samples given before, those that the earlier worker has not answered."""
        if not bool((claim.deliveries > 1).any()):
            return claim.handle
        name = "response_mask"
        try:
            got = self._client.get_columns(claim.handle, fields=[], optional=[name])
        except RowsGone:
            return claim.handle
        present = got.get(f"{name}.present", np.full(len(claim), name in got))
        return claim.handle[~np.asarray(present, dtype=bool)]

    def _advance(self) -> None:
        keys = self._generations.keys
        if not keys:
            return
        label = self._runner.label(METHOD)
        started_at_s, started_s = time.time(), time.monotonic()
        with (
            self._runner.lock,
            self._runner.log.spans.span(label, len(keys), np.array(keys, dtype=np.int64)),
        ):
            finished = self._generations.advance()
        self._note_first_token(started_at_s + self._generations.last_first_token_s)
        totals = self._runner.log.of(label)
        totals.busy_s += time.monotonic() - started_s
        totals.calls += 1
        if finished is not None:
            totals.rows += len(finished.keys)
            self._put(finished)

    def _note_first_token(self, at_s: float) -> None:
        version = self._rollout.version
        if version not in self.first_token_at_s:
            newest = list(self.first_token_at_s.items())[1 - VERSIONS_KEPT :]
            self.first_token_at_s = {**dict(newest), version: at_s}

    def _put(self, finished: FinishedRows) -> None:
        place_of = {key: place for place, key in enumerate(finished.keys)}
        ended = [(held, [key for key in held.keys if key in place_of]) for held in self._claims]
        handle = BatchHandle.concat([held.rows_of(keys) for held, keys in ended if keys])
        places = [place_of[key] for _, keys in ended for key in keys]
        columns = {name: column[places] for name, column in finished.columns.items()}
        self._store(handle, columns, [finished.oldest_versions[place] for place in places])
        self._settle(finished.keys)

    def _store(self, handle: tq.BatchHandle, columns: dict[str, Any], versions: list[int]) -> None:
        try:
            self._runner.store(METHOD, handle, columns, policy_version=versions)
        except (RowsGone, FieldExists) as error:
            if len(handle) == 1:
                log.info("a sample was not wanted any more: %s", error)
                self._runner.log.of(self._runner.label(METHOD)).stale_rows += 1
                return
            for row in range(len(handle)):  # some of them are wanted
                one = {name: column[row : row + 1] for name, column in columns.items()}
                self._store(handle[row : row + 1], one, versions[row : row + 1])

    def _settle(self, keys: list[int]) -> None:
        """Ack the claims of which nothing is under way any more."""
        done = set(keys)
        for held in self._claims:
            held.keys -= done
        for held in [held for held in self._claims if not held.keys]:
            self._claims.remove(held)
            try:
                held.claim.ack()
            except (ClaimError, RowsGone) as error:
                log.info("prompts had been given to another rollout: %s", error)

    def _keep(self) -> None:
        """Hold the prompts for longer than their lease, as long as this rollout lives."""
        for held in list(self._claims):
            if time.monotonic() < held.extend_at_s:
                continue
            try:
                held.extended(held.claim.extend(self._loop.lease_s))
            except (ClaimError, RowsGone) as error:
                log.info("prompts were taken from this rollout: %s", error)
                self._generations.discard(list(held.keys))
                self._claims.remove(held)

    def _give_back(self) -> None:
        for held in self._claims:
            try:
                held.claim.give_back()
            except (ClaimError, RowsGone) as error:
                log.info("prompts could not be given back: %s", error)
        self._claims = []


class _Held:
    """A claim of prompts, some of which are being answered."""

    def __init__(self, claim: tq.Claim, keys: list[int], lease_s: float) -> None:
        self.claim = claim
        self.keys = set(keys)
        self._row_of = {uid: row for row, uid in enumerate(claim.handle.uids.tolist())}
        self.extended(lease_s)

    def rows_of(self, keys: list[int]) -> tq.BatchHandle:
        """Some of the samples."""
        return self.claim.handle[[self._row_of[key] for key in keys]]

    def extended(self, lease_s: float) -> None:
        self.extend_at_s = time.monotonic() + lease_s / 3
