"""A check that tokens are drawn by the request's settings: at its temperature, and among its top-k and top-p.

Reported log probabilities do not show it, for they are computed from the logits apart from the drawing
(`sampler.install_in`). A greedy request is left to vLLM.
"""

from __future__ import annotations

from typing import Any

import torch
from npu_rl_standins.used import count

GREEDY = 1e-5  # below it vLLM takes the likeliest token
_ROUNDING = 1e-3


class DrawError(RuntimeError):
    """A token was not drawn by its request's settings."""


def install_in(module: Any) -> None:
    """Check what the `Sampler` of vllm.v1.sample.sampler draws from, and what it draws."""
    sampler = module.Sampler
    sample = sampler.sample

    def sample_and_check(self: Any, logits: torch.Tensor, sampling_metadata: Any, *more: Any) -> Any:
        if sampling_metadata.all_greedy:
            return sample(self, logits, sampling_metadata, *more)
        wanted = over_temperature(logits, sampling_metadata.temperature)
        hook = self.topk_topp_sampler.register_forward_pre_hook(
            lambda _, given: require_scaled(given[0], wanted, sampling_metadata)
        )
        try:
            result = sample(self, logits, sampling_metadata, *more)
        finally:
            hook.remove()
        drawn = result[0] if isinstance(result, tuple) else result  # 0.18 returns log probabilities, too
        require_allowed(drawn, wanted, sampling_metadata)
        count("vllm.draws_checked")
        return result

    sampler.sample = sample_and_check


def over_temperature(logits: torch.Tensor, temperature: torch.Tensor) -> torch.Tensor:
    """Return the logits (requests, vocabulary) over each request's temperature; those of greedy ones as they are."""
    by = torch.where(temperature < GREEDY, torch.ones_like(temperature), temperature)
    return logits.detach().float() / by[:, None]


def require_scaled(given: torch.Tensor, wanted: torch.Tensor, metadata: Any) -> None:
    """Check the logits that tokens are drawn from; min-p has taken some away.

    Raises:
        DrawError: If they aren't those of the model over the temperature.
    """
    kept = torch.isfinite(given) & torch.isfinite(wanted) & (metadata.temperature >= GREEDY)[:, None]
    apart = torch.where(kept, (given.float() - wanted).abs(), torch.zeros_like(wanted))
    limit = _ROUNDING * wanted.nan_to_num(posinf=0.0, neginf=0.0).abs().amax(-1).clamp(min=1)
    wrong = (apart.amax(-1) > limit).nonzero()
    if len(wrong):
        row = int(wrong[0])
        raise DrawError(
            f"vLLM draws a token at another temperature than {float(metadata.temperature[row]):g}: "
            f"its logits differ by {float(apart[row].max()):.3g} from the model's over the temperature"
        )


def require_allowed(drawn: torch.Tensor, wanted: torch.Tensor, metadata: Any) -> None:
    """Check that each drawn token (requests) is among the top-k and top-p of its request.

    Raises:
        DrawError: If one isn't.
    """
    if metadata.top_k is None and metadata.top_p is None:
        return
    own = wanted.gather(-1, drawn.long()[:, None])
    above = wanted > own
    for row in (metadata.temperature >= GREEDY).nonzero().flatten().tolist():
        better = int(above[row].sum())
        most = wanted.shape[-1] if metadata.top_k is None else int(metadata.top_k[row])
        if better >= most:
            raise DrawError(f"vLLM drew token {better + 1} in order of likelihood, with top_k {most}")
        if metadata.top_p is None:
            continue
        probabilities = wanted[row].softmax(-1)
        top = torch.topk(probabilities, min(most, wanted.shape[-1])).values
        mass = float(probabilities[above[row]].sum() / top.sum())
        if not mass < float(metadata.top_p[row]) + _ROUNDING:
            raise DrawError(
                f"vLLM drew a token below {mass:.3g} of the probability, with top_p {float(metadata.top_p[row]):g}"
            )
