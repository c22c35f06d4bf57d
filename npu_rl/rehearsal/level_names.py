"""The names of rehearsal levels. Apart from their selection, since that is costly to import."""

from __future__ import annotations

LEVELS = ("imports", "layout", "train", "rollout")
SETS = ("all", "quick")


def require_level(level: str) -> None:
    """Raise UsageError for an unknown level, with the one that was probably meant."""
    known = (*LEVELS, *SETS)
    if level in known:
        return
    from npu_rl.common.errors import UsageError
    from npu_rl.common.yaml_documents.suggest import did_you_mean

    raise UsageError(
        f"Unknown rehearsal level {level!r}{did_you_mean(level, known)}",
        hint=f"Name one of these: {', '.join(known)}",
    )
