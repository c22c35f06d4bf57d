"""npu-rl schema"""

from __future__ import annotations

import sys


def run(recipe: bool) -> None:
    from npu_rl.config.json_schema import export_schema

    if recipe:
        from npu_rl.recipes.schema import Recipe

        sys.stdout.write(export_schema(Recipe, "npu-rl recipe"))
        return
    from npu_rl.manifest.schema import Manifest

    sys.stdout.write(export_schema(Manifest, "npu-rl manifest", appends=True))
