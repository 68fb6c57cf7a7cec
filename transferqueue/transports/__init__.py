"""Ways of your own for large bytes between a client and a shard: `base` is the contract."""
