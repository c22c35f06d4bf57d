"""MindSpeed-RL's published configurations set a key that no class reads.

Called is RLConfig (mindspeed_rl/config_cls/rl_config.py@62e9928) on the rl_config of each published file, with its key
for shuffling set to true. "shuffles" is what the class has then.
"""

from __future__ import annotations

import importlib
import json
import logging
import sys
from pathlib import Path
from types import ModuleType

import yaml

FILES = ("grpo_qwen25_7b_A3.yaml", "grpo_qwen25_32b_A3.yaml")


def package(name: str, path: str) -> ModuleType:
    """Make a package importable without its __init__, which imports Ray and Megatron."""
    module = ModuleType(name)
    module.__path__ = [path]
    sys.modules[name] = module
    return module


def shuffles(config_class: type, file: str) -> bool:
    settings = yaml.safe_load(Path("configs", file).read_text(encoding="utf-8"))["rl_config"]
    (key,) = (name for name in settings if name.startswith("shuffle"))
    return bool(config_class(settings | {key: True}).shuffle_mini_batch)


def main() -> dict[str, bool]:
    package("mindspeed_rl", "mindspeed_rl")
    package("mindspeed_rl.config_cls", "mindspeed_rl/config_cls")
    package("mindspeed_rl.utils", "mindspeed_rl/utils").Loggers = logging.getLogger
    found = importlib.import_module("mindspeed_rl.config_cls.rl_config").RLConfig
    return {file: shuffles(found, file) for file in FILES}


if __name__ == "__main__":
    found = main()
    print(json.dumps({"fault": not all(found.values()), "shuffles": found}))
