"""Versions, devices and limits of one host, read from files. Standard library only.

Nothing is run and no device is opened. `npu-rl doctor` reads them below a folder that looks like a host; a run sends
these functions to every node by value, and compares what they return.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

IMAGE_FILE = "/etc/npu-rl-image"  # one line: the image's name, best with its digest
_MOST = 1 << 18  # bytes read of a file
_ASCEND = "/usr/local/Ascend"
_DEVICE = {"npus": re.compile(r"davinci[0-9]+"), "gpus": re.compile(r"nvidia[0-9]+")}
_CONTROL = ("davinci_manager", "devmm_svm", "hisi_hdc")  # what an NPU's driver needs besides davinciN
_LIMITS = {"nofile": "Max open files", "memlock": "Max locked memory"}


def host_facts(root: str, environ: Mapping[str, str]) -> dict[str, Any]:
    """Return facts about a host as JSON types. Unknown facts are None, sizes are in bytes, and -1 means no limit.

    Args:
        root: Folder below which everything is read.
        environ: The shell's environment, whose ASCEND_HOME_PATH and ATB_HOME_PATH come first.
    """
    found = versions(root, environ)
    return {
        **{name: version for name, (version, _) in found.items()},
        **device_files(root),
        **limits(root),
        **memory_facts(root),
        **image_facts(root),
        "kernel": read_text(root, "/proc/sys/kernel/osrelease").strip() or None,
    }


def versions(root: str, environ: Mapping[str, str]) -> dict[str, tuple[str | None, str]]:
    """Return the version of each part of the host's stack, and the file that contains it (or should)."""
    homes = toolkit_homes(root, environ)
    return {
        "driver": _first(root, _driver_files(root), _info("package_version", "Version")),
        "firmware": _first(root, [f"{_ASCEND}/firmware/version.info"], _info("package_version", "Version")),
        "cann": _toolkit(root, homes),
        "kernels": _kernels(root, homes),
        "nnal": _first(root, _atb_files(environ), _atb_version),
        "gpu_driver": _first(root, ["/proc/driver/nvidia/version"], _nvidia_version),
        "cuda": _first(root, ["/usr/local/cuda/version.json"], _cuda_version),
    }


