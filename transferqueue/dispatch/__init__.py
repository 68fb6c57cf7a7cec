"""Handles instead of batches through a dispatched call, whatever framework dispatches it.

The controller splits a handle and joins what the ranks answered (`SplitCall`); on a rank a `Bridge`
fetches the declared columns, and puts the written ones.
"""

from transferqueue.dispatch.bridge import Bridge
from transferqueue.dispatch.declaration import Declaration
from transferqueue.dispatch.join import StageReply, join
from transferqueue.dispatch.outputs import PADDING_KEY
from transferqueue.dispatch.split import ByTokens, HandlePart, Padding, by_tokens, split_handle
from transferqueue.dispatch.split_call import SplitCall
from transferqueue.dispatch.telling import tell
from transferqueue.dispatch.traffic import FieldCounts, Traffic, TrafficReport, TrafficRow

__all__ = [
    "PADDING_KEY",
    "Bridge",
    "ByTokens",
    "Declaration",
    "FieldCounts",
    "HandlePart",
    "Padding",
    "SplitCall",
    "StageReply",
    "Traffic",
    "TrafficReport",
    "TrafficRow",
    "by_tokens",
    "join",
    "split_handle",
    "tell",
]
