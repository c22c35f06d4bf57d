"""Twin functions: a hunk goes where its heading says, or nowhere."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import pytest

from npu_rl.common.errors import PatchError
from npu_rl.stack.compose.assemble import assemble
from npu_rl.stack.compose.git_trees import scratch_trees
from npu_rl.stack.lock.lock_model import Lock
from tests.resolve.world import World, component

BODY = "    x = prepare()\n    x = finish(x)\n    return x\n"
PAD = "".join(f"PAD{n} = {n}\n" for n in range(150))


def function(name: str, body: str = BODY, head: str = "def {}():\n    log()\n    log()\n    log()\n") -> str:
    return head.format(name) + body + "\n\n"


def hunk(at: int, heading: str, indent: str = "") -> str:
    lines = [
        " {}    x = prepare()",
        "-{}    x = finish(x)",
        "+{}    x = finish(x, npu=True)",
        " {}    return x",
    ]
    return f"@@ -{at},3 +{at},3 @@ {heading}\n" + "".join(line.format(indent) + "\n" for line in lines)


def patch(*hunks: str, path: str = "pkg/a.py") -> str:
    return f"--- a/{path}\n+++ b/{path}\n" + "".join(hunks)


def locked(world: World, content: str, text: str, path: str = "pkg/a.py") -> Lock:
    up = world.upstream({path: content})
    world.write("x.patch", text)
    entry = component(up, up.id("main"), patches=[{"path": "./x.patch"}])
    return world.locked({"up": entry})


ONE_TWO = function("one") + PAD + function("two")
ONE_AT, TWO_AT = 5, 5 + 150 + 9


def test_a_hunk_that_fits_exactly_in_the_wrong_twin(world: World) -> None:
    swapped = function("two") + PAD + function("one")
    with pytest.raises(PatchError, match="x does not apply to up") as error:
        locked(world, swapped, patch(hunk(ONE_AT, "def one():")))
    assert (
        f"It fits at line {ONE_AT}, below `def two():` (line 1); its heading is `def one():` (line 160)."
        in str(error.value)
    )
    assert "Nothing was changed" in str(error.value)
    lock = locked(world, ONE_TWO, patch(hunk(ONE_AT, "def one():")))
    assert world.compose(lock).code["pkg/a.py"].decode() == ONE_TWO.replace(
        "finish(x)", "finish(x, npu=True)", 1
    )


@pytest.mark.parametrize("heading", ["", "def two():", "async def two(", "PAD149 = 149"])
def test_a_heading_that_fits_or_says_nothing(world: World, heading: str) -> None:
    content = ONE_TWO.replace("def two", "async def two") if "async" in heading else ONE_TWO
    at = TWO_AT
    if heading.startswith("PAD"):  # of a diff that counts any line in the first column: above `def two`
        content = content.replace("def two():\n", "@decorated(\n)\n")
        at += 1
    lock = locked(world, content, patch(hunk(at, heading)))
    assert lock.components["up"].patches[0].hunks == 1


def test_a_heading_may_be_removed_where_the_place_is_right(world: World) -> None:
    """What the hint advises."""
    renamed = ONE_TWO.replace("def one", "def first")
    with pytest.raises(PatchError) as error:
        locked(world, renamed, patch(hunk(ONE_AT, "def one():")))
    assert "which is not in the file" in str(error.value) and "remove the heading" in str(error.value)
    assert locked(world, renamed, patch(hunk(ONE_AT, "")))


def test_a_lock_made_before_stays_as_it_is(world: World) -> None:
    """What an older npu-rl locked is proven by its trees: `setup` holds no heading against it."""
    swapped = function("two") + PAD + function("one")
    lock = locked(world, swapped, patch(hunk(ONE_AT, "")))
    made = world.compose(lock)
    (first,) = lock.components["up"].patches
    world.write("x.patch", patch(hunk(ONE_AT, "def one():")))
    digest = hashlib.sha256(patch(hunk(ONE_AT, "def one():")).encode()).hexdigest()
    up = replace(lock.components["up"], patches=(replace(first, sha256=digest),))
    old = replace(lock, components={"up": up})
    with scratch_trees(world.empty_store(), borrowed=made.git.alternates) as trees:
        tree, commit = assemble(trees, old)  # the message of the patch's commit has its hash
    assert world.compose(replace(old, tree=tree, commit=commit)).code == made.code
