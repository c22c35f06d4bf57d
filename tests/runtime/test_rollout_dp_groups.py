"""Where copies of the rollout meet: the size that is said, addresses of real interfaces, ports of a real store."""

from __future__ import annotations

import ipaddress
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from npu_rl.runtime import rollout_dp_groups
from npu_rl.runtime.rollout_dp_groups import address, data_parallel_size, form
from npu_rl.runtime.rollout_dp_groups.address import node_address
from tests.support import ROOT

VARIABLES = ("VLLM_DP_SIZE", "VLLM_HOST_IP", "GLOO_SOCKET_IFNAME", "HCCL_SOCKET_IFNAME", "MASTER_ADDR")


@pytest.fixture(autouse=True)
def nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*VARIABLES, "NPU_RL_ROLLOUT_DP_GROUPS"):
        monkeypatch.delenv(name, raising=False)


def outside() -> tuple[str, str] | None:
    """An interface with an address that other hosts could reach: (name, address). By the system's own list."""
    for _, name in socket.if_nameindex():
        for found in address._addresses(name):
            known = ipaddress.ip_address(found)
            if not known.is_loopback and not known.is_link_local:
                return name, found
    return None


@pytest.mark.parametrize("size", ["0", "-1", "two", "", "1.5"])
def test_no_size(size: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_DP_SIZE", size)
    with pytest.raises(ValueError, match="is not a number of data-parallel replicas"):
        data_parallel_size()


@pytest.mark.parametrize(("size", "switch"), [(None, "1"), ("1", "1"), ("128", "0")])
def test_upstreams_turn(size: str | None, switch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is imported for it, and no world is needed."""
    if size:
        monkeypatch.setenv("VLLM_DP_SIZE", size)
    monkeypatch.setenv("NPU_RL_ROLLOUT_DP_GROUPS", switch)
    assert form(2) is False


def test_a_persons_word_is_the_address(monkeypatch: pytest.MonkeyPatch) -> None:
    for said in ("192.0.2.7", "2001:db8::7"):
        monkeypatch.setenv("VLLM_HOST_IP", said)
        assert node_address() == said


@pytest.mark.parametrize("useless", ["127.0.0.1", "::1", "0.0.0.0", "fe80::1", "node7", ""])
def test_no_address_for_others(useless: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_HOST_IP", useless)
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    monkeypatch.setenv("MASTER_ADDR", "localhost")
    assert node_address() is None


def test_the_address_of_an_interface(monkeypatch: pytest.MonkeyPatch) -> None:
    """By its name, by how it begins, with another before it; not by what it is not."""
    assert next(iter(address._addresses_of("=lo"))) == "127.0.0.1"
    there = outside()
    if there is None:
        assert node_address() is None
        return
    name, found = there
    for variable in ("GLOO_SOCKET_IFNAME", "HCCL_SOCKET_IFNAME"):
        for said in (name, f"={name}", f"lo,{name}", name[:-1], f"=no-such,{name}"):
            monkeypatch.setenv(variable, said)
            assert node_address() in address._addresses_of(said)
        monkeypatch.setenv(variable, name)
        assert node_address() == found
        for said in (f"^{name}", "no-such", "lo", f"={name[:-1]}"):
            monkeypatch.setenv(variable, said)
            assert node_address() is None
        monkeypatch.delenv(variable)


def test_the_way_to_the_master(monkeypatch: pytest.MonkeyPatch) -> None:
    """The own end of it: an address of this host is its own end."""
    there = outside()
    monkeypatch.setenv("MASTER_ADDR", "no.such.host.invalid")
    assert node_address() is None
    for end in [there[1]] if there else []:
        for said in (end, f"[{end}]") if ":" in end else (end,):
            monkeypatch.setenv("MASTER_ADDR", said)
            assert node_address() == end


class TestMeetingPoint:
    pytestmark = pytest.mark.rehearsal

    @pytest.fixture(autouse=True)
    def needs_torch(self) -> None:
        pytest.importorskip("torch")

    def test_before_there_is_a_world(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("VLLM_DP_SIZE", "2")
        with pytest.raises(RuntimeError, match="have formed no world yet"):
            form(1)

    @pytest.mark.parametrize(
        ("size", "tensor", "advice"),
        [
            (2, 1, "Set VLLM_DP_SIZE=1, or unset it"),
            (1, 2, "has to divide the world"),
            (128, 2, "has to divide"),
        ],
    )
    def test_copies_that_are_not_the_world(self, size: int, tensor: int, advice: str, tmp_path: Path) -> None:
        import torch.distributed as dist

        dist.init_process_group(
            "gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1
        )
        try:
            rollout_dp_groups.check_size(1, 1)
            with pytest.raises(
                ValueError, match=f"VLLM_DP_SIZE={size} replicas x tensor parallel {tensor} .*{advice}"
            ):
                rollout_dp_groups.check_size(size, tensor)
        finally:
            dist.destroy_process_group()

    def test_one_machine_or_several(self) -> None:
        from npu_rl.runtime.rollout_dp_groups.meeting_point import RankHost, meeting_host

        here, there = RankHost("a", "192.0.2.1"), RankHost("b", "2001:db8::2")
        assert meeting_host([here, here], 0) == "127.0.0.1"
        assert meeting_host([RankHost("a", None)] * 3, 2) == "127.0.0.1"
        assert meeting_host([here, there], 0) == "192.0.2.1"
        assert meeting_host([here, there], 1) == "2001:db8::2"
        with pytest.raises(RuntimeError, match=r"Rank 1 has to be reached .* VLLM_HOST_IP, the interface"):
            meeting_host([here, RankHost("b", None)], 1)

    def test_the_store_of_a_port_is_the_one_that_torch_gives_out(self) -> None:
        """As vLLM asks: a rendezvous at the address, each rank in a process of its own."""
        program = """
            import sys
            from datetime import timedelta
            from torch.distributed import rendezvous

            port, rank = int(sys.argv[1]), int(sys.argv[2])
            if rank == 0:
                from npu_rl.runtime.rollout_dp_groups.meeting_point import reserve_port

                port = reserve_port()
                print(port, flush=True)
            store, rank, size = next(rendezvous(f"tcp://127.0.0.1:{port}", rank, 2, timeout=timedelta(seconds=60)))
            store.set(f"from {rank}", str(rank))
            print(store.get(f"from {1 - rank}").decode(), store.port == port, flush=True)
            sys.stdin.read()  # the store lives in the first
        """
        script = [sys.executable, "-c", textwrap.dedent(program)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "cwd": ROOT}
        with subprocess.Popen([*script, "0", "0"], **pipes) as first:  # type: ignore[call-overload]
            port = first.stdout.readline().strip()
            with subprocess.Popen([*script, port, "1"], **pipes) as second:  # type: ignore[call-overload]
                assert second.stdout.readline().split() == ["0", "True"]
                assert first.stdout.readline().split() == ["1", "True"]
