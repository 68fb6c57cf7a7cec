"""Metrics for Prometheus: what `Client.status` tells, as families of samples, and who serves it."""
