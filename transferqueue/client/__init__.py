"""Clients of a service: sync and async faces over one set of operations."""
