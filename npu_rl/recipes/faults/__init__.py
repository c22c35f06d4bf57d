"""Known silent faults of the upstreams as data, and the verdict on a code tree from its content."""
