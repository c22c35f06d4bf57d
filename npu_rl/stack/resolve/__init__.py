"""Resolving a manifest to its lock: refs to ids, pull requests to merge records, patches to trees."""
