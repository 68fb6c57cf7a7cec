"""Bytes in memory: which ranges of it are free, and how many are copied at once."""
