"""Progress of sources while they fetch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

Notify = Callable[[str], None]  # shows a message


class Watcher(Protocol):
    """Receiver of progress. It is called from several threads and must not block."""

    def begin(self, component: str, source: str) -> None:
        """Report that a source is used; `source` has no credentials."""

    def advance(self, component: str, text: str, fraction: float | None) -> None:
        """Report a line of progress, and the completed fraction (0 to 1) if it is known."""

    def note(self, component: str, message: str) -> None:
        """Report an event that should stay on screen, such as a failed mirror or a retry."""

    def end(self, component: str, size: int) -> None:
        """Report that the component is complete; `size` bytes were received (0: it was in the store)."""


class Silent:
    """A watcher that shows nothing."""

    def begin(self, component: str, source: str) -> None:
        """Show nothing."""

    def advance(self, component: str, text: str, fraction: float | None) -> None:
        """Show nothing."""

    def note(self, component: str, message: str) -> None:
        """Show nothing."""

    def end(self, component: str, size: int) -> None:
        """Show nothing."""
