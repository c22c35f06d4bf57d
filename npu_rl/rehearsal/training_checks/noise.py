"""Check that a training's generations, recorded by the stand-ins for vLLM, never repeat random numbers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from npu_rl.common.bounded import parse_json, read_file
from npu_rl.common.errors import NpuRlError

_FILES = "noise-*.jsonl"


def require_different_noise(attempt: Path) -> None:
    """Raise NpuRlError if two generations of an attempt, in any processes, began with the same random numbers.

    Args:
        attempt: The folder of its usage counts. A resumed attempt repeats steps, and so their noise.
    """
    seen: dict[str, tuple[int, int]] = {}
    for rank, number, noise in _generations(attempt):
        if noise in seen:
            before = "generation {1} of rank {0}".format(*seen[noise])
            raise NpuRlError(
                f"Generation {number} of rank {rank} draws the random numbers of {before}",
                where=str(attempt),
                why="The sampler's generator is seeded alike for both, so equal prompts get equal responses.",
            )
        seen[noise] = rank, number


def _generations(folder: Path) -> Iterator[tuple[int, int, str]]:
    """Yield rank, number (from 1) and digest of each generation that sampled."""
    for file in sorted(folder.glob(_FILES)):
        for number, text in enumerate(read_file(file).decode("utf-8", "replace").splitlines(), 1):
            try:
                line = parse_json(text)
                yield int(line["rank"]), number, str(line["noise"])
            except (ValueError, KeyError, TypeError):
                continue  # the last line of a killed process may be incomplete
