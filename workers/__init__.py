"""Role workers, worker groups and the ways a batch reaches them."""
