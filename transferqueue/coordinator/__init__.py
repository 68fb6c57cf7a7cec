"""The control plane: which cells are ready, which task has taken which samples, tags, quotas."""
