"""Modules of names: what a witness imports of them, and what stays the tree's own."""

from __future__ import annotations

from pathlib import Path

from tests.standins.injected.test_used import run

CODE = """
import os, sys
os.chdir({folder!r}); sys.path.insert(0, {folder!r})
from npu_rl_standins.named_modules import NamedModules
sys.meta_path.insert(0, NamedModules("engine", "kernels.fused", own=("engine.worker",), version="2", base=dict))
import engine.layers.moe as moe
from engine.worker import OWN
from kernels import fused
assert issubclass(moe.Layer, dict) and moe.Layer is moe.Layer and moe.config() is None
assert moe.__version__ == moe.deeper.__version__ == "2" and not hasattr(moe, "__wrapped__")
assert OWN == 1 and fused.Kernel and sys.modules['kernels'].MINE == 3
"""


def test_only_the_named_roots_are_names(tmp_path: Path) -> None:
    for file, text in (("engine/worker.py", "OWN = 1\n"), ("kernels/__init__.py", "MINE = 3\n")):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text(text)
    done = run(CODE.format(folder=str(tmp_path)), None)
    assert (done.returncode, done.stderr) == (0, "")
