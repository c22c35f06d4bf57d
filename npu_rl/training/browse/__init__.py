"""Read-only views of recorded runs: the list, one run, a comparison of two, and samples."""
