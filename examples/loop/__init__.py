"""What the PPO loop runs on: role processes that are called with batches."""
