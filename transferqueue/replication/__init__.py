"""Two copies of every row: what a service with ``replicas=2`` does.

Words: the shard of a slot is the **home** of its rows; the shard of the next slot is its
**guard** and keeps the second copy (`settings.guard_of`). So each shard is a home and
guards another one.

Everything that changes what a home shows is a **change**: a put that commits, a clear, fields that
are released. A home sends its changes to its guard in order, and the guard carries them out on a
store of its own, the **mirror**, which then is the same. While the two are *in step* a change
becomes visible at home, is written to its journal, told to the coordinator and acknowledged only
when the guard has answered it. So what was acknowledged is on both, and what the mirror lacks was
seen by nobody.

The other phases (`copy_log.Phase`): a home that has just started, or has lost sight of its guard,
does not know whether the guard holds a mirror that somebody may still rely on. Nothing is
acknowledged then: changes wait. They go on, on one copy only, from the moment that the guard says
it holds nothing, which every new process does (a mirror is memory of its process, and ends with
it). Then all is copied in the background, so many bytes a second, and the changes made meanwhile
after it; the next change is in step again. A mirror that is complete is thereby never behind.

A home that comes back with its journal goes on from that, has the old mirror dropped before it
acknowledges anything, and copies again. One that comes back without takes everything from its
guard before it serves. Rejected: both copies written by the client (the retry of a put of which
one copy is in, the clear of a client that ended in between, and the order of two puts to one row
all need the home to decide anyhow); going on alone while a guard is merely silent (if the home is
lost next, its successor would take a mirror that lacks what was acknowledged).
"""
