"""The facts about a run in run.json: recipe, code, environment and interpreter."""

from __future__ import annotations

from npu_rl.training.run.prepare import Prepared


def run_facts(prepared: Prepared) -> dict[str, object]:
    """Return the facts about recipe, code and interpreter for run.json."""
    lock = prepared.lock
    return {
        "recipe": prepared.loaded.recipe.name,
        **({} if prepared.loaded.bundled else {"recipe_path": str(prepared.loaded.path)}),
        "recipe_files": dict(prepared.loaded.files),
        "recipe_digest": prepared.loaded.digest,
        "overrides": list(prepared.loaded.overrides),
        "manifest": lock.manifest,
        "tree": lock.tree,
        "commit": lock.commit,
        "workspace": str(prepared.paths.root),
        "environment": prepared.environment.to_json(),
        "proven": prepared.drift is None,
        **({"overruled": dict(prepared.judgement.overruled)} if prepared.judgement.overruled else {}),
        **(
            {"accepted_faults": dict(prepared.judgement.accepted_faults)}
            if prepared.judgement.accepted_faults
            else {}
        ),
        **({"drift": prepared.drift.to_json()} if prepared.drift else {}),
        "interpreter": {
            "path": prepared.interpreter.path,
            "version": prepared.interpreter.version,
            "packages": dict(prepared.interpreter.packages),
        },
    }
