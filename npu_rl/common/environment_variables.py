"""All environment variables of npu-rl, with their setter, default and meaning. docs/environment.md lists them.

Processes of a run that can't import npu-rl (its stand-ins, the runtime in a tree) spell the names themselves; a test
holds that each is here.
"""

from __future__ import annotations

from typing import NamedTuple

YOU = "you"
NPU_RL = "npu-rl"
ACTIVATE = "`activate` of a workspace"
TESTS = "you, for the tests"


class Variable(NamedTuple):
    """One variable.

    Attributes:
        name: Its name in the environment.
        set_by: Who sets it: a person, npu-rl, or a person who runs the tests.
        default: The value if it is not set, as the page shows it.
        meaning: What it does, in a sentence or two.
        instead: The advice for a recipe whose `env:` sets it; {name} is the name. Empty if a recipe may set it.
    """

    name: str
    set_by: str
    default: str
    meaning: str
    instead: str = ""


_SHELL = "remove env.{name}, and set it in the shell that runs npu-rl"
_OURS = "remove env.{name}"
_REHEARSE = "remove env.{name}, and use --rehearse"

STORE = Variable(
    "NPU_RL_STORE",
    YOU,
    "`npu-rl/store` in the user's cache folder (Linux: `~/.cache`)",
    "Folder of the store: what `setup` and `lock` fetched, by content.",
    _SHELL,
)
RUNS = Variable(
    "NPU_RL_RUNS",
    YOU,
    "`runs` in the workspace",
    "Folder where `train` records runs. `activate` sets it to the workspace's own unless it is set.",
    _SHELL,
)
CONFIG = Variable(
    "NPU_RL_CONFIG",
    YOU,
    "`npu-rl/config.yaml` in the user's configuration folder (Linux: `~/.config`)",
    "The configuration file, with `rewrite` and `safe_folders`.",
    _SHELL,
)
REWRITE = Variable(
    "NPU_RL_REWRITE",
    YOU,
    "none",
    "URL prefixes to fetch from elsewhere: one FROM=TO per line, in addition to `--rewrite` and `rewrite:` of the "
    "configuration file.",
    _SHELL,
)
STALL = Variable(
    "NPU_RL_STALL",
    YOU,
    "60",
    "Seconds without data after which a git transfer is stopped and tried again.",
    _SHELL,
)
RETRIES = Variable("NPU_RL_RETRIES", YOU, "3", "Number of retries of a failed git transfer.", _SHELL)
BACKOFF = Variable(
    "NPU_RL_BACKOFF",
    YOU,
    "1",
    "Seconds before the first of these tries; each next wait is twice as long.",
    _SHELL,
)

