"""A service on disk: what a checkpoint holds, how it is written whole or not at all, restored.

**What "consistent" means.** A checkpoint is the service at one moment *T* during the call, so that
no later effect is in without its cause:

- every put, clear, ack and tag that was answered before the call is in;
- of a put over several shards all parts are in, or none;
- the coordinator's part is of the same moment: it knows exactly the cells that the shards wrote
  down, with the tags, acks and deliveries that they had.

*How.* Symbols: shards ``s``, the events ``e_s`` that each has told the coordinator, in order.

1. *prepare*: each shard shows that it sees the folder, by the token in it (a folder of the same
   name on another host has another).
2. *hold*: each shard stops making anything visible (commits and clears wait, gets and the bytes of
   puts go on) and answers with ``len(e_s)`` and what has become of its parts of split puts. A put
   that is in on one shard and under way on another is let pass; one that was given up on another,
   or does not end within `SETTLE_S`, is left out of the files (a field that such a put overwrote
   is as in the service itself: the older version is gone).
3. *T*: when the coordinator has heard all ``e_s`` it copies its state and, in the same step, orders
   *cut*: each shard copies its index, leases the slabs that it names, and lets everything go on.
   Orders and frees go over one ordered stream, so what the coordinator freed before T each shard
   has freed before its cut. Nothing changed on any shard between its hold and its cut, so one
   moment, T, is common to all.
4. The bytes are written while everything goes on. A clear frees leased bytes when they are written.

Rejected: copy-on-write of whole arenas (writes what is not live, and ends with the host); a cut
without the hold (1 ms less, but a put that was acknowledged on one shard could be missing while a
later one on another is in); draining all puts (waits for the slowest client's bytes).

**Whole or not at all.** A checkpoint lies in a folder of its own beside the last one, ``cut-<id>``;
each file is synced, then the folder, and only then one rename makes ``manifest`` name it. Whatever
is killed, or whichever write fails, ``manifest`` names the last good one. What an interrupted one
left is deleted by the next.

**A restored service takes over the id** of the one that was saved. Handles are what trainers keep
in checkpoints of their own, and they are joined with handles made later; with another id each of
them would have to be translated first, and one that was forgotten would fail in the middle of the
night. What the id would have guarded against, a handle that the old service made after the
checkpoint and that now means other rows, is impossible because uids are never given twice: a
restored service gives them from a *life* of its own (``lives.py``), above all earlier ones. Such a
handle raises `RowsGone`.

**Any number of shards.** Rows are dealt to the new shards in stretches of uids of about equal
bytes (``placement.py``); clients find them by the table of `transferqueue.homes`.
"""
