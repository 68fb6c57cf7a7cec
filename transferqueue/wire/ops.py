"""Names of the operations, each with who asks whom. What a body holds stands at its handler."""

from __future__ import annotations

from typing import Final

# client → coordinator
HELLO: Final = "hello"
CREATE_PARTITION: Final = "create_partition"
DROP_PARTITION: Final = "drop_partition"
CLAIM: Final = "claim"
ACK: Final = "ack"
GIVE_BACK: Final = "give_back"
EXTEND: Final = "extend"
WAIT: Final = "wait"
SELECT: Final = "select"
UPDATE_TAGS: Final = "update_tags"
ADVANCE_POLICY: Final = "advance_policy"
HELD: Final = "held"
WAITS: Final = "waits"
DESCRIBE: Final = "describe"
PICTURE: Final = "picture"
POLICY: Final = "policy"
DEAD_LETTERS: Final = "dead_letters"
REDRIVE: Final = "redrive"
DISCARD: Final = "discard"
LEAVE: Final = "leave"
LOSE_SHARD: Final = "lose_shard"
TELL_STAGES: Final = "tell_stages"
CHECKPOINT: Final = "checkpoint"

SHARDS_EPOCH: Final = "shards_epoch"
"""In every answer of a coordinator: another one when the shards, or how to reach them, are."""

TRACE: Final = "trace"
"""In the body of any request: the span that it was made in. See `transferqueue.tracing.base`."""

WAS: Final = "was"
"""In the body of a request that went to another server before, in whose place this one is: the
routing ids that its peer had there. Whoever knows one of them is that peer."""

# who is about to start a shard → coordinator
JOIN: Final = "join"

# client → shard
PUT: Final = "put"
WRITE: Final = "write"
COMMIT: Final = "commit"
ABORT: Final = "abort"
GET: Final = "get"
READ: Final = "read"
READ_DONE: Final = "read_done"
CLEAR: Final = "clear"
STORED: Final = "stored"
RELEASE: Final = "release"

ENDED: Final = "ended"
"""What a put, get or clear may say beside what it asks for, and the shard does first: ``{"reader",
"lease_ids"}`` as of a ``release``, the ids as the bytes of int64s. Leases so end with the next
request, in place of a message of their own."""

ENDING_LEASES: Final = (PUT, GET, CLEAR)
"""The requests that may say so."""

# client → either
STATUS: Final = "status"

# shard → coordinator
REGISTER: Final = "register"
EVENT: Final = "event"
ADMIT: Final = "admit"
RETURN_ROOM: Final = "return_room"
COMMITTED: Final = "committed"
CLEARED: Final = "cleared"
WHOLE: Final = "whole"
STEP_DONE: Final = "step_done"
WHERE_COPY: Final = "where_copy"

# shard → shard
COPY: Final = "copy"
FETCH_COPY: Final = "fetch_copy"

# coordinator → shard
FREE: Final = "free"
TERMS: Final = "terms"
SAVE: Final = "save"

# steps of a checkpoint, in ``save`` and ``step_done``
PREPARE: Final = "prepare"
HOLD: Final = "hold"
PASS: Final = "pass"
CUT: Final = "cut"
ABANDON: Final = "abandon"

CHANGING = frozenset(
    {
        CREATE_PARTITION,
        DROP_PARTITION,
        CLAIM,
        ACK,
        GIVE_BACK,
        EXTEND,
        UPDATE_TAGS,
        ADVANCE_POLICY,
        REDRIVE,
        DISCARD,
        LEAVE,
        LOSE_SHARD,
        TELL_STAGES,
        JOIN,
        CHECKPOINT,
    }
)
"""Of the coordinator: those that have an effect, which must have it once though they come twice."""
