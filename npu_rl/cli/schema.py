"""npu-rl schema"""

from __future__ import annotations

import sys


def run(recipe: bool) -> None:
    if recipe:
        from npu_rl.recipes.json_schema import recipe_schema

        sys.stdout.write(recipe_schema())
        return
    from npu_rl.manifest.json_schema import export_schema

    sys.stdout.write(export_schema())
