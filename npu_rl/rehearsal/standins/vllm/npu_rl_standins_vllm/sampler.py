"""Log probabilities at the sampling temperature.

vLLM 0.9.1 reports those of the raw logits (vllm/v1/sample/sampler.py:37), and the actor computes its own at the
recipe's temperature: at 0.9 the two differ where nothing is wrong. Top-k and top-p stay out of both. Real: sampling.
"""

from __future__ import annotations

from typing import Any

import torch
from npu_rl_standins.used import count

from .draws import over_temperature
from .noise import record_noise


def install_in(module: Any) -> None:
    """Make the sampler scale logits by each request's temperature before it reports log probabilities."""
    sampler = module.Sampler
    forward, compute_logprobs = sampler.forward, sampler.compute_logprobs

    def forward_at_temperature(self: Any, logits: torch.Tensor, sampling_metadata: Any) -> Any:
        record_noise(sampling_metadata)
        self._npu_rl_temperature = sampling_metadata.temperature
        return forward(self, logits, sampling_metadata)

    def compute_at_temperature(self: Any, logits: torch.Tensor) -> torch.Tensor:
        return compute_logprobs(self, scaled(logits, getattr(self, "_npu_rl_temperature", None)))

    sampler.forward, sampler.compute_logprobs = forward_at_temperature, compute_at_temperature


def scaled(logits: torch.Tensor, temperature: torch.Tensor | None) -> torch.Tensor:
    """Return the logits over the temperature; those of greedy requests as they are.

    Args:
        logits: (requests, vocabulary).
        temperature: (requests); None if all are greedy.
    """
    if temperature is None or bool((temperature == 1).all()):
        return logits
    count("vllm.log_probs_at_temperature")
    return over_temperature(logits, temperature)
