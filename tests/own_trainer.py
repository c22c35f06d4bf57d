"""A made-up trainer whose keys are its own: a code tree of a few files, and a recipe for it."""

from __future__ import annotations

from pathlib import Path

BASE = """
from own.utils import Loggers

logger = Loggers("config class")

class BaseConfig:
    def update(self, config_dict, model_config_dict=None):
        if "model" in config_dict:
            self.update(model_config_dict[config_dict["model"]])
        for key, value in config_dict.items():
            if key == "model":
                continue
            key = key.replace("-", "_")
            if hasattr(self, key):
                setattr(self, key, value)
            else:
                logger.warning(f"The key: {key} is missing")
"""
TRAINING = """
from own.config.base import BaseConfig

class TrainingConfig(BaseConfig):
    def __init__(self, training_config, model_config):
        self.train_iters = None
        self.save_interval = None
        self.seed = 1234
        self.load = None
        self.save = None
        self.finetune = False
        self.data_path = None
        self.num_layers: int = 1
        self.update(training_config, model_config)
"""
RL = """
from own.config.base import BaseConfig

class RLConfig(BaseConfig):
    def __init__(self, config_dict):
        self.npus = None
        self.shuffle_mini_batch = False
        self.sampling = {"top_k": 50}
        self.update(config_dict)
        self.n_samples_per_prompt = config_dict.get("n_samples_per_prompt", 1)
"""
TRAIN = """
import hydra
from own.heavy import Engine
from own.config.training import TrainingConfig
from own.config.rl import RLConfig
from own.utils import Loggers

logger = Loggers("train")
LIMIT = 2

def parse(config):
    training = TrainingConfig({**config.get("training"), **config.get("actor")}, config.get("model"))
    rl = RLConfig(config.get("rl"))
    validate(training, rl)
    return {"training": training, "rl": rl}


def validate(training, rl):
    if training.train_iters % LIMIT:
        raise ValueError(f"train_iters {training.train_iters} must be divisible by {LIMIT}")
    if rl.npus is None:
        raise ValueError("npus is not set")

@hydra.main(config_path="../configs", config_name="own", version_base=None)
def main(config):
    Engine(parse(config))

if __name__ == "__main__":
    main()
"""
TREE = {
    "own/__init__.py": "from .heavy import Engine\nfrom .config.rl import RLConfig\n",
    "own/heavy.py": "import a_package_that_only_the_devices_have\n\nclass Engine: ...\n",
    "own/utils/__init__.py": "from .grader import grade\nfrom .loggers import Loggers\n",
    "own/utils/grader.py": "import a_package_that_only_the_devices_have\n\ndef grade(): ...\n",
    "own/utils/loggers.py": "import logging\n\ndef Loggers(name):\n    return logging.getLogger(name)\n",
    "own/config/__init__.py": "from .rl import RLConfig\n",
    "own/config/base.py": BASE,
    "own/config/training.py": TRAINING,
    "own/config/rl.py": RL,
    "own/train.py": TRAIN,
    "configs/model/small.yaml": "small:\n  num_layers: 2\n",
    "configs/own.yaml": """
defaults:
  - model:
      - small

training:
  model: small
  train_iters: 1000
  save_interval: 200
  data_path: /data/prompts
actor:
  load: /weights
  finetune: true
rl:
  npus: 16
  shuffle_minibatch: false
  n_samples_per_prompt: 8
  sampling: {top_k: -1}
profiler: {on: false}
""",
}
RECIPE = """
schema: 1
name: own
title: A trainer with keys of its own
manifest: quickstart
device: cpu
steps: 4
trainer:
  module: own.train
  config: own
  config_path: configs
  keys:
    steps: training.train_iters
    cluster: {world: rl.npus}
    checkpoint: {every: training.save_interval, folder: actor.save, load: actor.load}
  resume: {actor.finetune: false}
  sections:
    training: own.config.training.TrainingConfig
    actor: own.config.training.TrainingConfig
    model.*: own.config.training.TrainingConfig
    rl: own.config.rl.RLConfig
  paths: [actor.load, training.data_path]
  validate: own.train.parse
  log: iterations
  metrics: {critic/score/mean: grpo/score/mean, timing_s/step: timing/all}
cluster: {dies: 2}
checkpoint: {every: 2}
"""


def write_recipe(folder: Path, more: str = "") -> Path:
    """Write the recipe, with more lines at its end."""
    path = folder / "own-recipe.yaml"
    path.write_text(RECIPE + more, encoding="utf-8")
    return path
