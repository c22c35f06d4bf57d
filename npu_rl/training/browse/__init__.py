"""Recorded runs as people look at them: the list, the page of one, two compared, and samples. Nothing is changed."""
