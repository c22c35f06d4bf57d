"""The manifest: what a person writes. `load` reads one, `schema` types it, `fingerprint` tells if it changed.

Importing this package costs nothing: pydantic and yaml are loaded by the modules that use them.
"""
