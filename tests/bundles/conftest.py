"""One stack for all tests of bundles: making it takes a second."""

from tests.bundles.made import made_stack, stack

__all__ = ["made_stack", "stack"]
