"""What shards and the coordinator import stays small, whatever the clients need."""

from __future__ import annotations

import subprocess
import sys


def test_handles_and_the_format_import_neither_torch_nor_zmq_nor_pickle_of_ours() -> None:
    code = (
        "import sys, transferqueue.handle, transferqueue.fields, transferqueue.uids, "
        "transferqueue.meta, transferqueue.wire.format, transferqueue.dtypes, "
        "transferqueue.wire.cells\n"
        "heavy = {'torch', 'tensordict', 'ray', 'zmq', 'transferqueue.wire.pickled'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
