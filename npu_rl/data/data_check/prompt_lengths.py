"""Lengths of prompts in tokens, counted by a process that has transformers."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from npu_rl.common.errors import HostError, UsageError
from npu_rl.common.process import run_quietly
from npu_rl.common.python_roots import INJECTED

_TIMEOUT = 3600.0  # seconds; 40,000 prompts of deepscaler take well under a minute


def require_tokenizer(folder: Path) -> None:
    """Raise UsageError unless the folder has a tokenizer."""
    if not any((folder / name).is_file() for name in ("tokenizer_config.json", "tokenizer.json")):
        raise UsageError(
            "The folder has no tokenizer",
            where=str(folder),
            why="It has neither tokenizer_config.json nor tokenizer.json.",
            hint="Pass the model's folder in Hugging Face's layout.",
        )


def prompt_lengths(
    python: str, tokenizer: Path, files: Sequence[Path], limit: int, prompt_key: str = "prompt"
) -> dict[str, Any]:
    """Return the counts of each file by its name, and the limit.

    Args:
        python: An interpreter with transformers and pyarrow.
        limit: Maximum tokens of a prompt; 0 for no limit.

    Raises:
        HostError: If the interpreter lacks a package, or the tokenizer can't be loaded.
    """
    script = INJECTED / "npu_rl_prompt_lengths.py"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    finished = run_quietly(
        [python, str(script), str(tokenizer), prompt_key, str(limit), *map(str, files)],
        {**environment, "PYTHONDONTWRITEBYTECODE": "1"},
        Path(os.sep),
        _TIMEOUT,
    )
    if finished.code != 0:
        why = finished.stderr.strip().rpartition("\n\n")[2].rpartition("Error: ")[2][-500:]
        missing = "No module named" in why
        ours = Path(python) == Path(sys.executable)
        packages = "'npu-rl[data]'" if ours else "transformers pyarrow"
        install = f"{shlex.quote(python)} -m pip install {packages}"
        raise HostError(
            "The prompts' tokens can't be counted",
            where=f"{python}, tokenizer {tokenizer}",
            why=why or f"exit status {finished.code}",
            hint=f"Install what is missing: {install}\nor name an interpreter that has it: --python PATH"
            if missing
            else "Pass the folder of a tokenizer that transformers can load, with its chat template.",
        )
    counts = json.loads(finished.stdout.splitlines()[-1])
    return {"limit": limit or None, "files": counts}
