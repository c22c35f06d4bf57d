"""The origin of a module that can't be imported: a part of its tree, of its host, a package of its locks, or none."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from npu_rl.common.bounded import read_file
from npu_rl.stack.requirements.bound_check import HOST_PACKAGES

# Distributions of which no part is the name that one imports.
_DISTRIBUTIONS = {
    "attr": "attrs",
    "bs4": "beautifulsoup4",
    "Crypto": "pycryptodome",
    "Cryptodome": "pycryptodomex",
    "cv2": "opencv-python-headless",
    "dns": "dnspython",
    "git": "gitpython",
    "google": "protobuf",
    "grpc": "grpcio",
    "markdown_it": "markdown-it-py",
    "PIL": "pillow",
    "pkg_resources": "setuptools",
    "sklearn": "scikit-learn",
    "tvm_ffi": "apache-tvm-ffi",
}
_CANN = ("acl", "hccl", "tbe", "te")
_FOR_GPUS = ("flash_attn", "transformer_engine")  # what `npu-rl doctor` forbids beside torch_npu
_INSTALL = (
    "Install its packages with `npu-rl setup --install` and the options of your setup, or pass an interpreter"
)
_INSTALL += " that has them: --python PATH."
_LEAVE_OUT = "Leave out the setting that leads to that code"
_NAME = re.compile(rb'^name = "([^"]+)"', re.M)


@dataclass(frozen=True)
class Stack:
    """The manifest and the code folder of a run."""

    manifest: Path
    code: Path

    def look_up(self, module: str) -> tuple[str, str]:
        """Return the cause and the fix of a module that is missing."""
        top = module.partition(".")[0]
        if (self.code / top).exists():
            cause = f"The tree has {top} without {module}: the code that imports it is for another version."
            return (
                cause,
                f"{_LEAVE_OUT}; `npu-rl verify` shows changes of the tree.",
            )
        return self._of_host(top) or self._of_locks(top)

    def _of_host(self, top: str) -> tuple[str, str] | None:
        """Return the cause and the fix of a module that no index brings, or another one than its name says."""
        if top not in ("apex", "triton", *_CANN, *_FOR_GPUS):
            return None
        from npu_rl.stack.manifest.load_manifest import load_manifest

        manifest = load_manifest(str(self.manifest)).manifest
        npu, lacks = manifest.device == "npu", f"The training interpreter lacks {top}"
        if top == "apex":
            whose = "Ascend's" if npu else "NVIDIA's"
            fix = f"Name the wheel of {whose} apex with --wheels of `npu-rl setup --install`, or leave out the setting"
            return (
                f"{lacks}, which only a file brings: PyPI's apex is another project.",
                f"{fix} that leads to that code.",
            )
        if not npu:
            return None
        if top in _CANN:
            fix = "Run `source /usr/local/Ascend/ascend-toolkit/set_env.sh` in the shell that runs npu-rl."
            return f"{lacks}, which is CANN's own.", fix
        if top in _FOR_GPUS:
            return f"{lacks}, which is for GPUs.", f"{_LEAVE_OUT}."
        if asked := manifest.host.triton_ascend:
            return f"{lacks}, which on Ascend is triton-ascend; this stack has {asked}.", _INSTALL
        return f"{lacks}, which on Ascend is triton-ascend, of which this stack has none.", f"{_LEAVE_OUT}."

    def _of_locks(self, top: str) -> tuple[str, str]:
        package = _DISTRIBUTIONS.get(top, top)
        lacks = f"The training interpreter lacks {top}{f' of {package}' if package != top else ''}"
        if _plain(package) in self._packages():
            return f"{lacks}, a package of this stack.", _INSTALL
        cause = f"{lacks}, and no lock of {self.manifest.stem} has a package of that name."
        return cause, f"{_LEAVE_OUT}, or install {package}, which `--install` does not bring."

    def _packages(self) -> set[str]:
        """Return the names in the stack's locks, and their parts: hydra of hydra-core, yaml of PyYAML."""
        locks = self.manifest.parent.glob(f"pylock.{self.manifest.stem}-*.toml")
        names = [name.decode() for lock in locks for name in _NAME.findall(read_file(lock))]
        return {
            _plain(form)
            for name in (*names, *HOST_PACKAGES)
            for form in (name, *name.split("-"), name.removeprefix("py"))
        }


def _plain(name: str) -> str:
    return re.sub(r"[-_.]", "", name).lower()
