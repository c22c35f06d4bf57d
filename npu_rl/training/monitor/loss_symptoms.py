"""Symptoms of nodes and processes that are gone: dead nodes, lost connections, and workers that died."""

from __future__ import annotations

import re

from npu_rl.training.monitor.symptom import Symptom, symptom

ADDRESS = r"(?P<address>[0-9A-Za-z.:%_-]{1,64}?)"
_LOST_HINT = (
    "Look at that host (power, network, `dmesg`). Start Ray there again with worker.sh of `--dry-run` or take the node "
    "out, end what is left of this run there with `npu-rl runs stop RUN`, and continue with --resume."
)
GONE_RANK_HINT = "Look at the log of that node's workers first, then at the host. Continue with --resume."
# What Ray's driver prints when a node stops answering (src/ray/gcs/gcs_server/gcs_node_manager.cc@2.42.1).
NODE_MARKED_DEAD = re.compile(
    rf"node with node id: \w+ and address: {ADDRESS} and node name: \S+ has been marked dead"
)
LOST_NODES = (
    Symptom(
        NODE_MARKED_DEAD,
        "The node {address} left the Ray cluster: it no longer answers.",
        _LOST_HINT,
        "ray#54035, ray/src/ray/gcs/gcs_server/gcs_node_manager.cc@2.42.1",
        "The node with node id: ada3a3771fac751bd7c6b674e3b5e2df045b93550e6d31a410cad0be and address: 156.176.0.154 "
        "and node name: 156.176.0.154 has been marked dead because the detector has missed too many heartbeats from "
        "it.",
    ),
    symptom(
        rf"(?:\bip: {ADDRESS}\s*\n[^\n]{{0,200}})?The actor died because its node has died",
        "A worker died because its node left the Ray cluster ({address}).",
        _LOST_HINT,
        "ray/exceptions.py@2.42.1",
        "The actor died because its node has died.",
    ),
    symptom(
        # newer Ray: "Task failed because the node it was running on is dead or unavailable. Node IP: "
        r"(?:was|is) dead or unavailable\."
        rf"(?:(?:[^\n]{{0,200}}\n){{0,3}}?[^\n]{{0,200}}?\b[Nn]ode IP: {ADDRESS}(?=[,\s]))?",
        "The node of a task left the Ray cluster ({address}).",
        _LOST_HINT,
        "ray/_raylet.so@2.42.1",
        "Task failed due to the node (where this task was running) was dead or unavailable. The node IP: 10.0.0.3,",
    ),
    symptom(
        # Ray ends an actor with the process that created it; that process had no error of its own.
        rf"its owner has died\.(?:[^\n]{{0,200}}? Owner Ip address: {ADDRESS}(?=\s))?[^\n]{{0,300}}node has crashed",
        "A worker died with the node of the process that created it, {address}, which left the Ray cluster.",
        _LOST_HINT,
        "EasyR1#324, ray/gcs_server@2.42.1",
        "The actor is dead because its owner has died. Owner Id: "
        "01000000ffffffffffffffffffffffffffffffffffffffffffffffff Owner Ip address: 172.21.160.9 Owner worker exit "
        "type: SYSTEM_ERROR Worker exit detail: Owner's node has crashed.",
    ),
    symptom(
        r"All copies of \w+ have been lost due to node failure",
        "A node left the Ray cluster with an object that the run needs; Ray does not report its address here.",
        _LOST_HINT,
        "ray/exceptions.py@2.42.1",
        "All copies of 00ffffffffffffffffffffffffffffffffffffff1300000001e1f505 have been lost due to node failure. "
        "Check cluster logs (`/tmp/ray/session_latest/logs`) for more information about the failure.",
    ),
    symptom(
        rf"(?:Read|Write) error \[{ADDRESS}\](?::\d+)?: Connection reset by peer",
        "The process of another rank on {address} is gone: the process or its node died, or the network failed.",
        GONE_RANK_HINT,
        "Mooncake#842, gloo/transport/tcp/pair.cc of torch@2.13.0",
        "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:535] Read error [10.1.3.122]:42916: "
        "Connection reset by peer",
    ),
    symptom(
        rf"Connection closed by peer \[{ADDRESS}\]",
        "The process of another rank on {address} is gone: the process or its node died, or the network failed.",
        GONE_RANK_HINT,
        "gloo/transport/tcp/pair.cc of torch@2.13.0",
        "RuntimeError: [/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by "
        "peer [127.0.0.1]:41350. This is typically caused by a remote worker crashing.",
    ),
    symptom(
        # NCCL's warning, which is also the last error of torch's DistBackendError.
        r"(?:Connection closed by remote peer"
        r"|Call to \w+ (?:from|to)(?=[^\n]{0,120} failed ?: (?:Connection reset by peer|Broken pipe)))"
        rf" {ADDRESS}<\d+>",
        "The process of another rank on {address} is gone: the process or its node died, or the network failed.",
        GONE_RANK_HINT,
        "nccl#1920, #1232",
        "gpu-server320 [5] misc/socket.cc:46 NCCL WARN socketProgressOpt: Call to send to 10.44.137.149<52905> failed "
        ": Connection reset by peer",
    ),
    symptom(
        rf"\bipv[46]:(?:%5B|\[)?{ADDRESS}(?:%5D|\])?:\d+(?=[^\w.:%]|:\s)[^\n]{{0,200}}Connection reset by peer",
        "A Ray process on {address} is gone: the process or its node died, or the network failed.",
        _LOST_HINT,
        "ray#24466, grpc of ray@2.42.1",
        '"description":"Error received from peer ipv4:10.96.58.42:50051","file":"src/core/lib/surface/call.cc",'
        '"file_line":1074,"grpc_message":"Connection reset by peer","grpc_status":14',
    ),
)
# These come after memory: Ray logs whom its memory monitor has killed, and then these errors follow from that.
DEAD_PROCESSES = (
    symptom(
        rf"its owner has died\.(?:[^\n]{{0,200}}? Owner Ip address: {ADDRESS}(?=\s))?",
        "The process on {address} that created a worker is gone, and Ray ended the worker with it: it died, or its "
        "node or the network to it did.",
        GONE_RANK_HINT,
        "ray/gcs_server@2.42.1",
        "The actor is dead because its owner has died. Owner Id: "
        "01000000ffffffffffffffffffffffffffffffffffffffffffffffff Owner Ip address: 10.0.0.3 Owner worker exit type: "
        "SYSTEM_ERROR Worker exit detail: Worker unexpectedly exits with a connection error code 2. End of file.",
    ),
    symptom(
        rf"The object's owner has exited\.(?:[^\n]{{0,500}}? at IP address {ADDRESS}\))?",
        "The process on {address} that created an object of Ray is gone: it died, or its node or the network to it "
        "did.",
        GONE_RANK_HINT,
        "ray#31265, ray/exceptions.py@2.42.1",
        "The object's owner has exited. This is the Python worker that first created the ObjectRef via `.remote()` or "
        "`ray.put()`. Check cluster logs "
        "(`/tmp/ray/session_latest/logs/*06000000ffffffffffffffffffffffffffffffffffffffffffffffff*` at IP address "
        "192.168.16.197) for more information about the Python worker failure.",
    ),
    symptom(
        r"actor is temporarily unavailable: "
        rf"(?:[^\n]{{0,500}}?\bipv[46]:(?:%5B|\[)?{ADDRESS}(?:%5D|\])?:\d+(?=[:;\s]))?",
        "A worker on {address} does not answer: the worker or its node died, or the network failed.",
        GONE_RANK_HINT,
        "ray#59626, ray/exceptions.py@2.42.1",
        "ray.exceptions.ActorUnavailableError: The actor c5d60362068042d8669d510501000000 is unavailable: The actor is "
        "temporarily unavailable: RpcError: RPC Error message: failed to connect to all addresses; last error: "
        "UNKNOWN: ipv4:10.0.0.3:10172: Failed to connect to remote host: Connection refused; RPC Error details:  "
        "rpc_code: 14. "
        "The task may or maynot have been executed on the actor.",
    ),
    symptom(
        rf"(?:\bip={ADDRESS}\)[^\n]{{0,80}})?The task's local raylet died",
        "Ray's own process (raylet) on {address} died, and with it all workers there.",
        "Read the end of that node's raylet.out (in workers/, or in /tmp/ray/session_latest/logs of the node) for the "
        "reason. Start Ray there again, and continue with --resume.",
        "ray#48997, ray/exceptions.py@2.42.1",
        "ray.exceptions.LocalRayletDiedError: The task's local raylet died. Check raylet.out for more information.",
    ),
    symptom(
        r"ActorDiedError|RayActorError|Worker unexpectedly exits|died or was killed while executing",
        "A worker process died without an error message: host memory ran out, or compiled code crashed.",
        "Check `dmesg` for the OOM killer, and the last lines of that worker's log.",
        "verl#275, #472",
        "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.",
    ),
)
