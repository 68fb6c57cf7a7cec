"""Runnable examples. Each runs on a CPU, and in CI."""
