"""Spans that follow a request from a worker to a shard: `base` is what the rest knows of them."""
