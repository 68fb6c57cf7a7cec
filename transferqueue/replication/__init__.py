"""Two copies of every row: what a service with ``replicas=2`` does.

Words: the shard of a slot is the **home** of its rows; another one, which the coordinator names, is
its **guard** and keeps the second copy: on another node if there is one. So each shard is a home
and may guard others.

Everything that changes what a home shows is a **change**: a put that commits, a clear, fields that
are released. A home sends its changes to its guard in order, and the guard carries them out on a
store of its own, the **mirror**, which then is the same. While the two are *in step* a change
becomes visible at home, is written to its journal, told to the coordinator and acknowledged only
when the guard has answered it. So what was acknowledged is on both, and what the mirror lacks was
seen by nobody.

The coordinator has on **record** which mirror has everything that was acknowledged, or that none
has (`on_record`). Three rely on it: a home that comes back without its rows takes them from that
mirror before it serves; a guard reads from its mirror for clients (`relied_on`); and a guard takes
the place of a home that does not come back, for good. Therefore a home acknowledges what its guard
has not answered, on one copy only, never before it is on record that there is no mirror:

- as it starts, and when its guard's process is seen to be dead (a mirror is memory of its process),
  at once;
- when its guard lives and says nothing while changes wait, after ``guard_silence_s``.

Then all is copied in the background, so many bytes a second, and the changes made meanwhile after
it; the next change is in step again, and that goes on record. Until then ``status`` shows the home
as under-replicated, and *acknowledged* means on its one copy: if that is lost too, with its
journal, the rows raise ``RowsLost``, also those that the silent guard has. Nothing that was cleared
or overwritten ever comes back.

A home whose place was taken is told so by the coordinator when it comes back, and ends. It cannot
have acknowledged anything since: its guard does not answer it any more, and the record, which it
would need to go on alone, is not its own. Until it is told, half a second after it reaches the
coordinator again, it answers gets of clients that have not heard either with what it had.

Rejected: both copies written by the client (the retry of a put of which one copy is in, the clear
of a client that ended in between, and the order of two puts to one row all need the home to decide
anyhow); going on alone because a guard is silent, without the record (if the home is lost next, its
successor would take a mirror that lacks what was acknowledged); a lease in place of the record (the
coordinator's absence would then stop every put).
"""
