"""Values that vLLM's engine refuses where verl's server passes them on, as verl 0.8 and vLLM 0.18 do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from npu_rl.recipes.trainer_code.config_location import ConfigLocation
from npu_rl.recipes.trainer_keys.key_resolver import KeyResolver
from tests.code_trees import LIBRARIES, VERL, lay

R = "actor_rollout_ref.rollout"
E = f"{R}.engine_kwargs.vllm"
C = f"{E}.compilation_config"
SERVER = """
    async def launch_server(self):
        args = {
            "dtype": self.config.dtype,
            "load_format": self.config.load_format,
            "seed": self.replica_rank + self.config.seed,
            **engine_kwargs,
        }
"""
ARGUMENTS = """
from typing import Literal
from vllm.config.compilation import CompilationConfig, Loose

ModelDType = Literal["auto", "half", "float16"]
RunnerType = Literal["generate", "pooling"]

class EngineArgs:
    model: str
    dtype: ModelDType = "auto"
    load_format: str = "auto"
    seed: int = 0
    runner: Literal["auto", RunnerType] = "auto"
    unknown: Literal["auto", Missing] = "auto"
    compilation_config: CompilationConfig = None
    loose: Loose = None
    either: dict | CompilationConfig = None
"""
UTILS = """
from pydantic import ConfigDict
from pydantic.dataclasses import dataclass

def config(cls=None, *, config=None):
    merged_config = ConfigDict(extra="forbid")
    return dataclass(cls, config=merged_config)
"""
COMPILATION = """
import enum
from dataclasses import dataclass, field
from pydantic import ConfigDict, field_validator
from vllm.config.utils import config

class Mode(enum.IntEnum):
    NONE = 0
    VLLM_COMPILE = 3

class Graphs(enum.Enum):
    NONE = 0
    FULL = 2
    FULL_DECODE_ONLY = (FULL, NONE)

class Shapes(str, enum.Enum):
    BACKED = "backed"

@config
class PassConfig:
    fuse: bool = None
    level: int = 0

@config(config=ConfigDict(arbitrary_types_allowed=True))
class CompilationConfig:
    mode: Mode = None
    cudagraph_mode: Graphs | None = None
    shapes: Shapes = Shapes.BACKED
    sizes: list[int] | None = None
    options: dict = field(default_factory=dict)
    pass_config: PassConfig = field(default_factory=PassConfig)
    traced: set[str] = field(default_factory=set, init=False)
    names: list[str] = None

    @field_validator("mode", mode="before")
    @classmethod
    def validate_mode_before(cls, value):
        if isinstance(value, str):
            mode_name = value.upper()
            if mode_name not in Mode.__members__:
                raise ValueError
            return Mode[mode_name]
        return value

    @field_validator("cudagraph_mode", mode="before")
    @classmethod
    def validate_cudagraph_mode_before(cls, value):
        if isinstance(value, str):
            if value.lower() == "auto":
                return None
            return Graphs[value.upper()]
        return value

    @field_validator("names", mode="before")
    @classmethod
    def _to_list(cls, value):
        return value.split(",") if isinstance(value, str) else value

@dataclass
class Loose:
    known: int = 0
"""
LOADERS = """
_LOAD_FORMAT_TO_MODEL_LOADER: dict[str, type] = {
    "auto": DefaultModelLoader,
    "dummy": DummyModelLoader,
}
"""
ASKS = """
import json, sys
from pydantic import TypeAdapter, ValidationError
from vllm.config.compilation import CompilationConfig

def accepted(text):
    try:
        TypeAdapter(CompilationConfig).validate_json(text)
    except (ValidationError, KeyError):
        return False
    return True

