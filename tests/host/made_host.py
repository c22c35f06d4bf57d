"""Folders that look like hosts, of small text files."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

from packaging.requirements import Requirement

from npu_rl.common.interpreter import Interpreter
from npu_rl.recipes.recipe.load_recipe import load_recipe
from npu_rl.training.host.describe_host import describe_host
from npu_rl.training.host.examine_host import DoctorReport, examine_host
from npu_rl.training.host.wanted_host import WantedHost
from npu_rl.training.injected.npu_rl_packages import packages
from npu_rl.training.run.host_check import wanted_by_manifest

SMI_SECONDS = 5.0  # of a test's npu-smi that answers; a busy machine may be slow
ASCEND = "usr/local/Ascend"

RULE = "+---------------------------+---------------+----------------------------------------------------+"
END = "+===========================+===============+====================================================+"


@cache
def wanted_by(recipe: str) -> WantedHost:
    """Return what a bundled recipe and its manifest want."""
    loaded = load_recipe(recipe)
    return wanted_by_manifest(loaded.manifest).with_recipe(loaded.recipe)


class MadeHost:
    """A healthy host of a recipe; tests then break it."""

    def __init__(self, root: Path, recipe: str) -> None:
        self.root, self.wanted = root, wanted_by(recipe)
        self.environ = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/root"}
        self.python_version = self._python_version()
        self.site = root / "opt/training/lib/python3/site-packages"
        self._system()
        if self.wanted.device == "npu":
            self._ascend()
        elif self.wanted.device == "cuda":
            self._nvidia()
        self._packages()

    def report(self, wanted: WantedHost | None = None, seconds: float = SMI_SECONDS) -> DoctorReport:
        """Return what the doctor says of it."""
        host = describe_host(self.training_python(), self.root, self.environ, seconds)
        return examine_host(host, wanted or self.wanted)

    def training_python(self) -> Interpreter:
        """Return the interpreter, of which only the folder of packages is there."""
        return Interpreter("/opt/training/bin/python3", self.python_version, **packages([str(self.site)]))

    # -- changes ---------------------------------------------------------------------------------------

    def write(self, name: str, text: str, mode: int = 0o644) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        path.chmod(mode)

    def remove(self, name: str) -> None:
        (self.root / name).unlink()

    def replace(self, name: str, old: str, new: str) -> None:
        text = (self.root / name).read_text(encoding="utf-8")
        assert old in text
        self.write(name, text.replace(old, new), (self.root / name).stat().st_mode & 0o777)

    def install(self, name: str, version: str) -> None:
        """Install a package, over whatever version there is."""
        site = self.site
        for there in site.glob(f"{name.replace('-', '_')}-*.dist-info"):
            (there / "METADATA").unlink()
            there.rmdir()
        self.install_too(name, version)

    def install_too(self, name: str, version: str) -> None:
        text = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        folder = f"{name.replace('-', '_')}-{version}.dist-info"
        self.write(f"{self.site.relative_to(self.root)}/{folder}/METADATA", text)

    def npu_smi(self, script: str) -> None:
        self.write("usr/local/bin/npu-smi", f"#!/bin/sh\n{script}\n", 0o755)

    def table(self, *, chips: int, phy_id: bool, name: str, used: int = 3118, processes: str = "") -> None:
        """Write the table that npu-smi prints."""
        per_card = 2 if phy_id else 1
        rows = []
        for die in range(chips):
            card, chip = divmod(die, per_card)
            phy = f"{die}" if phy_id else ""
            rows += [
                f"| {card:<6}{name:<20}| OK            | 163.6       37                0    / 0             |",
                f"| {chip:<6}{phy:<20}| 0000:9D:00.0  | 0           0    / 0          {used:<5}/ 65536         |",
                END,
            ]
        second = "Phy-ID" if phy_id else "      "
        lines = [
            "+------------------------------------------------------------------------------------------------+",
            "| npu-smi 25.2.0                   Version: 25.2.0                                               |",
            RULE,
            "| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|",
            f"| Chip  {second}              | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |",
            END,
            *rows,
            "| NPU     Chip              | Process id    | Process name             | Process memory(MB)      |",
            END,
            processes
            or "| No running processes found in NPU 0                                                            |",
            RULE,
        ]
        self.write("usr/local/bin/npu-smi.txt", "\n".join(lines) + "\n")
        self.npu_smi('cat "$0.txt"')

    # -- a healthy one ---------------------------------------------------------------------------------

    def _python_version(self) -> str:
        asked = self.wanted.versions.get("python", "")
        return next(
            version for version in ("3.11.13", "3.10.17", "3.12.9") if not asked or _inside(version, asked)
        )

    def _system(self) -> None:
        limits = (
            "Limit                     Soft Limit           Hard Limit           Units     \n"
            "Max open files            1048576              1048576              files     \n"
            "Max locked memory         unlimited            unlimited            bytes     \n"
        )
        self.write("proc/self/limits", limits)
        self.write(
            "proc/meminfo",
            "MemTotal: 2113000000 kB\nHugePages_Total: 0\nHugePages_Free: 0\nHugepagesize: 2048 kB\n",
        )
        self.write("proc/mounts", "tmpfs /dev/shm tmpfs rw,nosuid,nodev,size=524288000k 0 0\n")
        self.write("proc/sys/kernel/osrelease", "5.10.0-182.0.0.95.aarch64\n")
        self.write("sys/class/net/lo/operstate", "unknown\n")
        self.write(f"sys/class/net/{self.wanted.interface or 'enp67s0f5'}/operstate", "up\n")

    def _ascend(self) -> None:
        versions = self.wanted.versions
        cann, driver = versions["cann"], versions.get("driver", "25.2.0")
        count, a3 = self.wanted.dies or 8, self.wanted.kind == "a3"
        for name in (
            *(f"davinci{number}" for number in range(count)),
            "davinci_manager",
            "devmm_svm",
            "hisi_hdc",
        ):
            self.write(f"dev/{name}", "")
        self.table(chips=count, phy_id=a3, name="Ascend910" if a3 else "910B3")
        self.write(
            f"{ASCEND}/driver/version.info",
            f"Version={driver}\nascendhal_version=7.35.23\npackage_version={driver}\n",
        )
        firmware = versions.get("firmware", driver)
        self.write(f"{ASCEND}/firmware/version.info", f"Version=7.7.0.6.236\npackage_version={firmware}\n")
        home = f"{ASCEND}/ascend-toolkit/{cann}"
        info = f"package_name=Ascend-cann-toolkit\nversion={cann}\ninnerversion=V100R001C22SPC001B231\narch=aarch64\n"
        self.write(f"{home}/aarch64-linux/ascend_toolkit_install.info", info)
        self.write(f"{home}/opp_kernel/version.info", f"Version=7.7.0.1.236\nversion_dir={cann}\n")
        soc = "ascend910_93" if a3 else "ascend910b"
        self.write(f"{home}/opp/built-in/op_impl/ai_core/tbe/kernel/{soc}/add/add.json", "{}\n")
        latest = self.root / ASCEND / "ascend-toolkit" / "latest"
        latest.symlink_to(cann)
        atb = f"{ASCEND}/nnal/atb"
        info = f"    Ascend-cann-atb : {cann}\n    Ascend-cann-atb Version : {cann}.B150\n    Platform : aarch64\n"
        self.write(f"{atb}/latest/version.info", info)
        for library in (
            f"{home}/lib64/libascendcl.so",
            f"{home}/lib64/libhccl.so",
            f"{atb}/latest/atb/cxx_abi_0/lib/libatb.so",
            f"{ASCEND}/driver/lib64/driver/libascend_hal.so",
        ):
            self.write(library, "")
        toolkit = "/usr/local/Ascend/ascend-toolkit/latest"
        self.write(f"{ASCEND}/ascend-toolkit/set_env.sh", "")
        self.write(f"{atb}/set_env.sh", "")
        home_of_atb = "/usr/local/Ascend/nnal/atb/latest/atb/cxx_abi_0"
        self.environ |= {
            "ASCEND_HOME_PATH": toolkit,
            "ASCEND_OPP_PATH": f"{toolkit}/opp",
            "ATB_HOME_PATH": home_of_atb,
            "LD_LIBRARY_PATH": f"{home_of_atb}/lib:/usr/local/Ascend/driver/lib64/driver:{toolkit}/lib64",
            "LD_PRELOAD": "/usr/lib/aarch64-linux-gnu/libjemalloc.so.2",
        }
        self.write("usr/lib/aarch64-linux-gnu/libjemalloc.so.2", "")

    def _nvidia(self) -> None:
        for number in range(self.wanted.dies or 8):
            self.write(f"dev/nvidia{number}", "")
        text = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  560.35.03  Fri Aug 16 21:39:15 UTC 2024\n"
        self.write("proc/driver/nvidia/version", text)
        self.write("usr/local/cuda/version.json", '{"cuda": {"name": "CUDA SDK", "version": "12.6.3"}}\n')

    def _packages(self) -> None:
        self.install("pip", "25.0")
        versions = self.wanted.versions
        host = (
            "torch",
            "torch_npu",
            "torchvision",
            "torchaudio",
            "triton_ascend",
            "apex",
            "transformer_engine",
        )
        for name in host:
            if name in versions:
                self.install(name.replace("_", "-"), versions[name])
        if "cudnn" in versions:
            self.install("nvidia-cudnn-cu12", versions["cudnn"])
        if self.wanted.device != "cpu" and "torch" not in versions:
            self.install("torch", "2.5.1")
        for text in self.wanted.requirements:
            wanted = Requirement(text)
            self.install(wanted.name, _fitting(wanted))


def _inside(version: str, asked: str) -> bool:
    return Requirement(f"python{asked}").specifier.contains(version)


def _fitting(wanted: Requirement) -> str:
    """Return a version that a requirement allows."""
    named = [one.version.removesuffix(".*") for one in wanted.specifier if one.operator != "<"]
    for version in (*named, *(f"{one}.1" for one in named), "1.0", "0.1", "2.0"):
        if wanted.specifier.contains(version, prereleases=True):
            return version
    raise AssertionError(wanted)


def under(folder: Path) -> list[str]:
    """Return all files below a folder, to see that none has changed."""
    return sorted(
        os.path.relpath(os.path.join(at, name), folder) for at, _, names in os.walk(folder) for name in names
    )
