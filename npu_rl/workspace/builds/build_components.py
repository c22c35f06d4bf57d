"""Building of the workspace components that have build commands in the manifest.

A build works in a copy of its component's whole checkout. What it made is moved into the workspace, and the receipt
lists it, only once every command has ended well and nothing else of the workspace has changed.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path

from npu_rl.common.disk import disk_errors
from npu_rl.common.errors import NpuRlError, WorkspaceError
from npu_rl.common.masking import Secrets, masked_text
from npu_rl.common.printable import one_line
from npu_rl.common.process import RUN_VARIABLE, start, stop
from npu_rl.stack.lock.lock_model import Lock, LockedBuild, LockedComponent
from npu_rl.stack.sources.progress import Notify
from npu_rl.workspace.builds.surroundings import Surroundings, look_around, restore, strays
from npu_rl.workspace.folder.interrupted_setup import recover_interrupted
from npu_rl.workspace.folder.receipt import Receipt, read_receipt
from npu_rl.workspace.folder.workspace_lock import exclusive
from npu_rl.workspace.folder.workspace_paths import WorkspacePaths
from npu_rl.workspace.products.built_products import (
    BUILT,
    BuiltProduct,
    built_products,
    command_digest,
    file_facts,
    place_of,
    state_on_disk,
)
from npu_rl.workspace.products.placed_products import build_mark, place_products
from npu_rl.workspace.verification.require_locked import require_locked

_LAST_LINES = 20  # of a log, in an error
_LARGEST_LOG = 64 << 20  # bytes of a log that are kept
_SHOWN = 8


@dataclass(frozen=True)
class Builder:
    """The interpreter of builds: its path, which replaces {python} in a command, and its version such as 3.11.7."""

    python: str
    version: str


@dataclass(frozen=True)
class BuildOutcome:
    """The products of a component, and whether they existed already."""

    component: str
    products: tuple[BuiltProduct, ...]
    already: bool


def build_components(
    paths: WorkspacePaths, lock: Lock, builder: Builder, notify: Notify
) -> list[BuildOutcome]:
    """Build each component whose products are missing, in the lock's order.

    Args:
        lock: The lock that the workspace was set up from; its commands are run.

    Raises:
        WorkspaceError: If the workspace is not as locked, or a build writes elsewhere; all of it is undone.
        NpuRlError: If a command fails or makes none of its products; then the workspace is as before.
    """
    wanted = {name: one for name, one in lock.components.items() if one.build}
    if not wanted:
        return []
    require_locked(paths, notify, "a build would be of other sources", None)
    outcomes = []
    with disk_errors(paths.root), exclusive(paths, notify):
        recover_interrupted(paths, notify)
        for name, component in wanted.items():
            there = _current(paths, lock, name, builder)
            if there:
                outcomes.append(BuildOutcome(name, there, already=True))
                continue
            with _build_folder(paths) as folder:
                outcomes.append(_Build(paths, lock, name, component, builder, folder, notify).run())
    return outcomes


def _current(paths: WorkspacePaths, lock: Lock, name: str, builder: Builder) -> tuple[BuiltProduct, ...]:
    """Return the products of a component if all exist and were built with these sources, commands and Python."""
    every = built_products(read_receipt(paths).setup).values()
    own = tuple(product for product in every if product.component == name)
    fine = all(
        product.is_current(lock)
        and product.python == builder.version
        and state_on_disk(paths.root, product) == BUILT
        for product in own
    )
    return own if fine else ()


@contextlib.contextmanager
def _build_folder(paths: WorkspacePaths) -> Iterator[Path]:
    """Create a build's folder in `.npu-rl`, and remove it at the end. The next setup removes a killed build's."""
    folder = paths.hidden / f"build-{os.urandom(6).hex()}"
    paths.inside.make(folder)
    try:
        yield folder
    finally:
        paths.inside.remove(folder)


@dataclass(frozen=True)
class _Build:
    """One build of one component, in its own folder."""

    paths: WorkspacePaths
    lock: Lock
    name: str
    component: LockedComponent
    builder: Builder
    folder: Path
    notify: Notify

    @property
    def copy(self) -> Path:
        """The copy of the component."""
        return self.folder / self.name

    @property
    def log(self) -> Path:
        """The output of the commands while the build is in progress."""
        return self.folder / "build.log"

    @property
    def kept_log(self) -> Path:
        """The output of the last build."""
        return self.paths.hidden / "builds" / f"{self.name}.log"

    def run(self) -> BuildOutcome:
        """Build, and move the products into place. Raises WorkspaceError, NpuRlError, HostError."""
        receipt = read_receipt(self.paths)
        source = self.paths.root / "src" / self.name
        shutil.copytree(source, self.copy, symlinks=True, ignore=_pointer_of(source))
        (self.folder / "tmp").mkdir()
        before = look_around(self.paths, self.folder)
        try:
            for step in self.component.build:
                self._run_step(step)
        finally:
            self._keep_log()
            self._require_untouched(before, receipt)
        made = self._products(receipt)
        self._place(receipt, made)
        return BuildOutcome(self.name, tuple(made.values()), already=False)

    def _run_step(self, step: LockedBuild) -> None:
        """Run one command to its end, and end the processes it left. Raises NpuRlError if it fails."""
        argv = [word.replace("{python}", self.builder.python) for word in step.run]
        self.notify(f"building {self.name}: {one_line(' '.join(argv))}")
        with self.log.open("ab") as log:
            log.write(f"$ {one_line(' '.join(argv))}\n".encode("utf-8", "replace"))
        mark = build_mark(self.folder.name)
        child = start(argv, env=self._environment(step, mark), cwd=self.copy, output=self.log)
        try:
            code = child.wait()
        finally:
            stop(child, mark, 0.0)
        if code != 0:
            raise NpuRlError(
                f"The build of {self.name} failed",
                where=str(self.kept_log),
                why=f"{one_line(' '.join(argv))}\nended with status {code}:\n{self._last_lines()}",
                hint="The workspace is unchanged. Fix the error in the log, and run the same command again.",
            )

    def _environment(self, step: LockedBuild, mark: str) -> dict[str, str]:
        """Return the environment of a command: the shell's without Python's variables, the manifest's, and its own."""
        shell = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "NPU_RL_"))}
        temporary = str(self.folder / "tmp")
        return {**shell, **self.lock.env, **step.env, "TMPDIR": temporary, RUN_VARIABLE: mark}

    def _last_lines(self) -> str:
        return "\n".join(self._log_text().splitlines()[-_LAST_LINES:])

    def _log_text(self) -> str:
        """Return the log with secrets masked; only the end of a huge one."""
        try:
            with self.log.open("rb") as file:
                file.seek(max(0, self.log.stat().st_size - _LARGEST_LOG))
                text = file.read(_LARGEST_LOG).decode("utf-8", "replace")
        except FileNotFoundError:
            return ""
        return masked_text(Secrets.of({**os.environ, **self.lock.env}).mask(text))

    def _keep_log(self) -> None:
        self.paths.inside.make(self.kept_log.parent)
        self.paths.inside.write(self.kept_log, self._log_text().encode())

    def _require_untouched(self, before: Surroundings, receipt: Receipt) -> None:
        """Undo the build's changes outside its folder, and raise WorkspaceError if there were any."""
        found = [
            path for path in strays(before, self.paths, self.folder) if not path.startswith(".npu-rl/builds")
        ]
        if not found:
            return
        lost = restore(before, found, self.paths, receipt)
        more = [f"and {len(found) - _SHOWN} more"] if len(found) > _SHOWN else []
        damaged = f" All but {', '.join(lost[:_SHOWN])}: set the workspace up again." if lost else ""
        raise WorkspaceError(
            f"The build of {self.name} wrote outside its folder",
            where=str(self.paths.root),
            why="\n".join([*map(one_line, found[:_SHOWN]), *more]),
            hint="These files are removed, or as they were before, and the products are not taken." + damaged,
        )

    def _products(self, receipt: Receipt) -> dict[Path, BuiltProduct]:
        """Return the products by their file in the copy. Raises NpuRlError for a pattern that matches no new file."""
        locked = receipt.files[f"src/{self.name}"]
        files = [
            path.relative_to(self.copy).as_posix()
            for path in sorted(self.copy.rglob("*"))
            if path.is_file() and not path.is_symlink()
        ]
        made: dict[Path, BuiltProduct] = {}
        for step in self.component.build:
            for pattern in step.products:
                new = [path for path in files if fnmatchcase(path, pattern) and path not in locked]
                if not new:
                    raise NpuRlError(
                        f"The build of {self.name} made no {pattern}",
                        where=str(self.kept_log),
                        why=f"{one_line(' '.join(step.run))} ended well.",
                        hint="Correct `products` or the command in the manifest, and run npu-rl lock.",
                    )
                made |= {self.copy / path: self._product(path) for path in new}
        return made

    def _product(self, path: str) -> BuiltProduct:
        digest, size, executable = file_facts(self.copy / path)
        return BuiltProduct(
            path=place_of(self.name, self.component, path),
            component=self.name,
            sha256=digest,
            size=size,
            executable=executable,
            source=self.component.result,
            command=command_digest(self.component.build),
            python=self.builder.version,
        )

    def _place(self, receipt: Receipt, made: Mapping[Path, BuiltProduct]) -> None:
        for path, product in made.items():
            path.chmod(0o755 if product.executable else 0o644)  # commands run with a umask of 077
        every = built_products(receipt.setup)
        old = [product for product in every.values() if product.component == self.name]
        others = [product for product in every.values() if product.component != self.name]
        listed = [product.to_json() for product in (*others, *made.values())]
        text = (
            replace(receipt, setup={**receipt.setup, "built": listed})
            .dump()
            .encode("utf-8", "surrogateescape")
        )
        place_products(
            self.paths.root,
            self.folder,
            made,
            old,
            lambda: self.paths.inside.write(self.paths.receipt, text, sync=True),
            lambda: built_products(read_receipt(self.paths).setup),
        )


def _pointer_of(source: Path) -> Callable[[str, list[str]], list[str]]:
    """Return a copytree filter that leaves out the `.git` file, through which git would write to the workspace."""
    return lambda folder, names: [".git"] if Path(folder) == source and ".git" in names else []
