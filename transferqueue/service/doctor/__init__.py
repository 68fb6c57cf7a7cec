"""What may be wrong with a host or a service: checks as values, made from facts that were read."""
