"""The record of a run: its folder, its attempts, their logs and temporary folders, with secrets masked."""
