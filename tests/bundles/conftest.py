"""One stack for all tests of a file: making it takes a second."""

from tests.bundles.made import stack

__all__ = ["stack"]
