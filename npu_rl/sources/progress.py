"""What a source tells about its work while it goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

Tell = Callable[[str], None]  # shows a line of news


class Watcher(Protocol):
    """Somebody who shows progress. Called from several threads; must not block."""

    def begin(self, component: str, source: str) -> None:
        """A source is asked. `source` is fit for a person: no credentials."""

    def advance(self, component: str, text: str, fraction: float | None) -> None:
        """A line of news, and how much is done (0 to 1) if that is known."""

    def note(self, component: str, message: str) -> None:
        """Something worth keeping on screen: a mirror that failed, a retry."""

    def end(self, component: str, size: int) -> None:
        """The component is here; `size` bytes came over the wire (0: it was in the store)."""


class Silent:
    """Shows nothing."""

    def begin(self, component: str, source: str) -> None:
        pass

    def advance(self, component: str, text: str, fraction: float | None) -> None:
        pass

    def note(self, component: str, message: str) -> None:
        pass

    def end(self, component: str, size: int) -> None:
        pass