def toolkit_homes(root: str, environ: Mapping[str, str]) -> list[str]:
    """Return the CANN toolkit's folders, in the host's paths, the sourced one first.

    CANN 8.5 moved it from ascend-toolkit/latest to cann.
    """
    named = [environ.get(name, "") for name in ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME")]
    usual = [f"{_ASCEND}/ascend-toolkit/latest", f"{_ASCEND}/cann"]
    return [home for home in dict.fromkeys([*named, *usual]) if home and os.path.isdir(below(root, home))]


def device_files(root: str) -> dict[str, Any]:
    """Return the numbers of NPUs and GPUs, counted by device files, and the missing control files."""
    try:
        names = os.listdir(below(root, "/dev"))
    except OSError:
        names = []
    counts = {kind: sum(1 for name in names if form.fullmatch(name)) for kind, form in _DEVICE.items()}
    return {**counts, "control_missing": [name for name in _CONTROL if name not in names]}


def limits(root: str) -> dict[str, int | None]:
    """Return the soft limits of this process: open files, and locked memory in bytes."""
    text = read_text(root, "/proc/self/limits")
    found: dict[str, int | None] = {}
    for name, label in _LIMITS.items():
        line = re.search(rf"^{label}\s+(\S+)", text, re.MULTILINE)
        word = line[1] if line else ""
        found[name] = -1 if word == "unlimited" else int(word) if word.isdigit() else None
    return found


def memory_facts(root: str) -> dict[str, int | None]:
    """Return huge pages and the size of /dev/shm in bytes."""
    text = read_text(root, "/proc/meminfo")
    values = {name: int(value) for name, value in re.findall(r"^(\w+):\s+(\d+)", text, re.MULTILINE)}
    total, size = values.get("HugePages_Total"), values.get("Hugepagesize")
    return {
        "huge_pages": None if total is None or size is None else total * size * 1024,
        "shm": _shm(root),
    }


def image_facts(root: str) -> dict[str, str | None]:
    """Return the name of the container's image, if it is stored in the image, and of the operating system."""
    named = read_text(root, IMAGE_FILE).strip().splitlines()
    system = re.search(r"^PRETTY_NAME=[\"']?([^\"'\n]+)", read_text(root, "/etc/os-release"), re.MULTILINE)
    return {"image": named[0][:300] if named else None, "system": system[1][:100] if system else None}


def _shm(root: str) -> int | None:
    """Return the size of /dev/shm from the mount options, since a folder that looks like a host has no mounts."""
    for line in read_text(root, "/proc/mounts").splitlines():
        words = line.split(" ")
        if len(words) > 3 and words[1] == "/dev/shm":
            size = re.search(r"(?:^|,)size=(\d+)([kmg]?)", words[3])
            if size:
                return int(size[1]) << {"": 0, "k": 10, "m": 20, "g": 30}[size[2]]
            if root == "/":
                status = os.statvfs("/dev/shm")
                return status.f_blocks * status.f_frsize
    return None


def _driver_files(root: str) -> list[str]:
    installed = re.search(
        r"^Driver_Install_Path_Param=(/\S+)", read_text(root, "/etc/ascend_install.info"), re.MULTILINE
    )
    return [
        *([f"{installed[1].rstrip('/')}/driver/version.info"] if installed else []),
        f"{_ASCEND}/driver/version.info",
    ]


def _atb_files(environ: Mapping[str, str]) -> list[str]:
    home = environ.get("ATB_HOME_PATH", "")  # .../nnal/atb/latest/atb/cxx_abi_0
    named = [os.path.normpath(f"{home}/../../version.info")] if home.startswith("/") else []
    return [*named, f"{_ASCEND}/nnal/atb/latest/version.info"]


def _toolkit(root: str, homes: list[str]) -> tuple[str | None, str]:
    """Return the toolkit's product version (version_dir=8.0.0, not a component's Version=7.6.0.1.220)."""
    machine = os.uname().machine
    names = [f"{arch}-linux" for arch in dict.fromkeys([machine, "aarch64", "x86_64"])]
    places = [*names, "share/info"]
    files = [f"{home}/{place}/ascend_toolkit_install.info" for home in homes for place in places]
    looked = [
        _first(root, files, _info("version")),
        _first(root, [f"{home}/version.cfg" for home in homes], _running_version("toolkit")),
        _first(root, [f"{home}/opp/version.info" for home in homes], _info("version_dir")),
    ]
    usual = f"{_ASCEND}/ascend-toolkit/latest/{names[0]}/ascend_toolkit_install.info"
    return next((found for found in looked if found[0] is not None), (None, files[0] if files else usual))


def _kernels(root: str, homes: list[str]) -> tuple[str | None, str]:
    looked = [
        _first(root, [f"{home}/opp_kernel/version.info" for home in homes], _info("version_dir")),
        _first(root, [f"{home}/version.cfg" for home in homes], _running_version("opp_kernel")),
    ]
    return next((found for found in looked if found[0] is not None), looked[0])


def _first(root: str, files: list[str], version_of: Any) -> tuple[str | None, str]:
    for name in files:
        version = version_of(read_text(root, name))
        if version:
            return version[:100], name
    return None, files[0] if files else ""


def _info(*names: str) -> Any:
    """Return a function that finds the first of several keys in KEY=VALUE lines."""

    def version_of(text: str) -> str | None:
        for name in names:
            found = re.search(rf"^\s*{name}=\s*(\S+)", text, re.MULTILINE)
            if found:
                return found[1]
        return None

    return version_of


def _running_version(part: str) -> Any:
    """Return a function that finds a component's version in version.cfg: toolkit_running_version=[7.6.0:8.0.0]."""

    def version_of(text: str) -> str | None:
        found = re.search(rf"^\s*{part}_running_version=\[[^:\]\n]*:([^\]\n]+)\]", text, re.MULTILINE)
        return found[1] if found else None

    return version_of


def _atb_version(text: str) -> str | None:
    found = re.search(r"^\s*Ascend-cann-atb\s*:\s*(\S+)", text, re.MULTILINE)
    return found[1] if found else None


def _nvidia_version(text: str) -> str | None:
    found = re.search(r"Kernel Module(?: for \S+)?\s+([0-9.]+)", text)
    return found[1] if found else None


def _cuda_version(text: str) -> str | None:
    try:
        return str(json.loads(text)["cuda"]["version"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


# -- files below a folder ------------------------------------------------------------------------------


def read_text(root: str, name: str) -> str:
    """Return the first 256 KiB of a host's file as text; "" if it is missing or not a regular file."""
    try:
        handle = os.open(below(root, name), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError):
        return ""
    try:
        return os.read(handle, _MOST).decode("utf-8", "replace")
    except OSError:  # a folder, a device
        return ""
    finally:
        os.close(handle)


def below(root: str, name: str) -> str:
    """Return the location of a host's absolute path below the root folder."""
    return name if root == "/" else f"{root}{os.path.normpath(name)}"


def entries(root: str, folder: str) -> Iterator[str]:
    """Yield the names in a host's folder; nothing if it is missing."""
    try:
        yield from sorted(os.listdir(below(root, folder)))
    except OSError:
        return
