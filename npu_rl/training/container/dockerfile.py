"""The Dockerfile of a manifest's image."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING

import npu_rl
from npu_rl.common.errors import ManifestError
from npu_rl.common.printable import one_line
from npu_rl.stack.lock.lock_model import lock_path, read_text
from npu_rl.stack.pylocks.committed_pylock import committed_pylock
from npu_rl.stack.pylocks.pylock_targets import choose_target, pylock_path, targets
from npu_rl.training.container.base_image import base_image, is_pinned, wanted_of_base
from npu_rl.training.container.package_steps import TOOL, TRAINING, WHEELS, package_steps

if TYPE_CHECKING:
    from npu_rl.stack.manifest.load_manifest import LoadedManifest

WORKSPACE = "/opt/npu-rl-workspace"
JEMALLOC = "/usr/local/lib/libjemalloc.so.2"
_NAME_OF_IMAGE = "/etc/npu-rl-image"  # one line, for what reports on the host
_STORE = "/tmp/npu-rl-store"
# One text for every base: BASE may be overridden by the same image of another system. No `RUN --mount`, no heredoc:
# the Docker of NPU hosts may be older than BuildKit. No SHELL, which OCI images lack: each step is plain sh.
_SYSTEM = f"""\
# git for npu-rl; jemalloc, as the published recipes preload it. Debian and Ubuntu have apt-get, openEuler has yum.
# hadolint ignore=DL3008,DL3033
RUN if command -v apt-get > /dev/null; then \\
        apt-get update && apt-get install -y --no-install-recommends git libjemalloc2 && \\
        ln -sf /usr/lib/"$(uname -m)"-linux-gnu/libjemalloc.so.2 {JEMALLOC}; \\
    else \\
        yum install -y git jemalloc && \\
        ln -sf /usr/lib64/libjemalloc.so.2 {JEMALLOC}; \\
    fi && \\
    test -f {JEMALLOC} && \\
    rm -rf /var/lib/apt/lists/* /var/cache/yum /var/cache/dnf"""
_ARGUMENTS = f"""\
# Of the build alone: where pip and npu-rl look. Images show them to everybody: no password belongs here.
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ARG NPU_RL_REWRITE
ARG PIP_FIND_LINKS={WHEELS}
ARG BASE_PYTHON=python3
ARG BASE"""


def image_name(loaded: LoadedManifest) -> str:
    """Return the image name used for a manifest."""
    return f"npu-rl-{loaded.manifest.name.lower()}"


def dockerfile(loaded: LoadedManifest, named: str, python: str | None = None) -> str:
    """Return the Dockerfile of a manifest's image.

    Args:
        named: The manifest as the user named it.
        python: The image's version of Python, such as 3.11; by default the manifest's only one, else this one.

    Raises:
        UsageError: If the manifest is not for this version of Python.
        LockError: If its packages are locked for no machine, or if it has no lock.
        ManifestError: If the image is not the name of one, or if a file lies where the build can't reach it.
    """
    if not loaded.bundled:
        _require_one_folder(loaded)
    python = _locked_python(loaded, named, python)
    inside = named if loaded.bundled else f"{WHEELS}/{loaded.path.name}"
    blocks = [
        _head(loaded, named),
        _base(loaded),
        _SYSTEM,
        _ARGUMENTS,
        _context(loaded),
        _python(python),
        _workspace(loaded, inside),
        *_packages(loaded, inside, python),
        _environment(),
    ]
    return "\n\n".join(blocks) + "\n"


def _locked_python(loaded: LoadedManifest, named: str, python: str | None) -> str:
    """Return the Python version, after checking that a package lock exists for it; the build would fail much later."""
    known = targets(loaded.manifest.device, loaded.manifest.host.python)
    chosen = choose_target(known, python, known[0].machine if known else None)
    of_python = [one for one in known if one.python == chosen.python]
    if not any(pylock_path(loaded.path, one).exists() for one in of_python):
        committed_pylock(loaded, chosen, named)
    for target in of_python:
        if pylock_path(loaded.path, target).exists():
            committed_pylock(loaded, target, named)
    return chosen.python


def _require_one_folder(loaded: LoadedManifest) -> None:
    """Raise unless the manifest's lock is beside it, and the manifests it extends are in its folder or bundled."""
    read_text(lock_path(loaded.path))
    for name in loaded.files:
        if name.startswith("../"):
            raise ManifestError(
                f"{name} is outside of the manifest's folder",
                where=loaded.where("extends"),
                why="The folder is what the build copies into the image.",
                hint="Move both manifests into one folder.",
            )


def _head(loaded: LoadedManifest, named: str) -> str:
    """Return the comment on how to build."""
    place = "in a folder of its own" if loaded.bundled else f"in the folder of {loaded.path.name}"
    return "\n".join(
        (
            f"# {loaded.manifest.name}: {one_line(loaded.manifest.title)}",
            f"# Written by npu-rl {npu_rl.__version__}. Build it {place}, with the wheels that no index has beside it:",
            f"#   npu-rl container --manifest {shlex.quote(named)} > Dockerfile",
            f"#   docker build -t {image_name(loaded)} .",
            f"#   npu-rl container --manifest {shlex.quote(named)} --run-line",
            "# Driver and firmware are the host's: no image has them.",
        )
    )


def _base(loaded: LoadedManifest) -> str:
    """Return the lines up to FROM. BASE can be overridden, such as with a digest or a mirror."""
    image = base_image(loaded)
    if not image:
        why, argument = (
            f"The manifest names no image: --build-arg BASE=IMAGE, with {wanted_of_base(loaded)}.",
            "ARG BASE",
        )
    else:
        why = (
            "By its digest."
            if is_pinned(image)
            else "A tag, which may move: --build-arg BASE=NAME@sha256:DIGEST."
        )
        argument = f"ARG BASE={image}"
    return f"# {why}\n{argument}\n# hadolint ignore=DL3006\nFROM ${{BASE}}"


def _context(loaded: LoadedManifest) -> str:
    """Return the line that copies wheels, and a user's manifest with its lock and patches."""
    if loaded.bundled:
        # The file itself is there always: COPY fails where nothing matches.
        return f"COPY Dockerfile *.whl {WHEELS}/"
    return f"COPY . {WHEELS}/"


def _python(version: str) -> str:
    """Return the step that creates both virtual environments, and fails if the base has another Python."""
    wanted = f"({version.replace('.', ', ')})"
    check = f"import sys; v = sys.version_info[:2]; assert v == {wanted}, f'Python of the base image: {{v}}'"
    return "\n".join(
        (
            "# npu-rl apart from what trains: the versions of neither replace the other's.",
            f'RUN "$BASE_PYTHON" -c "{check}" && \\',
            f'    "$BASE_PYTHON" -m venv {TOOL} && \\',
            f'    "$BASE_PYTHON" -m venv --system-site-packages {TRAINING} && \\',
            f"    {TOOL}/bin/pip install --no-cache-dir npu-rl=={npu_rl.__version__}",
        )
    )


def _workspace(loaded: LoadedManifest, manifest: str) -> str:
    words = f"--manifest {shlex.quote(manifest)} --workspace {WORKSPACE} --python {TRAINING}/bin/python"
    return "\n".join(
        (
            "# The tree, from the lock. What it was fetched from is not kept.",
            f"RUN NPU_RL_STORE={_STORE} {TOOL}/bin/npu-rl setup {words} && \\",
            f"    rm -rf {_STORE} && \\",
            f'    echo "{image_name(loaded)} from $BASE" > {_NAME_OF_IMAGE}',
        )
    )


def _packages(loaded: LoadedManifest, manifest: str, python: str) -> Iterator[str]:
    for step in package_steps(loaded, manifest, python):
        yield f"# {step.why}\nRUN " + " && \\\n    ".join(step.lines)


def _environment() -> str:
    """Return the last lines: the environment of every process in the container."""
    return "\n".join(
        (
            f"ENV PATH={TRAINING}/bin:{TOOL}/bin:$PATH \\",
            f"    LD_PRELOAD={JEMALLOC}",
            f"WORKDIR {WORKSPACE}",
            'CMD ["bash"]',
        )
    )
