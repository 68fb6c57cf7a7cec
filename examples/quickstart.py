"""Two processes: put here, fetch one field there.

python -m examples.quickstart
"""

from __future__ import annotations

import multiprocessing

import torch

import transferqueue as tq


def worker(address: str, handle: tq.BatchHandle) -> None:
    """Another process: gets the fields it reads, puts the field it writes."""
    with tq.connect(address) as client:
        batch = client.get(handle, fields=["responses"])
        lengths = (batch["responses"] != 0).sum(dim=1)
        client.put({"lengths": lengths}, handle=handle)
        moved = sum(field["got_bytes"] for field in client.stats().values())
        print(f"worker: read {moved:,} bytes, of the one field it asked for")


def main() -> None:
    with (
        tq.serve(shards=2, budget_bytes=256 << 20) as service,
        tq.connect(service.address) as client,
    ):
        handle = client.put(
            {
                "prompts": torch.randint(1, 100, (64, 1024)),
                "responses": torch.randint(0, 2, (64, 4096)),
                "question": [f"what is {i} + {i}?" for i in range(64)],
            },
            partition="train",
            tags={"policy_version": 0},
        )
        size = len(handle.to_bytes())
        print(f"here:   put {handle}; the handle itself is {size:,} bytes")

        process = multiprocessing.get_context("spawn").Process(
            target=worker, args=(service.address, handle)
        )
        process.start()
        with_lengths = client.wait(handle, fields=["lengths"])
        print("here:   lengths", client.get(with_lengths, fields=["lengths"])["lengths"][:4])
        process.join()

        with client.claim(task="actor", fields=["lengths"], n=16, partition="train") as claim:
            print(f"here:   claimed {len(claim)} samples, first {claim.handle[:1].uids}")


if __name__ == "__main__":
    main()
