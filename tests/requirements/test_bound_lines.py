"""The line of a bound in its file."""

from __future__ import annotations

from pathlib import Path

import pytest

from npu_rl.common.bundled import bundled_manifests
from npu_rl.common.errors import LockError
from npu_rl.stack.lock import lock_model
from npu_rl.stack.requirements.bound_lines import line_of, lines_path, read_lines

SCRIPT = """\
# numpy>=2.0.0 is not this line
install_requires = [
    "ray[default]>=2.41.0",
    "numpy >= 2.0.0",
    "my-numpy>=2.0.0",
]
python_requires=">=3.10"
"""


def test_lines_are_those_with_the_words() -> None:
    wanted = {"numpy>=2.0.0": 4, "my-numpy>=2.0.0": 5, "ray[default]>=2.41.0": 3, "ray>=2.41.0": 3}
    wanted |= {"python>=3.10": 7, "numpy<2": None}
    assert {text: line_of(text, SCRIPT) for text in wanted} == wanted


def test_every_bound_of_a_bundled_lock_has_its_line(tmp_path: Path) -> None:
    for manifest in bundled_manifests().values():
        lock = lock_model.read(lock_model.lock_path(manifest))
        lines = read_lines(manifest, lock)
        for name, component in lock.components.items():
            for file, texts in (component.declares or {}).items():
                assert set(texts) == set(lines.get(name, {}).get(file, ())), (manifest, name, file)
    assert read_lines(tmp_path / "mine.yaml", lock) == {}
    lines_path(tmp_path / "mine.yaml").write_text("[1]")
    with pytest.raises(LockError):
        read_lines(tmp_path / "mine.yaml", lock)
