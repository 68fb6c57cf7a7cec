"""Training drivers: what a single controller decides, and in which order."""
