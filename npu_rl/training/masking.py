"""What of a run's command and environment may be written down, and what must not."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

MASK = "***"

# Variables that shape a training run. Everything else a person's shell holds is their own.
_KEPT_PREFIXES = (
    *("ASCEND_", "ATB_", "CUDA_", "GLOO_", "HCCL_", "HF_", "HYDRA_", "LCAL_", "MALLOC_", "MASTER_", "NCCL_"),
    *("NPU_", "NPU_RL_", "OMP_", "PYTHON", "PYTORCH_", "RAY_", "SPT_", "TASK_QUEUE_", "TENSORBOARD_"),
    *("TOKENIZERS_", "TORCH", "TP_SOCKET_", "TRANSFORMERS_", "VERL_", "VLLM_"),
)
_KEPT_NAMES = {
    "HOME",
    "LANG",
    "LC_ALL",
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
    "PATH",
    "RANK",
    "TMPDIR",
    "WORLD_SIZE",
}
_SECRET_NAME = re.compile(r"TOKEN(?!IZ)|SECRET|PASSWORD|PASSWD|API_?KEY|CREDENTIAL", re.IGNORECASE)
# In a command, `max_token_len` and `max_num_batched_tokens` are sizes: the secret word must end the name.
_SECRET_KEY = re.compile(
    r"(?:^|[._-])(?:token|secret|password|passwd|api[_-]?key|credentials?)=|(?:secret|access|private)[_-]?key=",
    re.IGNORECASE,
)
# A password, or a token in the place of the user: `https://TOKEN@host`. `ssh://git@host` holds no secret.
_USER_AND_PASSWORD = re.compile(
    r"(\b[a-z][a-z0-9+.-]*://)[^\s/?#@]*:[^\s/?#]*@|(\bhttps?://)[^\s/?#]+@", re.IGNORECASE
)


def environment_to_write(environment: Mapping[str, str], inherited: Mapping[str, str]) -> dict[str, str]:
    """A run's environment as the record may show it, sorted: variables that npu-rl set (they are not as
    in `inherited`) or that are on the list above; secrets masked."""
    return {
        name: masked_value(name, value)
        for name, value in sorted(environment.items())
        if inherited.get(name) != value or name in _KEPT_NAMES or name.startswith(_KEPT_PREFIXES)
    }


def masked_value(name: str, value: str) -> str:
    """The value, unless its name says it is a secret; passwords in URLs are masked anyway."""
    return MASK if value and _SECRET_NAME.search(name) else without_passwords(value)


def command_to_write(command: Sequence[str]) -> list[str]:
    """A command's arguments, with the values of those that name a secret masked."""
    return [_argument(argument) for argument in command]


def _argument(argument: str) -> str:
    secret = _SECRET_KEY.search(argument)
    return without_passwords(argument[: secret.end()] + MASK if secret else argument)


def without_passwords(text: str) -> str:
    """The text with user and password of its URLs masked."""
    return _USER_AND_PASSWORD.sub(lambda found: f"{found[1] or found[2]}{MASK}@", text)
