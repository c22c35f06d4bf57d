"""Workspaces: setting up a lock's tree on disk, its receipt, and the checks of its files."""
