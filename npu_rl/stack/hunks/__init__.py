"""Where hunks are in files: exact matches, headings, and what became of each one later."""
