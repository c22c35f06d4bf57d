"""Workspaces: the folder that `setup` creates, its verification, builds, summaries and exports."""
