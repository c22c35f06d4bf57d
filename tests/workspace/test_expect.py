"""The anchor outside the workspace: what its owner can forge, `--expect` finds."""

from __future__ import annotations

import dataclasses
import hashlib
import json

import pytest

from npu_rl.stack.lock import lock_model
from npu_rl.workspace.folder.workspace_paths import WorkspacePaths
from tests.in_process import run_here
from tests.support import assert_told
from tests.workspace.stack import Stack, receipt_with, record_as_proven


@pytest.fixture(scope="module")
def digest(stack: Stack) -> str:
    """As it stands in the lock that people commit."""
    found: str = json.loads(lock_model.lock_path(stack.old).read_text())["digest"]
    return found


def forge_lock(paths: WorkspacePaths) -> None:
    """A lock with another environment, and its digest made anew: it has no key."""
    lock = lock_model.read(paths.lock)
    forged = dataclasses.replace(lock, env={**lock.env, "LD_PRELOAD": "/evil.so"})
    paths.lock.write_text(lock_model.dump(forged), encoding="utf-8")


def forge_receipt(paths: WorkspacePaths) -> None:
    """The receipt says that it was laid from the forged lock."""
    digest = json.loads(paths.lock.read_text())["digest"]
    receipt_with(paths, lambda body: body["setup"].update(lock=digest))


def test_every_command_that_proves_prints_it(stack: Stack, paths: WorkspacePaths, digest: str) -> None:
    for command in (["setup", "-m", str(stack.old)], ["verify"], ["status"]):
        words = [*command, "-w", str(paths.root)]
        assert digest in run_here(words, stack.env).stdout
        assert json.loads(run_here([*words, "--json"], stack.env).stdout)["lock_digest"] == digest


def test_the_lock_it_was_laid_from_is_held_against_the_lock(stack: Stack, paths: WorkspacePaths) -> None:
    """The environment of a run comes from lock.json, and its tree may be right all the same."""
    forge_lock(paths)
    for options in ((), ("--deep",)):
        assert_told(stack.run("verify", "-w", paths.root, *options), "does not match its lock", code=3)
    assert stack.lay(paths.root).returncode == 0
    assert stack.run("verify", "-w", paths.root).returncode == 0


def test_a_forged_script_and_receipt(stack: Stack, paths: WorkspacePaths, digest: str) -> None:
    """`activate` is no file of a tree: what it should be follows from the lock alone."""
    script = paths.root / "activate"
    script.write_text(script.read_text() + "export LD_PRELOAD=/evil.so\n")
    forged = hashlib.sha256(script.read_bytes()).hexdigest()
    receipt_with(paths, lambda body: body["setup"].update(activate=forged))
    assert stack.run("verify", "--deep", "-w", paths.root).returncode == 0  # as documented
    done = stack.run("verify", "-w", paths.root, "--expect", digest)
    assert done.returncode == 3
    assert "activate" in done.stdout


def test_a_forged_lock_and_receipt(stack: Stack, paths: WorkspacePaths, digest: str) -> None:
    forge_lock(paths)
    forge_receipt(paths)
    assert (
        stack.run("verify", "--deep", "-w", paths.root).returncode == 0
    )  # as documented: it needs the anchor
    for command in (["verify"], ["train", "quickstart", "--dry-run"]):
        done = stack.run(*command, "-w", paths.root, "--expect", digest)
        assert_told(
            done,
            "from another lock than the expected one",
            digest,
            json.loads(paths.lock.read_text())["digest"],
            code=3,
        )


def test_with_the_anchor_every_byte_is_read(stack: Stack, paths: WorkspacePaths, digest: str) -> None:
    """A record of the last proof that was forged hides a change from a quick look only."""
    assert stack.run("verify", "-w", paths.root, "--expect", digest).returncode == 0
    (paths.code / "beta/b.py").write_text("B = 2\n")
    record_as_proven(paths, "beta/b.py")
    assert stack.run("verify", "-w", paths.root).returncode == 0
    done = stack.run("verify", "-w", paths.root, "--expect", digest)
    assert done.returncode == 3
    assert "code/beta/b.py" in done.stdout


def test_what_is_no_digest_is_a_mistake_of_usage(stack: Stack, template: WorkspacePaths) -> None:
    for wrong in ("", "A" * 64, "0" * 63, "0" * 40, "0" * 64 + "\n", "ENV:" + "0" * 64):
        done = run_here(["verify", "-w", template.root, "--expect", wrong], stack.env)
        assert_told(done, "Invalid lock digest", code=2)
    for wrong in ("env:", "env:" + "0" * 63, "env:" + "A" * 64):
        done = run_here(["verify", "-w", template.root, "--expect", wrong], stack.env)
        assert_told(done, "Invalid environment id", code=2)
    two = [word for digit in "01" for word in ("--expect", f"env:{digit * 64}")]
    assert_told(run_here(["verify", "-w", template.root, *two], stack.env), "Two environment ids", code=2)
