"""Signatures of a bundle's list of hashes, made and verified by ssh-keygen."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import IO

from npu_rl.common.bounded import read_file
from npu_rl.common.disk import disk_errors
from npu_rl.common.errors import BundleError, HostError
from npu_rl.common.process import CompletedCommand, run_quietly
from npu_rl.stack.bundles.bundle_names import LIST, SIGNATURE

NAMESPACE = "npu-rl-bundle"
LARGEST_SIGNATURE = 1 << 16  # bytes
_LARGEST_SIGNERS = 1 << 20  # bytes
_ONE = "one_signer"
_TIMEOUT = 60.0  # seconds; an agent may have to ask its user


def sign(data: bytes, key: Path) -> bytes:
    """Return a signature of `data`.

    Args:
        key: A private key without passphrase, or the public one of a key that ssh-agent holds.

    Raises:
        BundleError: If ssh-keygen refuses the key.
        HostError: If there is no ssh-keygen.
    """
    with tempfile.TemporaryDirectory(prefix="npu-rl-sign-") as name:
        folder = Path(name)
        (folder / LIST).write_bytes(data)
        done = _run(["-Y", "sign", "-f", str(key.absolute()), "-n", NAMESPACE, LIST], folder)
        made = folder / SIGNATURE
        if done.code or not made.is_file():
            raise BundleError(
                "The bundle can't be signed",
                where=str(key),
                why=_words(done),
                hint="Name a private key without passphrase, or the .pub file of a key in ssh-agent.",
            )
        return made.read_bytes()


def verify(data: bytes, signature: bytes, allowed_signers: Path) -> str:
    """Return the name that the file of allowed signers gives the signer of `data`.

    Args:
        allowed_signers: In the form of ssh-keygen(1), ALLOWED SIGNERS.

    Raises:
        BundleError: If no allowed signer signed it.
        HostError: If there is no ssh-keygen.
    """
    signers = str(allowed_signers.absolute())
    if not allowed_signers.is_file():
        raise BundleError("Missing file of allowed signers", where=signers)
    with disk_errors(allowed_signers):
        lines = read_file(allowed_signers, _LARGEST_SIGNERS).splitlines(keepends=True)
    with tempfile.TemporaryDirectory(prefix="npu-rl-verify-") as name:
        folder = Path(name)
        (folder / SIGNATURE).write_bytes(signature)
        (folder / LIST).write_bytes(data)
        who, done = _signer(folder, signers)
        if done.code and who:
            # ssh-keygen takes a key's first line, which may be for another namespace, such as git's.
            for line in lines:
                (folder / _ONE).write_bytes(line)
                one, tried = _signer(folder, _ONE)
                if one and not tried.code:
                    return one
        if done.code or not who:
            raise BundleError(
                "The bundle is not signed by an allowed signer",
                where=signers,
                why=_words(done),
                hint="Get the bundle, or the key of who signed it, from its maker again.",
            )
        return who


def _signer(folder: Path, signers: str) -> tuple[str, CompletedCommand]:
    """Return who signed the list in a folder, "" if no signer has the key, and ssh-keygen's verdict."""
    found = _run(["-Y", "find-principals", "-s", SIGNATURE, "-f", signers], folder)
    who = found.stdout.splitlines()[0] if found.code == 0 and found.stdout else ""
    words = ["-Y", "verify", "-f", signers, "-I", who, "-n", NAMESPACE, "-s", SIGNATURE]
    return who, _run_with_list(words, folder) if who else found


def _run_with_list(words: list[str], folder: Path) -> CompletedCommand:
    with (folder / LIST).open("rb") as data:
        return _run(words, folder, data)


def _run(words: list[str], folder: Path, stdin: IO[bytes] | None = None) -> CompletedCommand:
    program = shutil.which("ssh-keygen")
    if program is None:
        raise HostError(
            "ssh-keygen is not installed",
            why="Bundles are signed and verified with it.",
            hint="Install OpenSSH's client (openssh-client, openssh-clients).",
        )
    return run_quietly([program, *words], os.environ, folder, _TIMEOUT, stdin)


def _words(done: CompletedCommand) -> str:
    lines = (done.stderr or done.stdout).strip().splitlines()
    return lines[-1] if lines else f"ssh-keygen ended with {done.code}"
