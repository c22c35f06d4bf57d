"""A failed run's cause is found in its logs, with the place, among the noise of many workers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npu_rl.common.yaml_documents.document_kind import find_manifest
from npu_rl.training.monitor.explain_failure import Explanation, explain
from npu_rl.training.monitor.missing_module import Stack
from npu_rl.training.monitor.symptoms import symptoms

REMOTE = """\
2026-01-01 10:00:00,000	INFO worker.py:1841 -- Started a local Ray instance.
\x1b[36m(TaskRunner pid=7)\x1b[0m Total training steps: 3
Error executing job with overrides: ['algorithm.adv_estimator=grpo']
Traceback (most recent call last):
  File "/tree/verl/trainer/main_ppo.py", line 74, in run_ppo
    ray.get(runner.run.remote(config))
  File "/site/ray/_private/worker.py", line 919, in get_objects
    raise value.as_instanceof_cause()
ray.exceptions.RayTaskError({name}): \x1b[36mray::TaskRunner.run()\x1b[39m (pid=7, ip=127.0.0.1)
           ^^^^^^^^^^^^^^^^^^^^
  File "/tree/verl/trainer/main_ppo.py", line 239, in run
    trainer.fit()
  File "/tree/verl/protocol.py", line 107, in union_tensor_dict
    raise {name}(
{name}: {message}
\x1b[36m(TaskRunner pid=7)\x1b[0m \rTraining Progress:  0%\rTraining Progress: 33%
"""


def found(folder: Path, *texts: str, code: int | None = None) -> Explanation | None:
    logs = []
    for number, text in enumerate(texts):
        logs.append(folder / f"log{number}")
        logs[-1].write_text(text)
    return explain(logs, code)


def sure(explanation: Explanation | None) -> Explanation:
    assert explanation is not None
    return explanation


def remote(name: str, message: str) -> str:
    return REMOTE.replace("{name}", name).replace("{message}", message)


def test_the_error_of_a_remote_process_and_not_rays_wrapper(tmp_path: Path) -> None:
    told = sure(found(tmp_path, remote("KeyError", "'rewards'")))
    assert told.cause == "KeyError: 'rewards'\nraised at /tree/verl/protocol.py:107"
    assert (told.file, told.line) == (tmp_path / "log0", 15)
    assert (tmp_path / "log0").read_text().split("\n")[told.line - 1] == "KeyError: 'rewards'"
    assert "union_tensor_dict" in told.excerpt
    assert "\x1b" not in told.excerpt


def test_the_last_traceback_counts_and_one_that_was_dealt_with_does_not(tmp_path: Path) -> None:
    harmless = (
        "2026-01-01 ERROR npu.py:81 -- Failed to detect NPU type.\n"
        "Traceback (most recent call last):\n"
        '  File "/site/ray/npu.py", line 77, in get\n    import acl\n'
        "ModuleNotFoundError: No module named 'acl'\n"
    )
    late = (
        "Exception ignored in: <function Pool.__del__ at 0x7f>\n"
        "Traceback (most recent call last):\n"
        '  File "/site/pool.py", line 1, in __del__\n'
        "TypeError: 'NoneType' object is not callable\n"
    )
    assert found(tmp_path, harmless + late) is None
    told = sure(found(tmp_path, remote("ValueError", "first") + remote("ValueError", "second") + late))
    assert told.cause.startswith("ValueError: second")


def test_tracebacks_of_several_workers_that_come_mixed(tmp_path: Path) -> None:
    lines = []
    for left, right in zip(
        ("Traceback (most recent call last):", '  File "/a.py", line 1, in f', "    g()", "ValueError: left"),
        ("Traceback (most recent call last):", '  File "/b.py", line 2, in f', "    h()", "OSError: right"),
        strict=True,
    ):
        lines += [f"\x1b[36m(WorkerDict pid=1)\x1b[0m {left}", f"(WorkerDict pid=2, ip=10.0.0.2) {right}"]
    told = sure(found(tmp_path, "\n".join(lines)))
    assert told.cause == "OSError: right\nraised at /b.py:2"
    assert told.line == 8
    assert "ValueError" not in told.excerpt


def test_when_the_driver_only_says_that_a_worker_died_the_worker_is_asked(tmp_path: Path) -> None:
    died = remote("ActorDiedError", "The actor died unexpectedly before finishing this task.")
    worker = (
        "[rank3]: Traceback (most recent call last):\n"
        '[rank3]:   File "/tree/m.py", line 5, in forward\n'
        "[rank3]: RuntimeError: shape mismatch\n"
    )
    told = sure(found(tmp_path, died, "all is well\n", worker))
    assert told.cause == "RuntimeError: shape mismatch\nraised at /tree/m.py:5"
    assert told.file == tmp_path / "log2"
    alone = sure(found(tmp_path, died, "all is well\n"))
    assert "died without an error message" in alone.cause
    assert alone.source


def test_a_symptom_near_an_unknown_error_is_told_as_a_guess(tmp_path: Path) -> None:
    text = "OSError: [Errno 28] No space left on device\nretrying\n" + remote("ValueError", "no such shard")
    told = sure(found(tmp_path, text))
    assert told.cause.startswith("ValueError: no such shard")
    assert "log0:1 may be related: A disk, a quota or /dev/shm" in told.hint


def test_a_death_without_words_is_told_by_its_signal(tmp_path: Path) -> None:
    assert "host memory" in sure(found(tmp_path, "step 1\n", code=-9)).cause
    assert "signal 11" in sure(found(tmp_path, "step 1\n", code=-11)).cause
    assert found(tmp_path, "step 1\n", code=1) is None
    assert found(tmp_path, "step 1\n") is None
    assert explain([tmp_path / "none"], -9) is None


@given(
    st.lists(
        st.sampled_from(
            [
                "Traceback (most recent call last):",
                '  File "a.py", line 1, in f',
                "ValueError: x",
                "(W pid=1) Traceback (most recent call last):",
                "(W pid=1) KeyError",
                "",
                "    code",
                "\r",
            ]
        )
        | st.text(max_size=30)
    )
)
def test_no_log_makes_it_fail(tmp_path_factory: pytest.TempPathFactory, lines: list[str]) -> None:
    log = tmp_path_factory.mktemp("explain") / "log"
    log.write_bytes("\n".join(lines).encode("utf-8", "surrogatepass"))
    told = explain([log])
    assert told is None or (told.cause and told.hint and 1 <= told.line <= len(log.read_bytes().split(b"\n")))


# -- the cause behind others ---------------------------------------------------------------------------


def traceback(speaker: str, place: str, exception: str) -> str:
    lines = ("Traceback (most recent call last):", f'  File "{place}", line 9, in f', exception)
    return "".join(f"{speaker}{line}\n" for line in lines)


ENGINE_DEAD = remote(
    "EngineDeadError", "EngineCore encountered an issue. See stack trace (above) for the root cause."
)
WORKER = "(Server pid=3) (Worker_TP3 pid=7) ERROR 06-29 11:08:26 [multiproc_executor.py:96] "
CORE = "(Server pid=3) (EngineCore_DP0 pid=5) ERROR 06-29 11:08:27 [core.py:11] "


def test_an_engine_that_died_is_followed_to_the_error_above_it(tmp_path: Path) -> None:
    told = sure(found(tmp_path, traceback(CORE, "/runner.py", "KeyError: 'scale'") + ENGINE_DEAD))
    assert (told.cause, told.line) == ("KeyError: 'scale'\nraised at /runner.py:9", 3)


def test_and_to_the_log_of_any_worker(tmp_path: Path) -> None:
    failed = remote(
        "RuntimeError", "Engine core initialization failed. See root cause above. Failed core proc(s): {}"
    )
    told = sure(
        found(tmp_path, failed, "well\n", traceback("", "/runner.py", "ImportError: libatb.so: cannot open"))
    )
    assert told.file == tmp_path / "log2" and "NNAL" in told.cause


def test_the_worker_whose_error_the_engine_quotes_is_the_cause(tmp_path: Path) -> None:
    """Other workers fail after it, and the engine raises again what the first one raised."""
    message = "shape '[8, 128]' is invalid for input of size 1000"
    text = traceback(WORKER, "/first.py", f"RuntimeError: {message}")
    text += traceback(WORKER.replace("TP3", "TP1"), "/later.py", "ValueError: the group has ended")
    text += traceback(CORE, "/core.py", f"RuntimeError: Worker failed with error '{message}', please check the stack "
                      "trace above for the root cause")  # fmt: skip
    assert sure(found(tmp_path, text + ENGINE_DEAD)).cause.endswith("raised at /first.py:9")


HTTP = remote(
    "ClientResponseError", "500, message='Internal Server Error', url='http://10.0.0.3:8000/v1/completions'"
)


def test_an_http_error_of_an_engine_that_died_is_not_the_cause(tmp_path: Path) -> None:
    engine = traceback(CORE, "/scheduler.py", "AssertionError")
    dead = traceback(
        "(Server pid=3) ERROR 06-29 11:08:28 [async_llm.py:480] ", "/client.py", "EngineDeadError: dead"
    )
    told = sure(found(tmp_path, dead + engine + HTTP))
    assert told.cause == "AssertionError\nraised at /scheduler.py:9"
    assert sure(found(tmp_path, engine + HTTP)).cause.startswith(
        "ClientResponseError: 500"
    )  # another's server
    assert "ClientResponseError" in sure(found(tmp_path, HTTP)).cause


def test_a_rank_that_waited_is_not_the_cause(tmp_path: Path) -> None:
    waited = (
        "RuntimeError: EI0006: Getting socket times out. Reason: Remote Rank did not send the data in time."
    )
    text = traceback("(WorkerDict pid=1) ", "/hccl.py", waited)
    told = sure(found(tmp_path, text, traceback("", "/mine.py", "ZeroDivisionError: division by zero")))
    assert told.cause == "ZeroDivisionError: division by zero\nraised at /mine.py:9"


DIED = """\
ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.
\tclass_name: create_colocated_worker_cls.<locals>.WorkerDict
\tactor_id: 5a1b
\tpid: 3821
\tname: 7n5RDNWorkerDict_0:3
\tnamespace: 2c
\tip: 172.16.0.5
"""


def test_a_dead_worker_is_named_by_rank_node_and_process(tmp_path: Path) -> None:
    assert "It was WorkerDict_0:3, process 3821 on 172.16.0.5." in sure(found(tmp_path, DIED)).cause
    unnamed = DIED.replace("\tname: 7n5RDNWorkerDict_0:3\n", "").replace(
        "create_colocated_worker_cls.<locals>.", ""
    )
    assert "It was WorkerDict, process 3821 on 172.16.0.5." in sure(found(tmp_path, unnamed)).cause


def test_a_dead_worker_is_named_where_rays_message_goes_on(tmp_path: Path) -> None:
    """The name comes before the words that are found, and verl's prefix may have capitals."""
    text = DIED.replace("7n5RDN", "kQz3Jp") + (
        "The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit detail: "
        "Worker unexpectedly exits with a connection error code 2. End of file.\n"
    )
    earlier = DIED.replace("0:3", "0:1").replace("3821", "99")
    assert "It was WorkerDict_0:3, process 3821 on 172.16.0.5." in sure(found(tmp_path, earlier + text)).cause
    renamed = text.replace("kQz3JpWorkerDict_0:3", "judge_2")
    assert "It was judge_2, process 3821" in sure(found(tmp_path, renamed)).cause


CRASH = (
    "\x1b[36m(WorkerDict pid=77{place})\x1b[0m Fatal Python error: Segmentation fault\n"
    "\x1b[36m(WorkerDict pid=77{place})\x1b[0m \n"
    "\x1b[36m(WorkerDict pid=77{place})\x1b[0m Stack (most recent call first):\n"
)


@pytest.mark.parametrize(("place", "named"), [("", ""), (", ip=10.0.0.9", " on 10.0.0.9")])
def test_a_crash_is_the_cause_of_a_workers_death_and_of_what_other_ranks_raise(
    tmp_path: Path, place: str, named: str
) -> None:
    reset = "Read error [10.0.0.9]:42916: Connection reset by peer"
    for others in (DIED, f"[W] {reset}\n", remote("RuntimeError", reset)):
        told = sure(found(tmp_path, CRASH.replace("{place}", place) + others))
        assert told.line == 1 and told.cause.startswith("Compiled code")
        assert f"It was WorkerDict, process 77{named}." in told.cause


# Ray's raylet (verl#4921), torchrun (vllm-ascend#116), vLLM's engine (vllm#23582)
@pytest.mark.parametrize(
    ("text", "named"),
    [
        (
            "(raylet) A worker died or was killed while executing a task by an unexpected system error. Task ID: f "
            "Worker ID: 6a Node ID: 1c Worker IP address: 10.0.0.5 Port: 4 Worker PID: 2117 Worker exit "
            "type: SYSTEM_ERROR\n",
            "a worker, process 2117 on 10.0.0.5",
        ),
        (
            'Traceback (most recent call last):\n  File "/torch/run.py", line 8, in run\n'
            "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n====\ntrain.py FAILED\n----\n"
            "Root Cause (first observed failure):\n[0]:\n  time      : 2025-09-07\n  host      : node2\n"
            "  rank      : 11 (local_rank: 3)\n  exitcode  : -9 (pid: 4711)\n",
            "rank 11, process 4711 on node2",
        ),
        (
            "ERROR 08-25 12:24:19 [multiproc_executor.py:146] Worker proc VllmWorker-1 died unexpectedly, shutting "
            "down executor.\n",
            "VllmWorker-1",
        ),
    ],
)
def test_a_dead_worker_is_named_in_the_words_of_each_launcher(tmp_path: Path, text: str, named: str) -> None:
    assert f"It was {named}." in sure(found(tmp_path, text)).cause


CHAIN = """
The above exception was the direct cause of the following exception:

"""
BROKEN = "ValueError: expected 3 shards, found 2"
WRAPPER = "RuntimeError: the engine could not start"


def test_the_first_exception_of_a_chain_is_the_cause(tmp_path: Path) -> None:
    cause = f"{BROKEN}\nraised at /inner.py:9"
    chained = traceback("", "/inner.py", BROKEN) + CHAIN + traceback("", "/outer.py", WRAPPER)
    assert sure(found(tmp_path, chained)).cause == cause
    rays = traceback("", "/inner.py", "RayTaskError(RuntimeError): ray::run()").replace(
        "RayTask", "ray.exceptions.RayTask"
    )
    rays = (
        rays.splitlines()[0]
        + "\nray.exceptions.RayTaskError(RuntimeError): ray::run() (pid=7, ip=10.0.0.1)\n"
    )
    rays += f'  File "/inner.py", line 9, in load\n{BROKEN}\n{CHAIN}ray::run() (pid=7)\n'
    rays += f'  File "/outer.py", line 9, in run\n{WRAPPER}\n'
    assert sure(found(tmp_path, rays)).cause == cause


def test_the_lines_of_a_message_are_shown(tmp_path: Path) -> None:
    """As pydantic writes them (vllm#26161), in an older format of vLLM's log, too (vllm#11737)."""
    prefix = "(VllmWorker rank=0 pid=9) ERROR 01-04 17:21:04 multiproc_executor.py:401] "
    text = traceback(prefix, "/config.py", "ValidationError: 1 validation error for ModelConfig")
    told = sure(found(tmp_path, text + f"{prefix}  Value error, Invalid repository\n{prefix}done\n"))
    assert told.cause.splitlines()[1:] == ["  Value error, Invalid repository", "raised at /config.py:9"]


@pytest.mark.parametrize(
    ("module", "words"),
    [
        ("verl.single_controller.ray.megatron", "The tree has verl without verl.single_controller"),
        ("transfer_queue", ", a package of this stack"),
        ("yaml", ", a package of this stack"),
        ("torch_npu", ", a package of this stack"),
        ("nemo", "no lock of mine has a package of that name"),
    ],
)
def test_a_missing_module_is_looked_up_in_the_stack(tmp_path: Path, module: str, words: str) -> None:
    (tmp_path / "code/verl").mkdir(parents=True)
    names = "".join(f'[[packages]]\nname = "{name}"\n' for name in ("transferqueue", "pyyaml"))
    (tmp_path / "pylock.mine-py311-x86_64.toml").write_text(names)
    (tmp_path / "log").write_text(remote("ModuleNotFoundError", f"No module named '{module}'"))
    told = sure(explain([tmp_path / "log"], stack=Stack(tmp_path / "mine.yaml", tmp_path / "code")))
    assert words in told.cause and ("`npu-rl setup --install`" in told.hint) == words.startswith(
        ", a package"
    )


@pytest.mark.parametrize(
    ("manifest", "module", "cause", "fix"),
    [
        ("today", "triton.language", "triton-ascend; this stack has 3.2.0", "`npu-rl setup --install`"),
        ("mindspeed-rl-grpo", "triton", "triton-ascend, of which this stack has none", "Leave out"),
        ("today", "apex", "PyPI's apex is another project", "wheel of Ascend's apex"),
        (
            "pai-megatron-deepseek-v3",
            "apex.optimizers",
            "PyPI's apex is another project",
            "wheel of NVIDIA's apex",
        ),
        ("today", "acl", "CANN's own", "set_env.sh"),
        ("today", "tbe.common", "CANN's own", "set_env.sh"),
        ("today", "flash_attn", "for GPUs", "Leave out the setting that leads to that code."),
        ("today", "cv2", "lacks cv2 of opencv-python-headless, a package of this stack", "--install"),
        ("today", "PIL.Image", "lacks PIL of pillow, a package of this stack", "--install"),
        ("today", "attr", "lacks attr of attrs, a package of this stack", "--install"),
        ("today", "pkg_resources", "lacks pkg_resources of setuptools, a package of this stack", "--install"),
        (
            "deepseek-v3-cann",
            "sklearn",
            "lacks sklearn of scikit-learn, a package of this stack",
            "--install",
        ),
        ("today", "sklearn", "no lock of today has", "or install scikit-learn, which"),
    ],
)
def test_a_module_whose_name_is_no_packages_is_looked_up_by_what_brings_it(
    tmp_path: Path, manifest: str, module: str, cause: str, fix: str
) -> None:
    told, advice = Stack(find_manifest(manifest), tmp_path).look_up(module)
    assert cause in told and fix in advice
    assert not re.search(r"install (?:triton|apex|acl|tbe|flash_attn|cv2|sklearn)\b", advice)


def test_no_symptom_names_other_nodes_scripts_on_one_machine() -> None:
    assert [one.cause for one in symptoms() if "worker.sh" in one.fix_for(one_machine=True)] == []


def test_on_one_machine_no_other_is_to_be_looked_at(tmp_path: Path) -> None:
    (tmp_path / "log").write_text(MARKED_DEAD)
    alone, several = (sure(explain([tmp_path / "log"], one_machine=one)) for one in (True, False))
    assert "worker.sh" in several.hint and "worker.sh" not in alone.hint
    assert "too busy" in alone.cause and "--resume" in alone.hint


def test_on_one_machine_ray_that_ended_is_told_without_words_of_nodes(tmp_path: Path) -> None:
    registering = "Failed to register worker to Raylet: IOError: [RayletClient] Unable to register worker\n"
    for text in (registering, RAYLET_DIED):
        (tmp_path / "log").write_text(text)
        told = sure(explain([tmp_path / "log"], one_machine=True))
        assert "this machine" in told.cause and not re.search(
            "node|raylet|session_latest", told.cause + told.hint
        )


def test_a_full_disk_comes_with_figures(tmp_path: Path) -> None:
    told = sure(found(tmp_path, remote("OSError", "[Errno 28] No space left on device")))
    assert re.search(rf"\d+\.\d GB in {re.escape(str(tmp_path))}, \d+\.\d GB in ", told.hint)


def test_every_symptom_is_whole_and_its_real_line_leads_to_its_fix(tmp_path: Path) -> None:
    """People search the page on troubleshooting, which shows the lines, for the one before them."""
    for symptom in symptoms():
        line = symptom.sample
        assert symptom.cause.endswith(".") and symptom.fix
        assert re.search(r"#\d+|@[0-9a-f.]+|FAQ \d+", symptom.source), symptom.source
        assert line == line.strip() and "\n" not in line
        assert not re.search(r"\.\.\.|…|\*\*|\bID\b|<[A-Za-z_]\w*>", line), f"not a quotation: {line}"
        assert symptom.fix in sure(found(tmp_path, f"some\n(WorkerDict pid=1) {line}\nmore\n")).hint
    assert len({symptom.pattern.pattern for symptom in symptoms()}) == len(symptoms())


# Lines of other programs and versions than the samples, from the threads that the symptoms name.
PRINTED = [
    ("Get_Socket_Timeout(EI0006): Getting socket times out. Reason: 1. The remote", "HCCL_CONNECT_TIMEOUT"),
    ("Config_Error(EI0001): Value 1000 for environment variable HCCL_RDMA_SL is invalid.", "env"),
    ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", "rollout.memory_share"),
    ("[c10d] The client socket has timed out after 1800000ms while trying to connect", "cluster.interface"),
]


@pytest.mark.parametrize(("line", "advice"), PRINTED)
def test_other_forms_of_a_line_lead_to_the_same_advice(tmp_path: Path, line: str, advice: str) -> None:
    assert advice in sure(found(tmp_path, f"some\n(WorkerDict pid=1) {line}\nmore\n")).hint


@pytest.mark.parametrize("name", ["vllm._C", "vllm._version", "vllm_ascend.vllm_ascend_C._impl"])
def test_what_only_a_build_makes_is_no_missing_package(tmp_path: Path, name: str) -> None:
    """vLLM goes on without it, and says so in every process."""
    text = f"WARNING Failed to import: No module named '{name}'\n" + remote("ValueError", "no such shard")
    assert "may be related" not in sure(found(tmp_path, text)).hint


# -- a node that is gone -------------------------------------------------------------------------------

# Of a cluster of three, whose third node lost its network in step 4.
MARKED_DEAD = (
    "\x1b[33m(raylet)\x1b[0m The node with node id: 5e1c and address: 10.99.7.3 and node name: 10.99.7.3 has been "
    "marked dead because the detector has missed too many heartbeats from it. This can happen when a \t(1) raylet "
    "crashes unexpectedly (OOM, etc.) \n\t(2) raylet has lagging heartbeats due to slow network or busy workload.\n"
)
DIED_WITH_ITS_NODE = (
    "Traceback (most recent call last):\n"
    '  File "/site/ray/_private/worker.py", line 919, in get_objects\n'
    "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.\n"
    "\tclass_name: WorkerDict\n\tactor_id: 77\n\tpid: 4711\n\tnamespace: n\n\tip: 10.99.7.3\n"
    "The actor died because its node has died. Node Id: 5e1c\n"
    "\tthe actor's node was terminated unexpectedly: health check failed due to missing too many heartbeats\n"
)
RESET = (
    "Traceback (most recent call last):\n"
    '  File "/tree/verl/workers/fsdp_workers.py", line 600, in update_actor\n'
    "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Read error [10.99.7.3]:41234: Connection reset "
    "by peer\nThis may indicate a possible application crash on rank 0 or a network set up issue. GLHF!\n"
)

NODE_DIED = (
    "Traceback (most recent call last):\n"
    '  File "/site/ray/_private/worker.py", line 921, in get_objects\n'
    "ray.exceptions.NodeDiedError: Task failed due to the node (where this task was running)  was dead or unavailable."
    "\n\nThe node IP: 10.99.7.3, node ID: 5e1c\n"
)
STORE = (
    "[W1127 10:00:00.000000000 TCPStore.cpp:138] [c10d] recvValueWithTimeout failed on SocketImpl(fd=3, "
    "addr=[::ffff:10.99.7.1]:46298, remote=[10.99.7.3]:29611): Failed to recv, got 0 bytes. Connection was likely "
    "closed. Did the remote server shutdown or crash?\n"
)
ONE_OF_RAYS = "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.\n"
# Torch 2.5 to 2.9 in place of STORE.
OLDER_STORE = (
    "[rank1]:[W522 11:47:45.949247853 TCPStore.cpp:125] [c10d] recvValue failed on SocketImpl(fd=77, "
    "addr=[::ffff:10.99.7.1]:39732, remote=[::ffff:10.99.7.3]:29600): failed to recv, got 0 bytes\n"
)
NCCL_RESET = (
    "node1:248281:248334 [2] misc/socket.cc:518 NCCL WARN Net : Call to recv from 10.99.7.3<40537> failed : Connection "
    "reset by peer\n"
)
NCCL_CLOSED = (
    "node0:1357:1357 [0] NCCL WARN socketProgress: Connection closed by remote peer 10.99.7.3<42830>\n"
)
OWNER_DIED = (
    "Traceback (most recent call last):\n"
    '  File "/site/ray/_private/worker.py", line 921, in get_objects\n'
    "ray.exceptions.OwnerDiedError: Failed to retrieve object 00ffffffffffffffffffffffffffffffffffffff0600000002e1f505"
    ". To see information about where this ObjectRef was created in Python, set the environment variable "
    "RAY_record_ref_creation_sites=1 during `ray start` and `ray.init()`.\n\n"
    "The object's owner has exited. This is the Python worker that first created the ObjectRef via `.remote()` or "
    "`ray.put()`. Check cluster logs (`/tmp/ray/session_latest/logs/*06000000ffffffffffffffffffffffffffffffffffffffff"
    "ffffffff*` at IP address 10.99.7.3) for more information about the Python worker failure.\n"
)
UNAVAILABLE = (
    "Traceback (most recent call last):\n"
    '  File "/site/ray/_private/worker.py", line 921, in get_objects\n'
    "ray.exceptions.ActorUnavailableError: The actor c5d60362068042d8669d510501000000 is unavailable: The actor is "
    "temporarily unavailable: RpcError: RPC Error message: failed to connect to all addresses; last error: UNKNOWN: "
    "ipv4:10.99.7.3:10172: Failed to connect to remote host: Connection refused; RPC Error details: . The task may or "
    "maynot have been executed on the actor.\n"
)
OWNERS_NODE = (
    "Traceback (most recent call last):\n"
    '  File "/site/ray/_private/worker.py", line 908, in get_objects\n'
    "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.\n"
    "\tclass_name: Runner\n\tactor_id: 2850\n\tpid: 159258\n\tnamespace: n\n\tip: 10.99.7.2\n"
    "The actor is dead because its owner has died. Owner Id: 01000000ffffffff Owner Ip address: 10.99.7.3 Owner worker "
    "exit type: SYSTEM_ERROR Worker exit detail: Owner's node has crashed.\n"
)
RAYLET_DIED = (
    "ray.exceptions.LocalRayletDiedError: The task's local raylet died. Check raylet.out for more "
    "information.\n"
)
KILLED_BY_RAY = (
    "(raylet) [2026-01-01 10:00:00,000 E 1 1] (raylet) node_manager.cc:3070: 1 Workers (tasks / actors) killed due to "
    "memory pressure (OOM), 0 Workers crashed due to other reasons at node (ID: 5e1c, IP: 10.99.7.3) over the last "
    "time period.\n"
)


GONE = "The process of another rank on 10.99.7.3 is gone"
LEFT = "The node 10.99.7.3 left the Ray cluster"


def spoken(text: str) -> str:
    """As a worker's lines are in the driver's log."""
    return "".join(f"\x1b[36m(TaskRunner pid=12)\x1b[0m {line}\n" for line in text.splitlines())


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (spoken(NODE_DIED), "The node of a task left the Ray cluster (10.99.7.3)"),
        (MARKED_DEAD + NODE_DIED, LEFT),
        (OLDER_STORE, GONE),
        (NCCL_RESET, GONE),
        (NCCL_CLOSED, GONE),
        (OWNER_DIED + ONE_OF_RAYS, "The process on 10.99.7.3 that created an object of Ray is gone"),
        (MARKED_DEAD + OWNER_DIED, LEFT),
        (OWNERS_NODE, "A worker died with the node of the process that created it, 10.99.7.3, which left"),
        (
            OWNERS_NODE.replace("Owner's node has crashed", "Worker exits unexpectedly"),
            "The process on 10.99.7.3 that created a worker is gone",
        ),
        (
            "All copies of 00ffff13 have been lost due to node failure. Check cluster logs\n" + ONE_OF_RAYS,
            "A node left the Ray cluster with an object",
        ),
        (spoken(UNAVAILABLE), "A worker on 10.99.7.3 does not answer"),
        (
            UNAVAILABLE.replace("ipv4:10.99.7.3:", "ipv6:%5Bfd00::3%5D:"),
            "A worker on fd00::3 does not answer",
        ),
        (RAYLET_DIED, "Ray's own process (raylet) on an unnamed node died"),
        (
            f"\x1b[36m(TaskRunner pid=12, ip=10.99.7.3)\x1b[0m {RAYLET_DIED}",
            "Ray's own process (raylet) on 10.99.7.3 died",
        ),
        (NODE_DIED + RESET, GONE),
        (spoken(STORE) + ONE_OF_RAYS, GONE),
        (RESET.replace("10.99.7.3", "fe80::1%eth0"), "The process of another rank on fe80::1%eth0 is gone"),
        (MARKED_DEAD + DIED_WITH_ITS_NODE, LEFT),
        (DIED_WITH_ITS_NODE, "A worker died because its node left the Ray cluster (10.99.7.3)"),
    ],
)
def test_a_lost_node_is_told_with_its_address_and_not_as_want_of_memory(
    tmp_path: Path, text: str, cause: str
) -> None:
    told = sure(found(tmp_path, text))
    assert told.cause.startswith(cause)
    assert "memory" not in told.cause and "--resume" in told.hint


@pytest.mark.parametrize(
    "error",
    [
        "[/pytorch/gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 1800000ms for recv operation to complete",
        "EI0006: [PID: 1] Getting socket times out. Reason: Remote Rank did not send the data in time.",
        "[/pytorch/gloo/transport/tcp/pair.cc:525] Read error [10.99.7.2]:42916: Connection reset by peer",
    ],
)
def test_a_node_that_is_marked_dead_comes_before_what_other_ranks_then_raise(
    tmp_path: Path, error: str
) -> None:
    told = sure(found(tmp_path, MARKED_DEAD + remote("RuntimeError", error)))
    assert told.cause.startswith(LEFT) and error in told.cause
    assert told.line == 1 and "union_tensor_dict" in told.excerpt and "--resume" in told.hint
    alone = sure(found(tmp_path, remote("RuntimeError", error)))
    assert "10.99.7.3" not in alone.cause


def test_an_error_of_its_own_comes_before_a_node_that_is_marked_dead(tmp_path: Path) -> None:
    told = sure(
        found(
            tmp_path, MARKED_DEAD + remote("RuntimeError", "NPU out of memory. Tried to allocate 22.00 MiB")
        )
    )
    assert told.cause.startswith("A device ran out of memory")


@pytest.mark.parametrize("text", [UNAVAILABLE, OWNER_DIED, spoken(UNAVAILABLE), ONE_OF_RAYS])
def test_a_worker_that_rays_memory_monitor_has_killed_is_told_as_want_of_memory(
    tmp_path: Path, text: str
) -> None:
    told = sure(found(tmp_path, KILLED_BY_RAY + text))
    assert "ran out of host memory" in told.cause
    none = sure(found(tmp_path, KILLED_BY_RAY.replace("1 Workers (tasks", "0 Workers (tasks") + text))
    assert "ran out of host memory" not in none.cause
