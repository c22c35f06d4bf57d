"""A stack with everything that setup lays: dist-info, the runtime, a whole checkout, odd names, patches without ids."""

from __future__ import annotations

from pathlib import Path

from tests.support import assert_told, ok
from tests.workspace.stack import build, git_in


def test_a_patch_of_a_whole_checkout_keeps_what_is_not_laid(tmp_path: Path) -> None:
    stack = build(tmp_path)
    paths = stack.make(tmp_path / "w")

    def git(*args: str) -> str:
        return git_in(paths.code, stack.env, *args)

    def beside() -> dict[str, bytes]:
        found = [tmp_path / "old.yaml", *sorted((tmp_path / "patches").rglob("*"))]
        return {str(p): p.read_bytes() for p in found if p.is_file()}

    export = ("patches", "export", "-w", paths.root)
    before = beside()
    assert "nothing to write" in ok(stack.run(*export)).stdout
    assert beside() == before
    git("commit", "-q", "--allow-empty", "-m", "Between")
    ours = git("rev-parse", "HEAD")
    runtime = git("log", "--format=%H", "--grep", "Lay the runtime")
    git("checkout", "-q", f"{runtime}^")
    git("cherry-pick", "--allow-empty", ours, runtime)
    assert_told(stack.run(*export), "is between npu-rl's own steps", "before `Lay the runtime`", code=3)
    git("checkout", "-q", "main")
    git("reset", "-q", "--hard", "HEAD^")

    (paths.code / "gamma/__init__.py").write_text("G = 2\n")
    git("commit", "-qa", "--fixup", (at := git("log", "--format=%H", "--grep", "Apply 0001-zwei")))
    git("-c", "sequence.editor=:", "rebase", "-qi", "--autosquash", f"{at}^")
    (paths.code / "alpha/core.py").write_text(
        (paths.code / "alpha/core.py").read_text().replace("line_30 = 30", "line_30 = 31")
    )
    (paths.code / "alpha/two words.py").write_text("ODD = 2\n")
    (paths.code / "alpha/größe_名.py").unlink()
    git("commit", "-qam", "Thirty and odd names")
    tree = git("rev-parse", "HEAD^{tree}")
    ok(stack.run(*export))
    zwei = (tmp_path / "patches/gamma/0001-zwei.patch").read_text()
    assert "+zwei" in zwei and "+G = 2" in zwei and zwei.startswith("Subject: Gamma builds\n")
    names = (tmp_path / "patches/alpha/series").read_text().split()
    assert names == ["0001-ten.patch", "0002-half.patch", "0003-thirty-and-odd-names.patch"]
    assert (tmp_path / "old.yaml").read_bytes() == before[str(tmp_path / "old.yaml")]
    ok(stack.run("lock", "-m", stack.old))
    ok(stack.setup(paths.root))
    assert git("rev-parse", "HEAD^{tree}") == tree
