"""The facts in run.json, which all attempts of a run share, and those on an attempt in its command.json."""

from __future__ import annotations

from pathlib import Path

from npu_rl.training.run.prepare import Prepared


def run_facts(prepared: Prepared) -> dict[str, object]:
    """Return the facts about code, environment and interpreter for run.json."""
    lock = prepared.lock
    return {
        "recipe": prepared.recipe.name,
        "manifest": lock.manifest,
        "tree": lock.tree,
        "commit": lock.commit,
        "workspace": str(prepared.paths.root),
        "environment": prepared.environment.to_json(),
        "interpreter": {
            "path": prepared.interpreter.path,
            "version": prepared.interpreter.version,
            "packages": dict(prepared.interpreter.packages),
        },
    }


def attempt_facts(prepared: Prepared) -> dict[str, object]:
    """Return what an attempt runs: its recipe, the overrides, exceptions, and the drift of an unproven tree."""
    loaded, judgement = prepared.loaded, prepared.judgement
    optional = {
        "recipe_path": None if loaded.bundled else str(loaded.path),
        "overruled": dict(judgement.overruled),
        "accepted_faults": dict(judgement.accepted_faults),
        "drift": prepared.drift and prepared.drift.to_json(),
    }
    return {
        "recipe": loaded.recipe.name,
        "recipe_files": dict(loaded.files),
        "recipe_digest": loaded.digest,
        "overrides": [_anywhere(word) for word in loaded.overrides],
        "steps": loaded.recipe.steps,
        "goal": loaded.recipe.reward.goal,
        **{name: value for name, value in optional.items() if value},
    }


def _anywhere(override: str) -> str:
    """Return KEY=VALUE with a path below the current folder made absolute, since --resume may be given elsewhere."""
    key, _, value = override.partition("=")
    return f"{key}={Path.cwd() / value}" if value.startswith(("./", "../")) else override