print(json.dumps([accepted(text) for text in json.load(sys.stdin)]))
"""
TREE = {
    "verl/trainer/config/ppo_trainer.yaml": VERL["verl/trainer/config/ppo_trainer.yaml"].replace(
        "    name: vllm\n",
        "    name: vllm\n    mode: async\n    dtype: auto\n    load_format: dummy\n    seed: 0\n",
    ),
    "verl/workers/rollout/vllm_rollout/vllm_async_server.py": SERVER,
    "vllm/engine/arg_utils.py": ARGUMENTS,
    "vllm/config/utils.py": UTILS,
    "vllm/config/compilation.py": COMPILATION,
    "vllm/model_executor/model_loader/__init__.py": LOADERS,
    "vllm_ascend/loader.py": '@register_model_loader("rfork")\nclass Loader: ...\n',
}


@pytest.fixture(scope="module")
def code(tmp_path_factory: pytest.TempPathFactory) -> Path:
    without = {name: text for name, text in {**VERL, **LIBRARIES}.items() if name != "vllm/config.py"}
    return lay(tmp_path_factory.mktemp("tree") / "code", {**without, **TREE})


def fault(code: Path, key: str, value: object, **more: object) -> str:
    """Why a value of a key is refused; empty if it is not."""
    resolver = KeyResolver(code, ConfigLocation("verl.trainer.main_ppo", "ppo_trainer"), {key: value, **more})
    resolution = resolver.resolve(key)
    if not resolution.known:
        return f"{resolution.message}; {resolution.right}"
    return resolution.expected.mismatch(value) or str(resolver.find_refused(key, value) or "")


REFUSED = [
    (f"{C}.cudagraph_mod", "FULL", f"CompilationConfig has no field cudagraph_mod; {C}.cudagraph_mode"),
    (f"{C}.traced", [], "CompilationConfig has no field traced; "),
    (f"{C}.pass_config.fuze", True, f"PassConfig has no field fuze; {C}.pass_config.fuse"),
    (f"{C}.pass_config.fuse", "maybe", "must be true or false, not 'maybe'"),
    (f"{C}.sizes", 8, "must be a list, not 8"),
    (f"{C}.cudagraph_mode", "FULLL", "must be one of NONE, FULL, FULL_DECODE_ONLY, not 'FULLL'"),
    (f"{C}.cudagraph_mode", 7, "must be one of 0, 2, not 7"),
    (f"{C}.mode", 9, "must be one of 0, 3, not 9"),
    (f"{C}.mode", "compile", "must be one of NONE, VLLM_COMPILE, not 'compile'"),
    (f"{C}.shapes", "BACKED", "must be one of backed, not 'BACKED'"),
    (f"{E}.load_format", "dummmy", "must be one of auto, dummy, rfork, not 'dummmy'"),
    (f"{R}.load_format", "dummy_megatron", "must be one of auto, dummy, rfork, not 'dummy_megatron'"),
    (f"{E}.runner", "train", "must be one of auto, generate, pooling, not 'train'"),
    (f"{R}.dtype", "fp16", "must be one of auto, half, float16, not 'fp16'"),
]


@pytest.mark.parametrize(("key", "value", "why"), REFUSED)
def test_vllm_refuses(code: Path, key: str, value: object, why: str) -> None:
    assert fault(code, key, value).endswith(why)


ACCEPTED = [
    (f"{C}.cudagraph_mode", "full_decode_only"),
    (f"{C}.cudagraph_mode", "auto"),
    (f"{C}.cudagraph_mode", 2),
    (f"{C}.mode", "vllm_compile"),
    (f"{C}.mode", 3),
    (f"{C}.shapes", "backed"),
    (f"{C}.names", "a,b"),
    (f"{C}.options.anything", "x"),
    (f"{C}.pass_config.level", True),
    (f"{E}.loose.anything", 1),
    (f"{E}.either.anything", 1),
    (f"{E}.load_format", "RFORK"),
    (f"{R}.load_format", "Auto"),
    (f"{R}.load_format", "dummy"),
    (f"{E}.runner", "pooling"),
    (f"{E}.unknown", "other"),
    (f"{R}.dtype", "half"),
    (f"{E}.dtype", "half"),
]


@pytest.mark.parametrize(("key", "value"), ACCEPTED)
def test_vllm_accepts(code: Path, key: str, value: object) -> None:
    """Names in any case where a validator looks them up, true for a number, and all that no class forbids."""
    assert fault(code, key, value) == ""


def test_pydantic_says_the_same(code: Path) -> None:
    """As vLLM's argument parser asks it: `TypeAdapter(cls).validate_json` (vllm/engine/arg_utils.py:291@v0.18.0)."""
    asked = [(key, value) for key, value, *_ in (*REFUSED, *ACCEPTED) if key.startswith(f"{C}.")]
    nested = []
    for key, value in asked:
        for name in reversed(key.removeprefix(f"{C}.").split(".")):
            value = {name: value}
        nested.append(json.dumps(value))
    done = subprocess.run(
        [sys.executable, "-B", "-c", ASKS], input=json.dumps(nested), capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONPATH": str(code)},
    )  # fmt: skip
    verdicts = json.loads(done.stdout)
    assert [bool(fault(code, *one)) for one in asked] == [not accepted for accepted in verdicts]


def test_the_engines_argument_goes_over_the_rollouts_key(code: Path) -> None:
    assert fault(code, f"{R}.dtype", "fp16", **{f"{E}.dtype": "half"}) == ""
    assert fault(code, f"{R}.dtype", "fp16", **{f"{E}.dtype": None}) != ""
