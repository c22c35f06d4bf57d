"""Bundles: one file that sets up a manifest on a host without a network."""
