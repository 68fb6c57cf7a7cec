"""Records that outlive a kill of the process that wrote them: their format, and the file."""
