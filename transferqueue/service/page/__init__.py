"""The live page: a service in a browser, to look at and not to touch."""
