"""Log-probabilities of responses, from the model's logits in float64: log softmax(logits / temperature)."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from .counts import compared
from .difference import require_equal

LOG_PROBS = "log-probabilities from logits"
_TOLERANCE = 1e-5


def require_log_probs(
    got: torch.Tensor, logits: torch.Tensor, responses: torch.Tensor, mask: torch.Tensor, temperature: float
) -> None:
    """Report a token whose log-probability isn't that of the logits one position before it.

    Args:
        got: The trainer's, (rows, tokens).
        logits: The model's, before any temperature, from two positions before the response on: (rows, tokens + 2,
            vocabulary).
        responses: Tokens of the responses, (rows, tokens).
        mask: Which tokens belong to the response.
        temperature: That of the rollout.
    """
    kept = mask.bool()
    width = responses.shape[1]

    def log_probs(shift: int, divisions: int = 1) -> torch.Tensor:
        scaled = logits[:, 1 + shift : 1 + shift + width][kept]
        for _ in range(divisions):
            scaled = scaled / temperature  # in the logits' own dtype, as the trainer divides them
        scaled = scaled.double()
        tokens = responses[kept][:, None]
        found = torch.zeros(kept.shape, dtype=torch.float64)
        found[kept] = scaled.gather(-1, tokens)[:, 0] - scaled.logsumexp(-1)
        return found

    def mistakes() -> Mapping[str, torch.Tensor]:
        return {
            "the temperature divides twice": log_probs(0, 2),
            "the temperature is missing": log_probs(0, 0),
            "log-probabilities are one position early": log_probs(-1),
            "log-probabilities are one position late": log_probs(1),
        }

    want = log_probs(0)
    tolerance = _TOLERANCE * (1 + want.abs())
    require_equal(LOG_PROBS, got.double() * kept, want, tolerance, mistakes)
    compared(LOG_PROBS)
