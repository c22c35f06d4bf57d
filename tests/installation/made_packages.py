"""Made packages, an index that has them, and a manifest whose lock names them."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import platform
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from npu_rl.stack.installation.install import install
from npu_rl.stack.installation.install_plan import InstallPlan, plan_installation
from npu_rl.stack.manifest.load_manifest import load_manifest
from npu_rl.stack.pylocks.package_sets import package_set
from npu_rl.stack.pylocks.pylock_file import LockedFile, LockedPackage, Pylock, dump_pylock
from npu_rl.stack.pylocks.pylock_targets import Target, pylock_path
from npu_rl.stack.pylocks.uv_program import find_uv
from tests.sources.package_index import PackageIndex

HERE = f"{sys.version_info[0]}.{sys.version_info[1]}"
MACHINE = platform.machine()
OTHER = "3.12" if HERE == "3.11" else "3.11"


def wheel(
    name: str,
    version: str,
    files: Mapping[str, str] | None = None,
    *,
    requires: Sequence[str] = (),
    tag: str = "py3-none-any",
) -> tuple[str, bytes]:
    """The name and the bytes of a wheel. Without `files` it has a module of its name."""
    module = name.replace("-", "_")
    stem = f"{module}-{version}"
    info = f"{stem}.dist-info"
    contents = dict(files if files is not None else {f"{module}/__init__.py": f"VERSION = {version!r}\n"})
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    lines += ["Provides-Extra: uv"] if any("extra ==" in one for one in requires) else []
    contents[f"{info}/METADATA"] = "\n".join([*lines, *(f"Requires-Dist: {one}" for one in requires)]) + "\n"
    contents[f"{info}/WHEEL"] = f"Wheel-Version: 1.0\nGenerator: made\nRoot-Is-Purelib: true\nTag: {tag}\n"
    record = "".join(
        f"{path},sha256={_digest(text)},{len(text.encode())}\n" for path, text in contents.items()
    )
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        for path, text in {**contents, f"{info}/RECORD": f"{record}{info}/RECORD,,\n"}.items():
            archive.writestr(path, text)
    return f"{stem}-{tag}.whl", data.getvalue()


def sdist(name: str, version: str, backend: str) -> tuple[str, bytes]:
    """The name and the bytes of a source archive that is built by a module of its own."""
    stem = f"{name.replace('-', '_')}-{version}"
    project = f'[project]\nname = "{name}"\nversion = "{version}"\n'
    texts = {
        "pyproject.toml": f'[build-system]\nrequires = []\nbuild-backend = "made"\nbackend-path = ["."]\n{project}',
        "made.py": backend,
        "PKG-INFO": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
    }
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz") as archive:
        for path, text in texts.items():
            member = tarfile.TarInfo(f"{stem}/{path}")
            member.size = len(text.encode())
            archive.addfile(member, io.BytesIO(text.encode()))
    return f"{stem}.tar.gz", data.getvalue()


def backend(
    name: str, version: str, files: Mapping[str, str] | None = None, tag: str = "py3-none-any"
) -> str:
    """The text of a module whose `build_wheel` writes a wheel: setuptools is not in every environment."""
    file, data = wheel(name, version, files, tag=tag)
    head = "import pathlib\n\ndef build_wheel(folder, settings=None, metadata=None):\n"
    return f"{head}    (pathlib.Path(folder) / {file!r}).write_bytes({data!r})\n    return {file!r}\n"


def _digest(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()


@dataclass
class Stack:
    """A manifest `mine` in a folder, the index that delivers its packages, and an environment for it."""

    folder: Path
    index: PackageIndex
    locked: dict[str, list[LockedFile]] = field(default_factory=dict)
    git: str = "https://git.example.org/own.git"
    ref: str = "0" * 40

    @property
    def manifest(self) -> Path:
        return self.folder / "mine.yaml"

    @property
    def python(self) -> Path:
        return self.folder / "env/bin/python"

    @property
    def site(self) -> Path:
        return self.folder / f"env/lib/python{HERE}/site-packages"

    def lists(self, name: str, file: str, data: bytes, *, locked: bool = True) -> None:
        """Put a file into the index, and into the lock."""
        self.index.add(name, file, data)
        if locked:
            sha256 = hashlib.sha256(data).hexdigest()
            url = f"https://files.pythonhosted.org/packages/{sha256[:2]}/{file}"
            version = file.split("-")[1].removesuffix(".tar.gz")
            self.locked.setdefault(f"{name}=={version}", []).append(LockedFile(url, sha256, len(data)))

    def writes(self, *, device: str = "npu", python: str = HERE, **host: str) -> None:
        """Write the manifest and its lock of packages."""
        component = {
            "sources": [{"git": self.git}],
            "ref": self.ref,
            "take": [{"from": "own", "to": "own"}],
        }
        text = {
            "schema": 1,
            "name": "mine",
            "title": "Mine",
            "device": device,
            "host": {"python": python, **host},
            "components": {"own": component},
            "requirements": list(self.locked),
        }
        self.manifest.write_text(json.dumps(text))
        loaded = load_manifest(str(self.manifest))
        packages = []
        for key, files in sorted(self.locked.items()):
            name, _, version = key.partition("==")
            wheels = tuple(file for file in files if file.name.endswith(".whl"))
            sources = [file for file in files if not file.name.endswith(".whl")]
            packages.append(LockedPackage(name, version, wheels, sources[0] if sources else None))
        found = package_set(loaded)
        target = Target(python, MACHINE, {"npu": "2.34", "cuda": "2.34", "cpu": "2.28"}[device])
        pylock = Pylock("mine", target, found.digest(), tuple(packages), left_out=found.left_out)
        pylock_path(self.manifest, target).write_text(dump_pylock(pylock))

    def plans(self, *wheels: Path, venv: bool = False) -> InstallPlan:
        place = self.folder / "env" if venv else None
        return plan_installation(str(self.manifest), str(self.python), place, wheels, self.folder)

    def installs(self, *wheels: Path, venv: bool = False, offline: bool = False) -> InstallPlan:
        plan = self.plans(*wheels, venv=venv)
        install(plan, wheels, lambda _: None, offline=offline)
        return plan

    def has(self, *wheels: tuple[str, bytes]) -> None:
        """Install wheels into the environment as anybody would."""
        folder = self.folder / "had"
        folder.mkdir(exist_ok=True)
        for name, data in wheels:
            (folder / name).write_bytes(data)
        paths = [str(folder / name) for name, _ in wheels]
        words = ["pip", "install", "-q", "--python", str(self.python), "--no-deps", "--offline", *paths]
        subprocess.run([find_uv(), *words], check=True, env=os.environ, cwd=folder)

    def runs(self, code: str) -> str:
        done = subprocess.run(
            [str(self.python), "-c", code], check=True, capture_output=True, text=True, cwd="/"
        )
        return done.stdout.strip()


def tree(root: Path) -> dict[str, bytes]:
    """Every file below a folder, but byte code."""
    found = {str(path.relative_to(root)): path for path in root.rglob("*") if path.is_file()}
    return {name: path.read_bytes() for name, path in found.items() if "__pycache__" not in name}
