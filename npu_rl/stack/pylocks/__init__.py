"""Locked sets of packages beside a manifest: files in PEP 751's format, resolved by uv from PyPI."""
