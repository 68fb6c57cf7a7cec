"""Sockets: the only package that imports zmq. Peers exchange `wire.format.Message` values."""
