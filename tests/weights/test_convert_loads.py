"""What `weights convert` makes of a tiny DeepSeek-V3, loaded by verl at other layouts, in deepseek-r1-zero's tree."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from npu_rl.common.python_roots import INJECTED, NPU, REHEARSAL
from tests.patchsets import flagship_tree
from tests.runtime.tiny_deepseek import make
from tests.weights.gloo_ranks import processes
from tests.weights.inline_workers import convert

torch = pytest.importorskip("torch")
for _needed in ("transformers", "accelerate", "tensordict", "einops"):
    pytest.importorskip(_needed)
pytestmark = [pytest.mark.rehearsal, pytest.mark.upstreams]

RUNNER = Path(__file__).with_name("run_verl.py")
TENSORS = 129


@pytest.fixture(scope="module")
def tree(upstreams: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tree") / "code"
    return flagship_tree.tree(upstreams, folder, ["verl", "Megatron-LM", "MindSpeed"])


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("model") / "hf")


@pytest.fixture(scope="module")
def checkpoint(model: Path) -> Path:
    return converted(model)


def converted(model: Path) -> Path:
    made = model.with_name("mcore")
    convert(model, made)
    return made


def run(tree: Path, jobs: list[Any], ranks: int, folder: Path) -> list[list[Any]]:
    """What each job gave, on each rank."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "jobs.json").write_text(json.dumps(jobs, default=str))
    arguments = [str(RUNNER), str(tree), "jobs.json", "."]
    environment = {"NPU_RL_STANDINS": "cpu", "TORCHDYNAMO_DISABLE": "1"}
    command = [sys.executable, "-W", "ignore", *arguments]
    for done in processes(command, ranks, folder, [INJECTED, REHEARSAL, NPU], **environment):
        assert done.returncode == 0, done.stdout[-4000:]
    found = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(ranks)]
    return [[of_rank[number] for of_rank in found] for number in range(len(jobs))]


@pytest.mark.parametrize(
    ("ranks", "layouts"),
    [
        (2, [{"pipeline": 1, "expert": 2}, {"pipeline": 2, "expert": 1, "layers": [1, 3]}]),
        (4, [{"pipeline": 1, "expert": 4}, {"pipeline": 2, "expert": 2}, {"pipeline": 4, "expert": 1}]),
    ],
)
def test_at_any_layout_verl_has_the_model(
    ranks: int, layouts: list[dict[str, Any]], tree: Path, model: Path, checkpoint: Path, tmp_path: Path
) -> None:
    """Loaded and turned back into Hugging Face's tensors as for verl's rollout, it is the model, every bit.

    And the checkpoint has what `sharded_state_dict` of the whole model asks for, extra states included, and no other
    tensor.
    """
    jobs: list[Any] = []
    for layout in layouts:
        jobs.append(["come_back", {"hf": model, "checkpoint": checkpoint, **layout}])
        jobs.append(["asked", {"hf": model, **layout}])
    found = run(tree, jobs, ranks, tmp_path)
    for back, (asked, *_) in zip(found[0::2], found[1::2], strict=True):
        for rank in back:
            assert len(rank) == TENSORS
            assert set(rank.values()) == {"same"}
        assert_has(checkpoint, asked)


def assert_has(checkpoint: Path, asked: dict[str, Any]) -> None:
    from torch.distributed.checkpoint import FileSystemReader

    described = FileSystemReader(checkpoint).read_metadata().state_dict_metadata
    shapes = {key: list(of.size) if hasattr(of, "size") else None for key, of in described.items()}
    assert asked.items() <= shapes.items()
    assert {key for key, shape in shapes.items() if shape} <= asked.keys()


def test_models_whose_layers_are_alike_load(tree: Path, tmp_path: Path) -> None:
    """All with experts, and none: each has keys of its own, as verl says by layer which have experts."""
    models = [make(tmp_path / str(dense) / "hf", first_k_dense_replace=dense) for dense in (0, 9)]
    jobs: list[Any] = []
    for model in models:
        of = {"hf": model, "pipeline": 1, "expert": 1}
        jobs += [["asked", of], ["come_back", {**of, "checkpoint": converted(model)}]]
    found = run(tree, jobs, 1, tmp_path / "ranks")
    for model, (asked,), (back,) in zip(models, found[0::2], found[1::2], strict=True):
        assert_has(model.with_name("mcore"), asked)
        assert set(back.values()) == {"same"}


def test_one_process_has_the_model(tree: Path, model: Path, checkpoint: Path, tmp_path: Path) -> None:
    """The logits are transformers', verl's merger gives the model back, and both forms of the experts load.

    Logits in float32: 4 layers of sums over at most 96 numbers, so some 1e-6 of the largest. That the comparison is
    sensitive: without the bias of one router it is off by a thousand times more.
    """
    of = {"hf": model, "checkpoint": checkpoint}
    (logits,), (forms,), (merged,) = run(tree, [["logits", of], ["forms", of], ["merge", of]], 1, tmp_path)
    assert logits["difference"] < 1e-5 * logits["scale"] < 0.01 * logits["without_bias"]
    assert forms == {"same": True, "compared": 54, "kinds": ["SequentialMLP", "TEGroupedMLP"]}
    assert len(merged) == TENSORS
    assert set(merged.values()) == {"same"}
