"""A trainer that prints what verl prints and misbehaves on request: `fake_trainer.py FOLDER [option ...]`.

steps=N    print N steps' metrics          forever    then wait for a signal
deaf       the driver ends by no signal     worker     start one that ends by SIGTERM
stubborn   start one that ignores SIGTERM   daemon     start one in a session of its own
raise, odd  end by an exception, without one; engine  by one whose cause is in a worker's output
tells=PID  with forever: send SIGTERM there once interrupted
gate       wait for the file FOLDER/go before the first step
no-ray=N   the first N starts end as one of Ray that failed; ray-then  the next fails after Ray is up
logs=N     leave N workers' logs in Ray's folder, as Ray does
hydra      write and print the configuration and the environment, as verl and Hydra do
Each process writes FOLDER/NAME.pid when its signal handling is in place; a deaf driver that got a SIGINT
writes FOLDER/heard.pid.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

NO_RAY = (
    "[2025-01-25 08:22:57,421 E 759 759] core_worker.cc:496: Failed to register worker to Raylet: IOError: "
    "[RayletClient] Unable to register worker with raylet. No such file or directory"
)


def announce(folder: Path, name: str) -> None:
    part = folder / f".{name}.{os.getpid()}"
    part.write_text(str(os.getpid()))
    part.rename(folder / f"{name}.pid")


def be(folder: Path, name: str) -> None:
    """A worker, until it is ended."""
    # what a process ignores its children ignore too, unless they say otherwise
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN if name == "stubborn" else signal.SIG_DFL)
    announce(folder, name)
    while True:
        time.sleep(60)


def leave_logs(ray: Path, count: int) -> None:
    folder = ray / "session_2026-01-01_00-00-00_000000_1" / "logs"
    folder.mkdir(parents=True)
    for number in range(count):
        (folder / f"worker-{number:04}-01000000-{number}.out").write_text(
            f"worker {number} says {os.environ.get('WANDB_API_KEY')}\n"
        )


def leave_engine_error(ray: Path) -> None:
    """Fail as a trainer whose vLLM engine logged its error to its worker's standard output."""
    folder = ray / "session_2026-01-01_00-00-00_000000_1" / "logs"
    folder.mkdir(parents=True)
    speaker = "(EngineCore_DP0 pid=3688) ERROR 06-29 11:08:26 [core.py:1140] "
    lines = ("Traceback (most recent call last):", '  File "/worker.py", line 260, in f', "KeyError: 'scale'")
    (folder / "worker-0000-01000000-0.out").write_text("".join(f"{speaker}{line}\n" for line in lines))
    raise RuntimeError("Engine core initialization failed. See root cause above.")


def say_all(arguments: list[str]) -> None:
    """The configuration goes where the driver's arguments say, into the log, and into a binary file."""
    folder = Path(next(a for a in arguments if a.startswith("hydra.run.dir="))[14:].strip("'\"")) / ".hydra"
    folder.mkdir(parents=True)
    settings = [a for a in arguments if "=" in a]
    (folder / "overrides.yaml").write_text("".join(f"- {setting}\n" for setting in settings))
    (folder / "config.yaml").write_text(
        "".join("{}: {}\n".format(*setting.partition("=")[::2]) for setting in settings)
    )
    (folder / "config.pkl").write_bytes(b"\0pickle")
    print({setting.partition("=")[0]: setting.partition("=")[2] for setting in settings})
    for name, value in sorted(os.environ.items()):
        print(f"environment {name} is {value}")


def fail_to_start_ray(folder: Path, times: int) -> None:
    """End as the core worker of Ray 2.42.1 does while fewer starts than `times` have failed."""
    print("npu-rl: starting Ray", flush=True)
    failed = len(list(folder.glob("no-ray-*")))
    if failed < times:
        (folder / f"no-ray-{failed}").touch()
        print(NO_RAY, flush=True)
        os._exit(1)
    print("npu-rl: comparing the nodes", flush=True)


def main() -> None:
    folder, options = Path(sys.argv[1]), sys.argv[2:]
    if options and options[0].startswith("be="):
        be(folder, options[0][3:])
    if "deaf" in options:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, lambda *_: announce(folder, "heard"))
    for name in ("worker", "stubborn", "daemon"):
        if name in options:
            command = [sys.executable, __file__, str(folder), f"be={name}"]
            subprocess.Popen(command, start_new_session=name == "daemon")
            while not (folder / f"{name}.pid").exists():
                time.sleep(0.01)
    if "hydra" in options:
        say_all(sys.argv[2:])
    logs = next((int(o[5:]) for o in options if o.startswith("logs=")), 0)
    if logs:
        leave_logs(Path(json.loads(os.environ["NPU_RL_RAY"])["_temp_dir"]), logs)
    refused = next((int(o[7:]) for o in options if o.startswith("no-ray=")), None)
    if refused is not None:
        fail_to_start_ray(folder, refused)
    if "ray-then" in options:
        print(NO_RAY, flush=True)
        sys.exit(1)
    if "gate" in options:
        announce(folder, "waiting")
        while not (folder / "go").exists():
            time.sleep(0.01)
    steps = next((int(o[6:]) for o in options if o.startswith("steps=")), 0)
    for step in range(1, steps + 1):
        print(
            f"\x1b[36m(TaskRunner pid={os.getpid()})\x1b[0m step:{step} - actor/grad_norm:0.5 - "
            f"critic/score/mean:{step / 10} - timing_s/step:{step / 100}"
        )
    announce(folder, "driver")
    if "engine" in options:
        leave_engine_error(Path(json.loads(os.environ["NPU_RL_RAY"])["_temp_dir"]))
    if "raise" in options:
        raise ValueError("batch sizes differ")
    if "odd" in options:
        print("vendor: no luck today")
        sys.exit(3)
    if "forever" in options:
        try:
            while True:
                time.sleep(60)
        except KeyboardInterrupt:
            print("interrupted in order")
            for told in (int(o[6:]) for o in options if o.startswith("tells=")):
                os.kill(told, signal.SIGTERM)
            sys.exit(130)


main()
