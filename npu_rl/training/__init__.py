"""One run: its processes, its record, what follows its log, and what is put into its workers."""
