"""Versions, tables and links of a host as they are written there."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from npu_rl.common.package_versions import is_older
from npu_rl.training.host.npu_smi import parse_npu_smi
from npu_rl.training.injected.npu_rl_host import host_facts, versions

CFG = "# version: 1.0\nopp_running_version=[8.2.0.2.220:8.2.RC2]\ntoolkit_running_version=[8.2.0.2.220:8.2.RC2]\n"
LATEST = "usr/local/Ascend/ascend-toolkit/latest"


def write(root: Path, **files: str) -> None:
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.mark.parametrize(
    ("file", "text", "part", "version"),
    [
        (f"{LATEST}/aarch64-linux/ascend_toolkit_install.info", "version=8.2.RC1\n", "cann", "8.2.RC1"),
        (f"{LATEST}/version.cfg", CFG, "cann", "8.2.RC2"),
        ("usr/local/Ascend/cann/share/info/ascend_toolkit_install.info", "version=9.1.0\n", "cann", "9.1.0"),
        ("usr/local/Ascend/cann/opp/version.info", "Version=8.5.0.2.220\nversion_dir=8.5.0\n", "cann", "8.5.0"),
        (f"{LATEST}/opp_kernel/version.info", "Version=7.6.0.1.220\n", "kernels", None),  # a part's own
        (f"{LATEST}/version.cfg", CFG + "opp_kernel_running_version=[8.2.0:8.2.RC2]\n", "kernels", "8.2.RC2"),
        ("usr/local/Ascend/nnal/atb/latest/version.info", "    Ascend-cann-atb : 8.1.RC1\n", "nnal", "8.1.RC1"),
        ("usr/local/Ascend/driver/version.info", "Version=24.1.rc1\nascendhal_version=7.35.19\n", "driver", "24.1.rc1"),
        ("usr/local/Ascend/firmware/version.info", "Version=7.5.0\npackage_version=24.1\n", "firmware", "24.1"),
        ("usr/local/cuda/version.json", "[" * 100_000, "cuda", None),
        ("usr/local/Ascend/driver/version.info", "Version=" + "9" * 300_000, "driver", "9" * 100),
    ],
)  # fmt: skip
def test_a_version_is_read_as_it_is_written(
    tmp_path: Path, file: str, text: str, part: str, version: str
) -> None:
    write(tmp_path, **{file: text})
    assert versions(str(tmp_path), {})[part][0] == version


def test_a_driver_installed_elsewhere_is_found(tmp_path: Path) -> None:
    installed = "UserName=root\nDriver_Install_Path_Param=/opt/ascend/\n"
    write(tmp_path, **{"etc/ascend_install.info": installed})
    write(tmp_path, **{"opt/ascend/driver/version.info": "Version=25.2.0\n"})
    assert versions(str(tmp_path), {})["driver"] == ("25.2.0", "/opt/ascend/driver/version.info")


def test_an_empty_folder_is_a_host_of_which_nothing_is_known(tmp_path: Path) -> None:
    facts = host_facts(str(tmp_path), {})
    known = {name: value for name, value in facts.items() if value}
    assert known == {"control_missing": ["davinci_manager", "devmm_svm", "hisi_hdc"]}


WIDE = """\
+------------------------------------------------------------------------------------------------------------------+
| npu-smi 26.0.rc2                            Version: 26.0.rc2                                                    |
+---------------------------+---------------+----------------------------------------------------------------------+
| NPU   Name                | Health        | Power(W)             Temp(C)                 Hugepages-Usage(page)   |
| Chip  Phy-ID              | Bus-Id        | AICore(%)            Memory-Usage(MB)        HBM-Usage(MB)           |
+===========================+===============+======================================================================+
| 0     Ascend910           | OK            | 162.6                34                      0    / 0                |
| 0     0                   | 0000:9D:00.0  | 0                    0    / 0                27547/ 65536            |
+------------------------------------------------------------------------------------------------------------------+
| 0     Ascend910           | Warning       | -                    34                      0    / 0                |
| 1     1                   | 0000:9F:00.0  | 0                    0    / 0                2874 / 65536            |
+===========================+===============+======================================================================+
| NPU     Chip              | Process id    | Process name             | Process memory(MB)                        |
+===========================+===============+======================================================================+
| 0       0                 | 815           | ray::WorkerDict          | 24000                                     |
+===========================+===============+======================================================================+
"""


def test_a_wide_table_with_a_process_is_read() -> None:
    smi = parse_npu_smi("/usr/local/bin/npu-smi", WIDE)
    assert (smi.version, smi.phy_id, smi.problem) == ("26.0.rc2", True, "")
    assert [(chip.npu, chip.number, chip.health, chip.used, chip.total) for chip in smi.chips] == [
        (0, 0, "OK", 27547, 65536),
        (0, 1, "Warning", 2874, 65536),
    ]
    assert smi.processes == ("pid 815 (ray::WorkerDict) on NPU 0 chip 0",)


@pytest.mark.parametrize(
    "text", ["", "dcmi model initialized failed", "|" * 100_000, WIDE.replace("npu-smi ", "x ")]
)
def test_what_is_no_table_has_a_problem(text: str) -> None:
    assert "not the table" in parse_npu_smi("npu-smi", text).problem


def test_release_candidates_come_before_releases() -> None:
    versions = ["24.1.rc3", "25.0.RC1", "25.0.0", "25.2.0", "25.2.3", "26.0.rc2"]
    assert all(is_older(*pair) and not is_older(*pair[::-1]) for pair in pairwise(versions))
    assert not is_older("25.2.0", "25.2.0") and not is_older("25.x", "25.2.0")
