"""Code trees of a bundled manifest for tests: some of its components, with all, none or all but one of the patches.

From the real upstreams, at the pins of the committed lock, with the patchsets that the manifest names now; nothing
is resolved, and only an sdist is fetched. The runtime is the checkout's own. Other manifests work where what is
merged into a component is ahead of its pin; what is picked is left out. Submodules are laid where parts of them are
taken.
"""

from __future__ import annotations

import atexit
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any

from npu_rl.common.bundled import bundled_patchset
from npu_rl.common.python_roots import INJECTED, NPU, REHEARSAL
from npu_rl.stack.compose.assemble import RUNTIME, dist_info, runtime_files
from npu_rl.stack.hunks.hunk_match import apply_exact
from npu_rl.stack.lock import lock_model
from npu_rl.stack.manifest.load_manifest import load_manifest
from npu_rl.stack.patches.parse_patch import parse_patch
from npu_rl.stack.patches.series import read_patchset
from npu_rl.stack.sources.pip_config import read_pip_settings
from npu_rl.stack.sources.pypi import download_sdist
from tests.support import byte_code

MANIFEST = "deepseek-r1-zero"
Files = dict[str, "bytes | None"]
_CONFLICT = re.compile(
    rb"^<<<<<<< [^\n]*\n(?P<now>.*?)^=======\n(?P<before>.*?)^>>>>>>> [^\n]*\n", re.MULTILINE | re.DOTALL
)


def tree(
    upstreams: Path | None,
    folder: Path,
    components: Iterable[str],
    *,
    patched: bool = True,
    without: str | None = None,
    manifest: str = MANIFEST,
) -> Path:
    """Lay `components` ("verl", "MindSpeed", ...) and `npu_rl_runtime` into the new `folder`, and return it.

    patched: with the manifest's patches for them, or as upstream has them. without: the name or slug of one patch
    that is left out ("0006-rollout-compile.patch", "rollout-compile"); ValueError if no component has it. What later
    patches did to the same file stays, by a three-way merge; ValueError if they can't be told apart.
    """
    loaded = load_manifest(manifest)
    lock = lock_model.read(lock_model.lock_path(loaded.path))
    folder.mkdir(parents=True)
    left_out = False
    for name in components:
        locked = lock.components[name]
        source = folder / ".upstream"
        if locked.pin is None:
            _unpack_sdist(locked, source)
        else:
            assert locked.pin and upstreams
            repository = _repository(upstreams, locked.sources)
            merged = [merge.head for merge in locked.merges if merge.how != "pick"]
            commit = merged[-1] if merged else locked.pin
            _unpack(repository, commit, _own_paths(locked), source)
            for module in locked.submodules:
                inner = [
                    p.removeprefix(f"{module.path}/") for p in _paths(locked) if _is_below(p, module.path)
                ]
                _unpack(_repository(upstreams, [module]), module.pin, inner, source / module.path)
        if patched:
            for entry in loaded.manifest.components[name].patches:
                if entry.from_ is None:
                    left_out |= _patch(source / (entry.directory or "."), entry.path, without)
                else:
                    assert upstreams
                    _patch_of_component(source, lock, locked, f"{entry.from_}:{entry.path}", upstreams)
        for take in locked.take:
            _lay(source / take.path, folder / take.to)
        shutil.rmtree(source)
        for path, data in dist_info(locked.dist).items() if locked.dist else ():
            _write(folder / path, data)
    if without is not None and not left_out:
        raise ValueError(f"no patch {without!r} among those of {', '.join(components)}")
    for path, data in runtime_files().items():
        _write(folder / RUNTIME / path, data)
    return folder


def run(
    script: Path, code: Path, *arguments: str, npu: bool = True, usage: Path | None = None, **environment: str
) -> Any:
    """Run `script` on a tree, as a training on a CPU runs: with the stand-ins, in a process of its own.

    npu: with the one for torch_npu as well. usage: the folder for NPU_RL_USAGE. Switches of this process's own
    environment are not passed on. Returns the JSON of the last line that it printed; fails the test if it fails.
    """
    paths = [INJECTED, REHEARSAL, *([NPU] if npu else []), code]
    given = {name: value for name, value in os.environ.items() if not name.startswith("NPU_RL_")}
    given |= {
        "PYTHONPATH": os.pathsep.join(map(str, paths)),
        **byte_code(),
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "GLOO_SOCKET_IFNAME": "lo",
        "NPU_RL_STANDINS": "cpu",
    }
    if usage is not None:
        usage.mkdir()
        given["NPU_RL_USAGE"] = str(usage)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(script), *arguments],
        env=given | environment, capture_output=True, text=True, timeout=300, check=False, cwd=code,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return json.loads(done.stdout.strip().splitlines()[-1])


def used(usage: Path, slug: str) -> int:
    """How often the hooks of an adaptation did something, by what was written into `usage`."""
    lines = [line.split() for file in usage.iterdir() for line in file.read_text().splitlines()]
    return sum(int(number) for number, name in lines if name == slug)


def _paths(locked: lock_model.LockedComponent) -> list[str]:
    return [take.path for take in locked.take]


def _own_paths(locked: lock_model.LockedComponent) -> list[str]:
    """Paths that are not of a submodule."""
    return [
        path for path in _paths(locked) if not any(_is_below(path, one.path) for one in locked.submodules)
    ]


