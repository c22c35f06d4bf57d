"""Rendezvous of a data-parallel group: address and port of the group's first rank.

The port is found by binding it, and stays bound. The first rank starts the store that the replicas will use, on a
port that the system chooses, and keeps it open. vLLM requests a store at that port from torch (`rendezvous`, with
multi_tenant=True), and within one process torch returns the running one (`TCPServer::start`,
torch/csrc/distributed/c10d/TCPStore.cpp). So no other process can ever take the port, as it could take
MASTER_PORT + 1 + i, or a port that was free at an earlier check.

vLLM listens at this port only. It computes the ports after it but never opens them, because the training world
already exists (`init_distributed_environment`, vllm/distributed/parallel_state.py:918@v0.9.1).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .address import LOOPBACK, SOURCES, machine, node_address
from .groups import tell

_kept: list[Any] = []
"""The stores of this process: a port is free again when its store is gone."""


@dataclass(frozen=True)
class RankHost:
    """Host of a rank.

    machine: equal for ranks that share 127.0.0.1. address: for ranks on other hosts.
    """

    machine: str
    address: str | None


def agree() -> None:
    """Choose each data-parallel group's rendezvous, and set vLLM's variables for it on every rank.

    Uses the gloo groups that vLLM has besides the device's, so it doesn't need HCCL.
    Raises RuntimeError on every rank of a group whose first rank has no address or gets no port.
    """
    import torch.distributed as dist
    from vllm.distributed.parallel_state import get_dp_group, get_world_group

    hosts: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(hosts, RankHost(machine(), node_address()), group=get_world_group().cpu_group)
    group = get_dp_group()
    first = group.ranks[0]
    host = meeting_host(hosts, first)
    port, problem = _reserved() if group.rank == first else (0, "")
    port, problem = group.broadcast_object((port, problem), src=0)
    if problem:
        raise RuntimeError(
            f"Rank {first}, the first of the data-parallel group {_short(group.ranks)}, can't open a port for the "
            f"group's rendezvous: {problem}. Check whether its host has free ports (net.ipv4.ip_local_port_range, "
            "ss -s)."
        )
    earlier = group.ranks[: group.rank_in_group]
    tell("VLLM_DP_RANK", group.rank_in_group)
    tell("VLLM_DP_RANK_LOCAL", sum(hosts[rank].machine == hosts[group.rank].machine for rank in earlier))
    tell("VLLM_DP_MASTER_IP", host)
    tell("VLLM_DP_MASTER_PORT", port)


def meeting_host(hosts: list[RankHost], first: int) -> str:
    """Return rank `first`'s address for all ranks: 127.0.0.1 if all are on one host, otherwise its network address."""
    if len({host.machine for host in hosts}) == 1:
        return LOOPBACK
    address = hosts[first].address
    if address is None:
        raise RuntimeError(
            f"Rank {first} has to be reached from other hosts, but none of these gave an address for it other than "
            f"loopback: {SOURCES}. Set one of the first two on its host."
        )
    return address


def _reserved() -> tuple[int, str]:
    """Return a reserved port and "", or 0 and the error."""
    try:
        return reserve_port(), ""
    except (OSError, RuntimeError) as error:  # torch's own network errors are RuntimeErrors
        return 0, f"{type(error).__name__}: {error}"


def reserve_port() -> int:
    """Return a port of this host on which a store listens until the process ends."""
    from torch.distributed import TCPStore

    # No worker is counted or waited for here: the ranks that meet do that.
    store = TCPStore(LOOPBACK, 0, None, True, wait_for_workers=False, multi_tenant=True)
    _kept.append(store)
    return int(store.port)


def _short(ranks: list[int]) -> str:
    return str(ranks) if len(ranks) <= 8 else f"[{ranks[0]}, {ranks[1]}, ... {ranks[-1]}]"