VARIABLES: tuple[Variable, ...] = (
    STORE, RUNS, CONFIG, REWRITE, STALL, RETRIES, BACKOFF,
    Variable("NPU_RL_WORKSPACE", ACTIVATE, "unset", "The workspace that is active in this shell.", _SHELL),
    Variable("NPU_RL_DEEPSCALER_VARIANT", "`env:` of a recipe", "accuracy",
             "Score of the reward for the data source deepscaler: `accuracy`, or `format` for the layout too."),
    Variable("NPU_RL_DEEPSCALER_WORKERS", "`env:` of a recipe", "one per core, 32 at most",
             "Processes that compare responses for that reward."),
    Variable("NPU_RL_WEIGHT_TRANSFER_SECONDS", "`env:` of a recipe", "1800",
             "Seconds after which one wait of verl's weight sync for its other end is an error."),
    Variable("_NPU_RL_COMPLETE", "the shell's completion script", "unset",
             "Makes npu-rl print completions instead of running (`npu-rl --install-completion`)."),
    Variable("NPU_RL_SEED", NPU_RL, "`seed` of the recipe",
             "Seed of a rehearsal's processes: with 1009 times the rank added.", "set seed instead"),
    Variable("NPU_RL_RUN", NPU_RL, "unset",
             "Mark of the processes that one command starts for a run: npu-rl finds them by it.", _OURS),
    Variable("NPU_RL_PARENT", NPU_RL, "unset",
             "npu-rl's process id and start, with which the processes that it starts for a run end (Linux).", _OURS),
    Variable("NPU_RL_RAY", NPU_RL, "unset", "The arguments of `ray.init`, as JSON, for the driver.", _OURS),
    Variable("NPU_RL_NODES", NPU_RL, "unset",
             "Data that the driver sends to every node to be compared there, as JSON.", _OURS),
    Variable("NPU_RL_USAGE", NPU_RL, "unset",
             "Folder where processes of a run note which adaptations and stand-ins they used. Off if unset.", _OURS),
    Variable("NPU_RL_VARIABLES", NPU_RL, "unset",
             "Names of all variables that a run sets, for its Ray workers: NPU_RL_ variables of other runs are "
             "removed there.", _OURS),
    Variable("NPU_RL_QUOTED", NPU_RL, "unset",
             "Values with `$` for Ray workers, as JSON: Ray would expand them."),
    Variable("NPU_RL_BYTE_CODE", NPU_RL, "unset",
             "Key of the folder for a run's byte code, which every node has in its user's cache.", _OURS),
    Variable("NPU_RL_STANDINS", NPU_RL, "unset",
             "Stand-ins that a rehearsal's processes install: `cpu`, `cpu,rollout` or none.", _REHEARSE),
    Variable("NPU_RL_HOLD_AFTER", NPU_RL, "unset",
             "Step after which verl waits until the rehearsal stops it, to be resumed from its checkpoint.",
             _REHEARSE),
    Variable("NPU_RL_LOADS", NPU_RL, "unset",
             "1 if the trainer begins with the made model's weights, so that the first weight sync compares them.",
             _REHEARSE),
    Variable("NPU_RL_STANDIN", "nobody", "unset",
             "Attribute of every stand-in module; tests use it to recognize one. As a variable it does "
             "nothing.", _REHEARSE),
    Variable("NPU_RL_GIT_USERNAME", NPU_RL, "unset",
             "User name for one git fetch, read by the credential helper that npu-rl names: no command line shows "
             "it."),
    Variable("NPU_RL_GIT_PASSWORD", NPU_RL, "unset",
             "Password or token for one git fetch, handed over in the same way."),
    Variable("NPU_RL_SYNC_FAULT", TESTS, "unset",
             "KIND:PART: a rehearsal changes tensors with PART in their name on the way to the rollout, to prove that "
             "it notices. KIND is zeroed, unsent, rounded, kept or exchanged."),
    Variable("NPU_RL_UPSTREAMS", TESTS, "none: those tests are skipped",
             "Folder with the real git upstreams, as OWNER+NAME/repo, each bare."),
    Variable("NPU_RL_REQUIRE_PYPI", TESTS, "unset",
             "1 fails the tests that need a package index where none answers, instead of skipping them."),
    Variable("NPU_RL_REQUIRE_PACKAGES", TESTS, "unset",
             "1 fails the patches' tests that skip for want of a package, instead of skipping them."),
    Variable("NPU_RL_FAULTS", TESTS, "50", "Number of times that tests/faults kills a command."),
    Variable("NPU_RL_SHOTS", TESTS, "8",
             "Number of signals that tests/cli sends to a command, each at a random moment."),
    Variable("NPU_RL_MUTATIONS", TESTS, "40", "Number of mutated inputs of each kind that tests/hostile tries."),
    Variable("NPU_RL_MUTATION_SEED", TESTS, "0", "Seed of these mutated inputs."),
    Variable("NPU_RL_MUTATION_TRACE", TESTS, "unset", "Set: print the traceback of each that fails."),
    Variable("NPU_RL_HEADINGS", TESTS, "25",
             "Number of generated files that the tests of hunk headings compare with git."),
    Variable("NPU_RL_PYTHON_CASES", TESTS, "600",
             "Number of changes of a workspace that are compared with Python."),
    Variable("NPU_RL_TEST_CACHE", "the tests", "a temporary folder", "Cache folder of the tests' processes."),
    Variable("NPU_RL_TEST_BYTE_CODE", "the tests", "a temporary folder",
             "Byte code of the trees that tests import."),
    Variable("NPU_RL_TEST_QUICKSTART", "the tests", "unset",
             "Workspace of the quickstart that a pytest started by a test takes over."),
    Variable("NPU_RL_BENCHMARK", "the benchmarks", "unset",
             "Marks the processes of one benchmark, to end them."),
)  # fmt: skip


def reserved() -> dict[str, str]:
    """Return the variables that a recipe's `env:` can't set, each with the advice for it."""
    return {variable.name: variable.instead for variable in VARIABLES if variable.instead}
