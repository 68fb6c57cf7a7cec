"""Where the bytes of a shard live: the contract, the registry, and the built-in backends."""
