"""Command lines that use a bundle on a host with only Python and git."""

from __future__ import annotations

import shlex
from pathlib import Path

from npu_rl.stack.bundles.bundle_facts import BundledStack, BundleFacts
from npu_rl.stack.bundles.bundle_names import MANIFESTS, PROGRAM, WHEELS, of_kind

_FOLDER, _ENVIRONMENT = "npu-rl-start", "npu-rl-env"
# tar may be missing. pip's own wheel is a program, too: many hosts' Python has no ensurepip for `venv`.
_UNPACK = (
    "import sys,tarfile;f=tarfile.open(sys.argv[1]);"
    '[f.extract(m,"{folder}") for m in f if m.isreg() and m.name.startswith({kinds}) and ".." not in m.name]'
)


def start_lines(facts: BundleFacts, file: Path, signers: str | None = None) -> tuple[str, str]:
    """Return the line that makes an environment with npu-rl, and the line that sets the first stack up.

    The second one activates the environment, so that `npu-rl`, which all later commands begin with, is on PATH.

    Args:
        file: The bundle, as it is to be named.
        signers: The file of allowed signers for the second line, if the bundle is signed.
    """
    kinds = [f"{PROGRAM}/"]
    kinds += [f"{MANIFESTS}/"] if any(not stack.shipped for stack in facts.stacks) else []
    kinds += [f"{WHEELS}/"] if of_kind(facts.sizes, WHEELS) else []
    quoted = ",".join(f'"{kind}"' for kind in kinds)
    unpack = _UNPACK.format(folder=_FOLDER, kinds=f"({quoted},)")
    python = f"python{facts.hosts[0].python}" if facts.hosts else "python3"
    place = f"{_FOLDER}/{PROGRAM}"
    has_uv = any(name.startswith(f"{PROGRAM}/uv-") for name in of_kind(facts.sizes, PROGRAM))
    wanted = shlex.quote(f"npu-rl{'[uv]' if has_uv else ''}=={facts.npu_rl}")
    first = (
        f"{python} -c {shlex.quote(unpack)} {shlex.quote(str(file))}"
        f" && {python} -m venv --without-pip {_ENVIRONMENT}"
        f" && {_pip_install(facts)} --find-links {place} {wanted}"
    )
    words = ["setup", "--manifest", _manifest(facts.stacks[0]), "--bundle", shlex.quote(str(file))]
    words += ["--verify-with", shlex.quote(signers)] if signers else []
    return first, " ".join([f". {_ENVIRONMENT}/bin/activate && npu-rl", *words])


def packages_line(facts: BundleFacts) -> str | None:
    """Return the line that installs the first stack's packages beside npu-rl; None for a bundle without wheels."""
    if not of_kind(facts.sizes, WHEELS):
        return None
    host, lines = facts.hosts[0], f"{_FOLDER}/requirements.txt"
    manifest = _manifest(facts.stacks[0])
    return (
        f"{_ENVIRONMENT}/bin/npu-rl requirements --manifest {manifest} --python-version {host.python}"
        f" --machine {host.machine} > {lines} && {_pip_install(facts)}"
        f" --find-links {_FOLDER}/{WHEELS} --no-deps --require-hashes -r {lines}"
    )


def host_line(facts: BundleFacts) -> str:
    """Return the line that installs wheels of the host's packages, which no bundle has, into the same environment."""
    return f"{_pip_install(facts)} --no-deps WHEEL..."


def _pip_install(facts: BundleFacts) -> str:
    pip = next((name for name in of_kind(facts.sizes, PROGRAM) if name.startswith(f"{PROGRAM}/pip-")), "")
    return f"{_ENVIRONMENT}/bin/python {_FOLDER}/{pip}/pip install -q --no-index"


def _manifest(stack: BundledStack) -> str:
    return stack.name if stack.shipped else shlex.quote(f"{_FOLDER}/{stack.path}")
