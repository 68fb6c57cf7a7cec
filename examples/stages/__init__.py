"""Workers for `examples.dispatch_modes`: one for this package's groups, one for verl's."""
