"""Run MindSpeed-RL's own cli/preprocess_data.py, unchanged, without the trainer's packages.

    python npu_rl_mindspeed_rl_data.py CODE CONFIG [KEY=VALUE...]

`import mindspeed_rl` imports the whole trainer: Ray, vLLM, Megatron, MindSpeed-LLM (mindspeed_rl/__init__.py@62e9928).
The preprocessor needs none of them, so the tree's packages are entered without running their __init__.py.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from npu_rl_probe import LazyPackages


def main() -> None:
    """Run the script as if from its own command line."""
    code, *arguments = sys.argv[1:]
    sys.path.insert(0, code)
    sys.meta_path.insert(0, LazyPackages(Path(code)))
    script = Path(code) / "cli" / "preprocess_data.py"
    sys.argv = [str(script), *arguments]
    runpy.run_path(str(script), run_name="__main__")


if __name__ == "__main__":
    main()
