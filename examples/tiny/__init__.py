"""A model and tasks small enough to be learned from scratch on a laptop in minutes."""
