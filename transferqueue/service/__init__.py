"""Starting a service: as child processes, as Ray actors, or from the command line."""
