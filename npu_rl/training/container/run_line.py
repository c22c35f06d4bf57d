"""The docker run line that starts a container with the host's devices and driver."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from npu_rl.training.container.dockerfile import WORKSPACE, image_name

if TYPE_CHECKING:
    from npu_rl.stack.manifest.load_manifest import LoadedManifest
    from npu_rl.training.host.machines import MachineKind

# vllm-ascend v0.18.0, docs/source/installation.md, and Ascend/cann-container-image, README.md. cann-recipes-train and
# MindSpeed-RL pass --privileged besides, and folders of a person; neither is needed where each device is named.
_CONTROL = ("davinci_manager", "devmm_svm", "hisi_hdc")
_DRIVER = (
    "/usr/local/dcmi",
    "/usr/local/bin/npu-smi",
    "/usr/local/Ascend/driver/lib64",
    "/usr/local/Ascend/driver/tools/hccn_tool",
    "/usr/local/Ascend/driver/version.info",
    "/etc/ascend_install.info",
)
_IN_A_ROW = 4
_BREAK = " \\\n    "


def docker_run(loaded: LoadedManifest, machine: MachineKind) -> str:
    """Return the line that starts a shell in a manifest's image on a kind of machine."""
    words = [
        "docker run -it --rm",
        *_limits(machine),
        *_devices(machine),
        f'-v "$PWD":"$PWD" -v "$PWD/runs":{WORKSPACE}/runs',
        image_name(loaded),
    ]
    return _BREAK.join(words) + "\n"


def _limits(machine: MachineKind) -> Iterator[str]:
    shm = machine["shm"].value // (1 << 30)
    yield f"--network host --shm-size {shm}g --ulimit nofile={machine['nofile'].value}"
    memlock = machine.get("memlock")
    if memlock is not None:
        yield f"--ulimit memlock={memlock.value}"


def _devices(machine: MachineKind) -> Iterator[str]:
    """Yield the options for devices, and the mounts of the host's driver."""
    if machine.name == "cuda":
        yield "--gpus all"
    count = machine.get("devices")
    if count is None:
        return
    numbers = range(min(count.value))
    for start in numbers[::_IN_A_ROW]:
        yield " ".join(f"--device /dev/davinci{number}" for number in numbers[start : start + _IN_A_ROW])
    yield " ".join(f"--device /dev/{name}" for name in _CONTROL)
    yield from (f"-v {path}:{path}" for path in _DRIVER)
