"""What a run shows: live progress, a line a step, curves, the table of bytes."""
