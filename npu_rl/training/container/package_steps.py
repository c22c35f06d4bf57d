"""The shell lines that install a manifest's packages in the image. All package choices are made here."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from packaging.requirements import Requirement

from npu_rl.stack.requirements.host_requirements import host_requirements

if TYPE_CHECKING:
    from npu_rl.stack.manifest.load_manifest import LoadedManifest
    from npu_rl.stack.manifest.schema import Manifest

TOOL, TRAINING = "/opt/npu-rl", "/opt/training"
WHEELS = "/wheels"
_PIP = f"{TRAINING}/bin/pip install --no-cache-dir"


@dataclass(frozen=True)
class PackageStep:
    """Shell lines that form one step. `why` is the comment above them."""

    why: str
    lines: tuple[str, ...]


def package_steps(loaded: LoadedManifest, manifest: str, python: str) -> Iterator[PackageStep]:
    """Yield the steps, in order, that install the packages that training with the manifest imports.

    Args:
        manifest: The manifest as npu-rl in the image finds it.
        python: The version of the image's Python, such as 3.11.
    """
    host = list(map(str, host_requirements(loaded.manifest).values()))
    if host:
        why = "Packages that the locked set leaves to the host; it then decides the versions of their dependencies."
        yield PackageStep(why, (f"{_PIP} {shlex.join(host)}",))
    yield from _locked(manifest, python)
    yield from _special(loaded.manifest)


def _locked(manifest: str, python: str) -> Iterator[PackageStep]:
    """Yield the step for the locked packages. Omits --machine, so that the build machine's lock is used."""
    words = f"--manifest {shlex.quote(manifest)} --python-version {python}"
    yield PackageStep(
        "Every other package, one version of each, by its hash.",
        (
            f"{TOOL}/bin/npu-rl requirements {words} > /tmp/requirements.txt",
            f"{_PIP} --no-deps --require-hashes -r /tmp/requirements.txt",
            "rm /tmp/requirements.txt",
        ),
    )


def _special(manifest: Manifest) -> Iterator[PackageStep]:
    """Yield the step for packages that aren't on an index, or that pip wouldn't select."""
    host = manifest.host
    lines = []
    addressed = [text for text in manifest.requirements if Requirement(text).url is not None]
    if addressed:
        lines.append(f"{_PIP} --no-deps {shlex.join(addressed)}")
    if manifest.device == "npu" and host.apex is not None:  # an index's apex is another project
        lines.append(f"{_PIP} --no-deps --no-index {shlex.quote(f'apex=={host.apex}')}")
    if manifest.device == "cuda" and host.cudnn is not None:  # pip reports that torch requires another
        major = (host.cuda or "12").partition(".")[0]
        lines.append(f"{_PIP} --no-deps nvidia-cudnn-cu{major}=={host.cudnn}")
    if lines:
        why = f"Packages without a lock: wheels by address or in {WHEELS}, or a version that torch doesn't require."
        yield PackageStep(why, tuple(lines))
