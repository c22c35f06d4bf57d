"""Trees in, one tree out: merges, patches, assembly. No step touches a work tree."""
