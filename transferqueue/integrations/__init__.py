"""Bridges into frameworks that have their own worker groups and loaders."""