def _is_below(path: str, folder: str) -> bool:
    return path.startswith(f"{folder}/")


def _repository(
    upstreams: Path, sources: Iterable[lock_model.LockedSource | lock_model.LockedSubmodule]
) -> Path:
    """The bare copy OWNER+NAME/repo of one of the sources: of the same owner, else of the same name."""
    projects = [source.git.removesuffix(".git").split("/")[-2:] for source in sources if source.git]
    known = {path.parent.name: path for path in sorted(upstreams.glob("*+*/repo"))}
    for owner, name in projects:
        if path := known.get(f"{owner}+{name}"):
            return path
    for _, name in projects:
        for folder, path in known.items():
            if folder.partition("+")[2].lower() == name.lower():
                return path
    raise FileNotFoundError(f"none of {projects} is among {sorted(known)} in {upstreams}")


def _unpack(repository: Path, pin: str, paths: list[str], folder: Path) -> None:
    if not paths:
        return
    packed = subprocess.run(
        ["git", f"--git-dir={repository}", "archive", "--format=tar", pin, *paths],
        stdout=subprocess.PIPE,
        check=True,
    )
    with tarfile.open(fileobj=BytesIO(packed.stdout)) as archive:
        archive.extractall(folder, filter="data")


def _unpack_sdist(locked: lock_model.LockedComponent, folder: Path) -> None:
    """Unpack what is taken of an sdist, which comes from the index."""
    paths = _paths(locked)
    with tarfile.open(_sdist(locked.sources[0])) as archive:
        for member in archive:
            member.name = member.name.partition("/")[2]
            if member.name in paths or any(_is_below(member.name, path) for path in paths):
                archive.extract(member, folder, filter="data")


@cache
def _sdist(source: lock_model.LockedSource) -> Path:
    assert source.pypi
    name, _, version = source.pypi.partition("==")
    folder = Path(tempfile.mkdtemp(prefix="npu-rl-test-sdist-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return download_sdist(
        name, version, sha256=source.sha256, settings=read_pip_settings(), folder=folder
    ).path


def _lay(taken: Path, place: Path) -> None:
    """A file or folder at its place; copied where others may have taken their part of it, or will."""
    place.parent.mkdir(parents=True, exist_ok=True)
    if taken.is_file():
        shutil.copy(taken, place)
    elif place.exists():
        shutil.copytree(taken, place, dirs_exist_ok=True)
    else:
        taken.rename(place)


def _patch(source: Path, patchset: str, without: str | None) -> bool:
    """Apply a patchset to the files in `source`. Whether `without` was one of its patches."""
    files: Files = {}
    taken_back: list[tuple[Files, Files]] = []
    for patch in read_patchset(bundled_patchset(patchset)):
        changes = parse_patch(patch.data, name=patch.name).files
        before = {file.path: files.get(file.path, _read(source / file.path)) for file in changes}
        after = {file.path: apply_exact(before[file.path], file, name=patch.name) for file in changes}
        files.update(after)
        names = (patch.name, patch.name.removesuffix(".patch").partition("-")[2])
        if without in names:
            taken_back.append((before, after))
    for path, data in files.items():
        _write(source / path, data)
    for before, after in taken_back:
        for path, data in before.items():
            _take_back(source / path, data, after[path])
    return bool(taken_back)


def _patch_of_component(
    source: Path, lock: lock_model.Lock, locked: lock_model.LockedComponent, file: str, upstreams: Path
) -> None:
    """Apply a patch file of another component ("NAME:path"), as it is locked, to the files in `source`."""
    (patch,) = [one for one in locked.patches if one.file == file]
    origin, _, path = file.partition(":")
    holder = lock.components[origin]
    assert holder.pin
    repository = _repository(upstreams, holder.sources)
    shown = subprocess.run(
        ["git", f"--git-dir={repository}", "show", f"{holder.pin}:{path}"], stdout=subprocess.PIPE, check=True
    )
    for one in parse_patch(patch.applied_text(shown.stdout), name=patch.name).files:
        place = source / one.path
        _write(place, apply_exact(_read(place), one, name=patch.name))


def _take_back(file: Path, before: bytes | None, after: bytes | None) -> None:
    """What one patch did to a file, undone in its last state."""
    if before is None or after is None:
        _write(file, before)
        return
    scratch = [file.with_name(f"{file.name}.{end}") for end in ("after", "before")]
    for place, data in zip(scratch, (after, before), strict=True):
        place.write_bytes(data)
    command = ["git", "merge-file", "-p", "-q", str(file), *map(str, scratch)]
    merged = subprocess.run(command, stdout=subprocess.PIPE, check=False).stdout
    for place in scratch:
        place.unlink()
    # An import that a later patch has extended stays (0011-rollout-temperature after 0007-on-policy-logprob).
    merged = _CONFLICT.sub(lambda found: found["now"] if _only_imports(found) else found[0], merged)
    if b"<<<<<<< " in merged:
        raise ValueError(f"What the patch did to {file} can't be told apart from what later patches did")
    file.write_bytes(merged)


def _only_imports(conflict: re.Match[bytes]) -> bool:
    lines = (conflict["now"] + conflict["before"]).splitlines()
    return all(line.startswith((b"import ", b"from ")) for line in lines if line.strip())


def _read(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None


def _write(path: Path, data: bytes | None) -> None:
    if data is None:
        path.unlink(missing_ok=True)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
