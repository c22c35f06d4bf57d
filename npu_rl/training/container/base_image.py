"""The base image of a manifest's container, and the kind of machine it runs on."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from npu_rl.common.errors import ManifestError, UsageError
from npu_rl.training.host.machines import KINDS, MachineKind, machine_kind

if TYPE_CHECKING:
    from npu_rl.stack.manifest.load_manifest import LoadedManifest

_REFERENCE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@-]*")
# CANN's images are named VERSION-CHIP-OS-PYTHON (Ascend/cann-container-image, docs/release_process.md).
_CHIPS = {"a3": "a3", "910b": "a2"}
_ANY_BASE = "Python and its venv, of Debian, Ubuntu or openEuler"
_NPU_UNKNOWN = "a3"  # the machine of most bundled recipes


def base_image(loaded: LoadedManifest) -> str:
    """Return the manifest's base image; "" if it names none. Raises ManifestError if the name is invalid."""
    image = loaded.manifest.host.image
    if image is None:
        return ""
    if not _REFERENCE.fullmatch(image):
        raise ManifestError(
            f"{image!r} is not the name of an image",
            where=loaded.where("host", "image"),
            hint="Write NAME:TAG, or NAME@sha256:DIGEST.",
        )
    return image


def is_pinned(image: str) -> bool:
    """Return whether an image is named by its digest, which, unlike a tag, can't be moved."""
    return "@sha256:" in image


def is_known(loaded: LoadedManifest) -> bool:
    """Return whether the manifest determines the kind of machine."""
    return loaded.manifest.device != "npu" or _kind_of_image(base_image(loaded)) is not None


def wanted_of_base(loaded: LoadedManifest) -> str:
    """Return the requirements on the base image of a manifest's container."""
    host = loaded.manifest.host
    named = (("CANN", host.cann), ("NNAL", host.nnal), ("CUDA", host.cuda), ("Python", host.python))
    return ", ".join(f"{what} {version}" for what, version in named if version) or _ANY_BASE


def container_machine(loaded: LoadedManifest, kind: str | None) -> MachineKind:
    """Return the kind of machine that a container runs on.

    Args:
        kind: As the user named it; by default that of the manifest's device, for NPUs of its image.

    Raises:
        UsageError: If the kind is unknown, has no published devices, or is not for the manifest's device.
    """
    device: str = loaded.manifest.device
    if device != "npu":
        usual, allowed = device, [device]
    else:
        usual = _kind_of_image(base_image(loaded)) or _NPU_UNKNOWN
        allowed = [name for name in KINDS if machine_kind(name).get("devices") is not None]
    if kind is not None and kind not in allowed:
        raise UsageError(
            f"Unsupported kind of machine {kind!r} for {loaded.manifest.name}",
            where="--kind",
            why=f"Its device is {device}.",
            hint=f"Write one of: {', '.join(allowed)}",
        )
    return machine_kind(kind or usual)


def _kind_of_image(image: str) -> str | None:
    tag = image.partition("@")[0].rpartition("/")[2].partition(":")[2]
    return next((_CHIPS[part] for part in tag.split("-") if part in _CHIPS), None)
