"""The files of a step that a node must have, by strategy and number of nodes."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from npu_rl.training.record.saved_checkpoints.saved_steps import RoleFiles, SavedLayout, fault_of, saved_steps

ACTOR = RoleFiles("actor", "fsdp")
TWO_NODES = SavedLayout((ACTOR,), world=4, dies=2)
# TP2 PP2 EP2 on 16 ranks: DP4, so that two data-parallel ranks have the same experts.
LEGACY = SavedLayout((RoleFiles("actor", "legacy", sizes=(2, 2, 1, 2)),), world=16, dies=16)


def packed(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("data.pkl", b"x")


def of_fsdp(step: Path, world: int, ranks: range, role: str = "actor") -> Path:
    for rank in ranks:
        for name in ("model", "optim", "extra_state"):
            packed(step / role / f"{name}_world_size_{world}_rank_{rank}.pt")
    packed(step / "data.pt")
    return step


def of_legacy(step: Path) -> Path:
    for pp in range(2):
        for tp in range(2):
            for dp in range(4):
                place = f"pp{pp}_tp{tp}_cp0_dp{dp}.pt"
                packed(step / f"actor/model/mp_rank_{tp:02d}_{pp:03d}_{dp % 2:03d}/model.pt")
                packed(step / f"actor/rng_states/rng_states_{place}")
                packed(step / f"actor/optim/distrib_optim_{place}.steps")
                if dp < 2:
                    packed(step / f"actor/optim/distrib_optim_{place}")
    packed(step / "data.pt")
    return step


def test_a_disk_of_all_nodes_and_a_disk_of_this_one(tmp_path: Path) -> None:
    assert fault_of(of_fsdp(tmp_path / "shared", 4, range(4)), TWO_NODES) == ""
    for number, ranks in enumerate((range(2), range(2, 4))):
        assert fault_of(of_fsdp(tmp_path / f"own-{number}", 4, ranks), TWO_NODES) == ""
    fault = fault_of(of_fsdp(tmp_path / "three", 4, range(3)), TWO_NODES)
    assert fault == "actor/model_world_size_4_rank_3.pt is missing"
    fault = fault_of(of_fsdp(tmp_path / "one", 4, range(1)), TWO_NODES)
    assert fault == "actor/model_world_size_4_rank_1.pt is missing"
    empty = of_fsdp(tmp_path / "none", 4, range(0))
    assert fault_of(empty, TWO_NODES) == "actor/ is missing"
    (empty / "actor").mkdir()
    assert fault_of(empty, TWO_NODES) == "actor/model_world_size_4_rank_0.pt is missing"


def test_a_critic_and_what_is_loaded(tmp_path: Path) -> None:
    both = SavedLayout((ACTOR, RoleFiles("critic", "fsdp", ("model",))), 1, 1)
    step = of_fsdp(tmp_path / "global_step_3", 1, range(1))
    assert fault_of(step, both) == "critic/ is missing"
    packed(step / "critic" / "model_world_size_1_rank_0.pt")
    assert fault_of(step, both) == ""
    assert saved_steps(tmp_path, both) == {3: ""}
    (tmp_path / "global_step_x").mkdir()
    (tmp_path / "global_step_10").mkdir()
    assert list(saved_steps(tmp_path, both)) == [3, 10]
    assert saved_steps(tmp_path / "nowhere", both) == {}


@pytest.mark.parametrize(
    "name",
    [
        "actor/model/mp_rank_01_001_001/model.pt",
        "actor/rng_states/rng_states_pp1_tp0_cp0_dp3.pt",
        "actor/optim/distrib_optim_pp0_tp1_cp0_dp0.pt",
        "actor/optim/distrib_optim_pp0_tp1_cp0_dp3.pt.steps",
        "data.pt",
    ],
)
def test_each_file_of_megatrons_ranks(name: str, tmp_path: Path) -> None:
    step = of_legacy(tmp_path / "global_step_1")
    assert fault_of(step, LEGACY) == ""
    (step / name).unlink()
    assert fault_of(step, LEGACY) == f"{name} is missing"


def test_an_experts_optimizer_that_is_cut_off(tmp_path: Path) -> None:
    step = of_legacy(tmp_path / "global_step_1")
    (step / "actor/optim/distrib_optim_pp1_tp0_cp0_dp1.pt").write_bytes(b"PK" * 50)
    assert "distrib_optim_pp1_tp0_cp0_dp1.pt is cut off" in fault_of(step, LEGACY)


@pytest.mark.parametrize("data", [b"", b"\x80\x02}.", b"x", b"cos\nsystem\n(S'true'\ntR."])
def test_metadata_that_is_none(data: bytes, tmp_path: Path) -> None:
    layout = SavedLayout((RoleFiles("actor", "torch_dist"),), 1, 1)
    folder = tmp_path / "actor" / "dist_ckpt"
    folder.mkdir(parents=True)
    assert fault_of(tmp_path, layout) == "actor/dist_ckpt/.metadata is missing"
    (folder / ".metadata").write_bytes(data)
    assert fault_of(tmp_path, layout).startswith("actor/dist_ckpt/ can't be read: ")
