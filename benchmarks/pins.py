"""The upstreams of `deepseek-v3-cann`, pinned, and the code tree every contender must end with.

Ids are written here and not read from a lock, so that the peers can be measured without npu-rl.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class PullRequest:
    """A pull request the documented procedure merges. `head` is the commit its ref pointed to."""

    number: int
    head: str

    @property
    def ref(self) -> str:
        return f"refs/pull/{self.number}/head"


@dataclass(frozen=True)
class Upstream:
    """One repository.

    name: the served repository is NAME.git; also the last part of its public URLs.
    snapshot: OWNER+NAME under NPU_RL_UPSTREAMS.
    pin: the commit the documentation names.
    documented: what the documentation passes to `git checkout`.
    package: the folder that goes into the code tree.
    spread: lay the contents of `package` at the top of the code tree, not the folder itself.
    depth: history git-aggregator needs so that its merges find a common ancestor.
    tags: refs the public repository has and the snapshot may lack.
    """

    name: str
    snapshot: str
    pin: str
    documented: str
    package: str
    pulls: tuple[PullRequest, ...] = ()
    spread: bool = False
    depth: int = 1
    tags: dict[str, str] = field(default_factory=dict)

    @property
    def result(self) -> str:
        """The commit the merges end at: every one of them is a fast-forward."""
        return self.pulls[-1].head if self.pulls else self.pin


UPSTREAMS: tuple[Upstream, ...] = (
    Upstream(
        name="verl",
        snapshot="volcengine+verl",
        pin="54c9b7364c2d188b2ba4107404cfa3c2b446df19",
        documented="54c9b7364c2d188b2ba4107404cfa3c2b446df19",
        package="verl",
        pulls=(PullRequest(3054, "fa52c1d467a6a5b4afe3fb4a43f5c4d85b9324f4"),),
        depth=540,
    ),
    Upstream(
        name="vllm",
        snapshot="ROCm+vllm",
        pin="b6553be1bc75f046b00046a4ad7576364d03c835",
        documented="v0.9.1",
        package="vllm",
        tags={
            "v0.7.3": "ed6e9075d31e32c8548b480a47d1ffb77da1f54c",
            "v0.9.1": "b6553be1bc75f046b00046a4ad7576364d03c835",
        },
    ),
    Upstream(
        name="vllm-ascend",
        snapshot="vllm-project+vllm-ascend",
        pin="e1d282d7cc017f7e8075074a6981532045801a73",
        documented="e1d282d7cc017f7e8075074a6981532045801a73",
        package="vllm_ascend",
        pulls=(
            PullRequest(1474, "1bd5be977ff261b2e75161a2ac7e6eed315af452"),
            PullRequest(2058, "f20869ef9d256434bba1260cd1bbfca9edf82cbd"),
        ),
        depth=6,
    ),
    Upstream(
        name="Megatron-LM",
        snapshot="NVIDIA+Megatron-LM",
        pin="baf94af3c667248865f23df73b9fb8e2395e6fd0",
        documented="core_r0.8.0",
        package="megatron",
    ),
    Upstream(
        name="MindSpeed",
        snapshot="Ascend+MindSpeed",
        pin="dc83a031a2653341be1690013c11cfbf556155c5",
        documented="v2.0.0_core_r0.8.0",
        package="mindspeed",
    ),
    Upstream(
        name="MindSpeed-LLM",
        snapshot="Ascend+MindSpeed-LLM",
        pin="3a712f58635be8825189c65a89f27a90dc458765",
        documented="v2.0.0",
        package="mindspeed_llm",
    ),
    Upstream(
        name="cann-recipes-train",
        snapshot="hicann+cann-recipes-train",
        pin="bcd3be7a96fa17a5d9ca243baf37d13590714633",
        documented="bcd3be7a96fa17a5d9ca243baf37d13590714633",
        package="deepseek",
        spread=True,
    ),
)
