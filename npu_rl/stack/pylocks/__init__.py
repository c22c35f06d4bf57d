"""Locked sets of packages beside a manifest: files in the format of PEP 751, made by uv from PyPI."""
