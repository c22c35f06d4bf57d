"""What `npu-rl setup` and `verify` cost beside west and vcstool2, for the seven upstreams of `deepseek-v3-cann`.

    NPU_RL_UPSTREAMS=DIR python -m benchmarks.setup --lab LAB --rounds 5

DIR has a bare repository OWNER+NAME/repo for each upstream, which all clone by file://. LAB gets the peers' virtual
environment (from PyPI) and the trials. In each round, which go in turn, every contender makes a new workspace with
empty caches, does the same again in it, and looks whether it is what it should be: `verify`, `verify --deep`, and
`git status` in each clone of the peers. `tar` is the floor: what npu-rl assembled, packed and laid down. Printed are
medians and the median of the rounds' ratios to npu-rl; nothing is asserted about time. Peers can't merge: their
scripts check out the heads of the pull requests. They apply no patch and prove no byte.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from npu_rl.common.bundled import bundled_manifests
from npu_rl.stack.lock import lock_model
from npu_rl.stack.lock.lock_model import LockedComponent
from tests.support import rewrites

MANIFEST = "deepseek-v3-cann"
PEERS = ("west==1.5.0", "vcstool2==0.4.5")
CONFIG = "[uploadpack]\nallowAnySHA1InWant = true\nallowFilter = true\n[safe]\ndirectory = *\n"


def environment(lab: Path, upstreams: Path) -> dict[str, str]:
    """Return the same surroundings for every contender, without the user's configuration."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("GIT_", "NPU_RL_", "PYTHON"))}
    (lab / "gitconfig").write_text(CONFIG)
    home = {"HOME": str(lab), "XDG_STATE_HOME": str(lab / "state"), "XDG_CACHE_HOME": str(lab / "cache")}
    git = {
        "GIT_CONFIG_GLOBAL": str(lab / "gitconfig"),
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_TERMINAL_PROMPT": "0",
    }
    rewrite = {"NPU_RL_REWRITE": rewrites(upstreams, MANIFEST), "NPU_RL_CONFIG": str(lab / "none.yaml")}
    return {**kept, **home, **git, **rewrite, "PATH": f"{lab / 'peers/bin'}:{kept['PATH']}"}


def served(component: LockedComponent, rewrite: str) -> str:
    """Return the file:// URL of an upstream's copy."""
    rules = dict(line.split("=", 1) for line in rewrite.splitlines())
    return next(f"file://{rules[one.git]}" for one in component.sources if one.git in rules)


def peer_scripts(rewrite: str) -> dict[str, tuple[str, str, str]]:
    """Return each peer's scripts: from nothing, again, and its look at the clones."""
    components = lock_model.read(lock_model.lock_path(bundled_manifests()[MANIFEST])).components
    urls = {name: served(one, rewrite) for name, one in components.items()}
    after, projects, rows = ["mkdir code"], "", ""
    for name, one in components.items():
        for merge in one.merges:
            after.append(f"git -C {name} fetch -q --depth=1 {urls[name]} {merge.head}")
            after.append(f"git -C {name} checkout -q FETCH_HEAD")
        after += [f"cp -rT {name}/{take.path} code/{take.to}" for take in one.take if take.mode == "40000"]
        projects += f"    - {{name: {name}, url: '{urls[name]}', revision: {one.pin}}}\n"
        rows += f"  {name}: {{type: git, url: '{urls[name]}', version: {one.pin}}}\n"
    rest, status = "\n".join(after), "\n".join(f"git -C {name} status --porcelain" for name in components)
    update, imports = "west -q update --narrow -o=--depth=1", "vcs import --shallow -w 6 < w.repos"
    west = f"mkdir m\ncat > m/west.yml <<X\nmanifest:\n  projects:\n{projects}X\nwest -q init -l m\n{update}\n{rest}"
    vcs = f"cat > w.repos <<X\nrepositories:\n{rows}X\n{imports}\n{rest}"
    return {"west": (west, update, status), "vcstool2": (vcs, imports, status)}


def seconds(script: str, folder: Path, env: Mapping[str, str]) -> float:
    """Run a script in a folder, and return its seconds. Ends the benchmark if it fails."""
    os.sync()
    began = time.monotonic()
    done = subprocess.run(["bash", "-ec", script], cwd=folder, env=env, capture_output=True, text=True)
    took = time.monotonic() - began
    if done.returncode:
        raise SystemExit(f"{script}\nended with {done.returncode}: {done.stderr[-2000:]}")
    return took


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--lab", type=Path, required=True, help="folder for tools and trials")
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    lab = given.lab.absolute()
    lab.mkdir(parents=True, exist_ok=True)
    env = environment(lab, Path(os.environ["NPU_RL_UPSTREAMS"]).absolute())
    if not (lab / "peers/bin/west").exists():
        subprocess.run([sys.executable, "-m", "venv", lab / "peers"], check=True)
        subprocess.run([lab / "peers/bin/pip", "install", "-q", *PEERS], check=True)
    python = f"PYTHONPATH={shlex.quote(os.getcwd())} {shlex.quote(sys.executable)} -m npu_rl"
    setup = f"NPU_RL_STORE=$PWD/store {python} setup -m {MANIFEST} -w w"
    contenders = {
        "npu-rl": (setup, setup, f"{python} verify -w w", f"{python} verify --deep -w w"),
        **peer_scripts(env["NPU_RL_REWRITE"]),
        "tar": (f"tar -xf {shlex.quote(str(lab / 'floor.tar'))}",),
    }
    times: dict[tuple[str, int], list[float]] = {}
    for number in range(given.rounds + 1):  # the first one warms the disk's cache
        names = list(contenders)
        for name in names if number == 0 else names[number % len(names) :] + names[: number % len(names)]:
            folder = lab / "trial"
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            for step, script in enumerate(contenders[name]):
                took = seconds(script, folder, env)
                if number:
                    times.setdefault((name, step), []).append(took)
            if name == "npu-rl" and number == 0:
                subprocess.run(["tar", "-cf", lab / "floor.tar", "-C", folder / "w", "code"], check=True)
    steps = ("from nothing", "again", "verify, git status", "verify --deep")
    print(f"seconds, medians of {given.rounds} rounds; load {os.getloadavg()[0]:.1f}")
    for (name, step), values in sorted(times.items(), key=lambda one: one[0][1]):
        ratio = statistics.median(a / b for a, b in zip(values, times["npu-rl", step], strict=True))
        print(f"{steps[step]:<20} {name:<10} {statistics.median(values):7.3f}  {ratio:6.2f} x npu-rl")


if __name__ == "__main__":
    main()
