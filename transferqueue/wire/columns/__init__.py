"""Columns of a batch as bytes and back, exactly. Clients only: this imports torch."""

from transferqueue.wire.cells import ObjectPolicy
from transferqueue.wire.columns.decode import decode_column, decode_on_device
from transferqueue.wire.columns.encode import encode_column
from transferqueue.wire.columns.encoded import EncodedColumn

__all__ = ["EncodedColumn", "ObjectPolicy", "decode_column", "decode_on_device", "encode_column"]
