"""Locations of hunks in files: exact matches, headings, and each hunk's later state."""
