"""Manifests: schema, loading, and the paths in them.

Importing this package is cheap: only the modules that need pydantic and yaml import them.
"""
