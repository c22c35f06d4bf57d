"""MindSpeed-RL's published configurations set a key that no class reads.

Called is RLConfig (mindspeed_rl/config_cls/rl_config.py@62e9928) on the rl_config of each published file, with its key
for shuffling set to true. "shuffles" is what the class has then.
"""

from __future__ import annotations

import importlib
import logging
from pathlib import Path
from typing import Any

import yaml
from witness_common import make_module, make_packages, show

FILES = ("grpo_qwen25_7b_A3.yaml", "grpo_qwen25_32b_A3.yaml")


def shuffles(config_class: type, file: str) -> bool:
    settings = yaml.safe_load(Path("configs", file).read_text(encoding="utf-8"))["rl_config"]
    (key,) = (name for name in settings if name.startswith("shuffle"))
    return bool(config_class(settings | {key: True}).shuffle_mini_batch)


def main() -> dict[str, Any]:
    make_packages("mindspeed_rl", "mindspeed_rl.config_cls")  # their own __init__ imports Ray and Megatron
    make_module("mindspeed_rl.utils", Loggers=logging.getLogger)
    config_class = importlib.import_module("mindspeed_rl.config_cls.rl_config").RLConfig
    found = {file: shuffles(config_class, file) for file in FILES}
    return {"fault": not all(found.values()), "shuffles": found}


if __name__ == "__main__":
    show(main)
