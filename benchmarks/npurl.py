"""npu-rl as a contender: its command line in a process of its own, its result proved by tree id."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from .measure import Command, tree_id
from .peers import Contender
from .pins import UPSTREAMS

MANIFEST = "deepseek-v3-cann"
ROOT = Path(__file__).resolve().parents[1]

# The command lines, in one place: `{workspace}` is filled in.
SETUP = ("setup", "--manifest", MANIFEST, "--workspace", "{workspace}")
VERIFY_QUICK = ("verify", "--workspace", "{workspace}")
VERIFY_DEEP = ("verify", "--workspace", "{workspace}", "--deep")

_URL = re.compile(r"(?:https?|ssh|git)://[^\s\"'<>,\]}]+")


@dataclass(frozen=True)
class NpuRl:
    """npu-rl run by `python`, with the lock and manifest of this checkout."""

    python: str
    environment: Mapping[str, str]
    lab: Path

    def missing(self) -> str | None:
        """Why npu-rl can't take part yet, or None."""
        if not self._lock().is_file():
            return f"{self._lock().relative_to(ROOT)} does not exist yet"
        trial = subprocess.run(
            [self.python, "-m", "npu_rl", "--help"], cwd=ROOT, env=self._env(), capture_output=True, text=True
        )
        if trial.returncode:
            last = trial.stderr.strip().splitlines()[-1:] or ["no message"]
            return f"`python -m npu_rl --help` fails: {last[0]}"
        return None

    def contender(self, key: str, title: str, arguments: tuple[str, ...]) -> Contender:
        def command(url: str, workspace: Path, cache: Path) -> Command:
            filled = (part.format(workspace=workspace) for part in arguments)
            env = self._env() | {"NPU_RL_STORE": str(cache), "NPU_RL_REWRITE": self.rewrites(url)}
            return Command((self.python, "-m", "npu_rl", *filled), env, cwd=ROOT)

        return Contender(key, title, command, peer=False)

    def setup(self, title: str) -> Contender:
        return self.contender("npu-rl", title, SETUP)

    def rewrites(self, url: str) -> str:
        """FROM=TO for every URL of the manifest that a served copy stands for."""
        texts = [path.read_text() for path in (self._lock(), self._manifest()) if path.is_file()]
        named = sorted({found for text in texts for found in _URL.findall(text)})
        return "\n".join(f"{found}={url}/{name}.git" for found in named if (name := _served_as(found)))

    def check(self, workspace: Path) -> str | None:
        """What is wrong with the workspace's code tree, or None. The id comes from every byte on disk."""
        wanted = json.loads(self._lock().read_text())["tree"]
        found = tree_id(workspace / "code")
        return None if found == wanted else f"code tree is {found}, the lock says {wanted}"

    def _lock(self) -> Path:
        return ROOT / "manifests" / f"{MANIFEST}.lock.json"

    def _manifest(self) -> Path:
        return ROOT / "manifests" / f"{MANIFEST}.yaml"

    def _env(self) -> dict[str, str]:
        # A local dead end for http, so that a URL without a rewrite fails at once and stays on this machine.
        nowhere = dict.fromkeys(
            ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9"
        )
        mine = {"NPU_RL_CONFIG": str(self.lab / "home" / "none.yaml"), "NPU_RL_RETRIES": "0"}
        return {**self.environment, **nowhere, **mine}


def _served_as(url: str) -> str | None:
    last = url.rstrip("/").rpartition("/")[2].removesuffix(".git").lower()
    return next((u.name for u in UPSTREAMS if u.name.lower() == last), None)
