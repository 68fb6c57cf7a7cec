"""Ours and verl side by side. Runs in the virtual environment that holds verl."""
