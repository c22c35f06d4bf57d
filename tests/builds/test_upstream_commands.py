"""The build commands of docs/install.md against the lines of upstream's Dockerfiles: same variables, same options."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from npu_rl.stack.manifest.schema import BuildStep
from tests.support import ROOT, index_env, ok, run_cli

LINES = yaml.safe_load(Path(__file__).with_name("dockerfiles.yaml").read_text())
# Of our own: what setuptools_scm would ask git for.
OURS = {"SETUPTOOLS_SCM_PRETEND_VERSION"}


def steps() -> dict[str, BuildStep]:
    """The one build step of each component in the page."""
    text = (ROOT / "docs/install.md").read_text()
    blocks = [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)]
    components = {name: one for block in blocks for name, one in block["components"].items()}
    return {name: BuildStep.model_validate(as_text(one["build"][0])) for name, one in components.items()}


def as_text(step: dict[str, Any]) -> dict[str, Any]:
    return {**step, "proven": "true" if step.get("proven") else "false"}


@pytest.mark.parametrize("component", sorted(LINES))
def test_variables_are_those_of_the_dockerfile(component: str) -> None:
    text = "\n".join(line for source in LINES[component] for line in source["lines"])
    said = dict(re.findall(r"\b([A-Z][A-Z_]+)=\"?([\w.]+)", text.replace("=$SOC_VERSION", "")))
    given = {name: value for name, value in steps()[component].env.items() if name not in OURS}
    first = LINES[component][0]["lines"]
    assert set(given) == set(said)
    for name, value in given.items():
        assert any(re.search(rf'\b{name}="?{re.escape(value)}\b', line) for line in first), (name, value)


def test_only_what_was_run_is_marked_proven() -> None:
    assert {name: step.proven for name, step in steps().items()} == {
        "vllm": True,
        "vllm-ascend": False,
        "TransformerEngine": False,
    }


@pytest.mark.upstreams
def test_the_lines_are_in_the_upstreams(upstreams: Path) -> None:
    for source in (source for sources in LINES.values() for source in sources):
        folder = upstreams / source["repository"] / "repo"
        command = ["git", "-C", str(folder), "show", f"{source['commit']}:{source['file']}"]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        lines = [line.strip() for line in text.splitlines()]
        assert [line for line in source["lines"] if line not in lines] == []


@pytest.mark.pypi
@pytest.mark.upstreams
def test_the_one_that_is_marked_proven_is_run(upstreams: Path, tmp_path: Path) -> None:
    """vLLM for no device, from the page's own text, with what its setup.py imports."""
    torch = pytest.importorskip("torch")
    text = (ROOT / "docs/install.md").read_text()
    components = next(
        block for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL) if "empty" in block
    )
    manifest = tmp_path / "mine.yaml"
    manifest.write_text(f"schema: 1\nname: mine\ntitle: vLLM\ndevice: cpu\n{components}")
    python = tmp_path / "env/bin/python"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", python.parent.parent], check=True)
    (site,) = (tmp_path / "env/lib").glob("python*/site-packages")
    (site / "of-the-tests.pth").write_text(f"{Path(torch.__file__).parent.parent}\n")
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "-q", "--no-deps"]
    subprocess.run([*pip, "setuptools_scm<9"], check=True)
    env = index_env(tmp_path)
    env["NPU_RL_REWRITE"] = f"https://github.com/vllm-project/vllm.git={upstreams}/ROCm+vllm/repo"
    ok(run_cli(["lock", "-m", manifest], env, timeout=600))
    words: list[str | Path] = ["setup", "-m", manifest, "-w", tmp_path / "w", "--build", "--python", python]
    done = ok(run_cli(words, env, timeout=600))
    assert "built  src/vllm/dist/vllm-0.9.1+empty-py3-none-any.whl" in done.stdout
    shown = ok(run_cli(["verify", "-w", tmp_path / "w", "--deep"], env)).stdout
    assert "built here" in shown and "equals its lock" in shown
