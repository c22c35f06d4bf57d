"""Building of the workspace components that have build commands in the manifest.

A build works in a copy of its component's whole checkout. Its products are recorded in the receipt by their hashes and
moved into the workspace once every command has ended well and the locked files are still as locked. Nothing that a
build or a person changed meanwhile is undone or removed.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

from npu_rl.common.disk import disk_errors, remove_tree, write_atomically
from npu_rl.common.errors import NpuRlError, WorkspaceError
from npu_rl.common.interpreter import read_interpreter
from npu_rl.common.masking import Secrets, masked_text
from npu_rl.common.printable import one_line
from npu_rl.common.process import RUN_VARIABLE, start, stop
from npu_rl.stack.lock.lock_model import Lock, LockedBuild, LockedComponent
from npu_rl.workspace.folder.built_products import (
    BUILT,
    MISSING,
    BuildOutcome,
    BuiltProduct,
    build_mark,
    built_products,
    command_digest,
    file_facts,
    place_of,
    state_on_disk,
)
from npu_rl.workspace.folder.chosen_interpreter import choose
from npu_rl.workspace.folder.receipt import diff_command, read_receipt
from npu_rl.workspace.folder.workspace_lock import exclusive, recover_interrupted
from npu_rl.workspace.folder.workspace_paths import WorkspacePaths
from npu_rl.workspace.verification.require_locked import require_locked
from npu_rl.workspace.verification.verify import verify

if TYPE_CHECKING:
    from npu_rl.stack.sources.progress import Notify

_LAST_LINES = 20  # of a log, in an error
_SHOWN = 8


@dataclass(frozen=True)
class Builder:
    """The interpreter of builds: its path, which replaces {python} in a command, and its version such as 3.11.7."""

    python: str
    version: str


def build_with(paths: WorkspacePaths, lock: Lock, python: str | None, notify: Notify) -> list[BuildOutcome]:
    """Build with an interpreter, or with the one that the user chose; see `build_components`."""
    if not any(component.build for component in lock.components.values()):
        return []
    found = read_interpreter(choose(python, paths))
    return build_components(paths, lock, Builder(found.path, found.version), notify)


def build_components(
    paths: WorkspacePaths, lock: Lock, builder: Builder, notify: Notify
) -> list[BuildOutcome]:
    """Build each component whose products are missing, in the lock's order.

    Args:
        lock: The lock that the workspace was set up from; its commands are run.

    Raises:
        WorkspaceError: If a file is not as locked, before a build or after it, or is in a product's place.
        NpuRlError: If a command fails or makes none of its products.
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
    folder.mkdir()
    try:
        yield folder
    finally:
        remove_tree(folder)


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
        """The output of the last build, with secrets masked."""
        return self.paths.hidden / "builds" / f"{self.name}.log"

    def run(self) -> BuildOutcome:
        """Build, and move the products into place. Raises WorkspaceError, NpuRlError, HostError."""
        shutil.copytree(self.paths.root / "src" / self.name, self.copy, symlinks=True)
        (self.copy / ".git").unlink()  # git would write to the workspace through it
        (self.folder / "tmp").mkdir()
        try:
            for step in self.component.build:
                self._run_step(step)
        finally:
            self._keep_log()
        made = self._products()
        self._require_locked_files()
        self._place(made)
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
            last = "\n".join(self._log_text().splitlines()[-_LAST_LINES:])
            raise NpuRlError(
                f"The build of {self.name} failed",
                where=str(self.kept_log),
                why=f"{one_line(' '.join(argv))}\nended with status {code}:\n{last}",
                hint="The workspace is unchanged. Fix the error in the log, and run the same command again.",
            )

    def _environment(self, step: LockedBuild, mark: str) -> dict[str, str]:
        """Return the environment of a command: the shell's without Python's variables, the manifest's, and its own."""
        shell = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "NPU_RL_"))}
        temporary = str(self.folder / "tmp")
        return {**shell, **self.lock.env, **step.env, "TMPDIR": temporary, RUN_VARIABLE: mark}

    def _log_text(self) -> str:
        text = self.log.read_text("utf-8", "replace") if self.log.exists() else ""
        return masked_text(Secrets.of({**os.environ, **self.lock.env}).mask(text))

    def _keep_log(self) -> None:
        self.kept_log.parent.mkdir(exist_ok=True)
        write_atomically(self.kept_log, self._log_text().encode())

    def _products(self) -> dict[Path, BuiltProduct]:
        """Return the products by their file in the copy. Raises NpuRlError for a pattern that matches no new file."""
        locked = read_receipt(self.paths).files[f"src/{self.name}"]
        files = {path.relative_to(self.copy).as_posix(): path for path in sorted(self.copy.rglob("*"))}
        made: dict[Path, BuiltProduct] = {}
        for step in self.component.build:
            for pattern in step.products:
                new = [
                    (name, path)
                    for name, path in files.items()
                    if fnmatchcase(name, pattern)
                    and name not in locked
                    and path.is_file()
                    and not path.is_symlink()
                ]
                if not new:
                    raise NpuRlError(
                        f"The build of {self.name} made no {pattern}",
                        where=str(self.kept_log),
                        why=f"{one_line(' '.join(step.run))} ended well.",
                        hint="Correct `products` or the command in the manifest, and run npu-rl lock.",
                    )
                made |= {path: self._product(name, path) for name, path in new}
        return made

    def _product(self, name: str, path: Path) -> BuiltProduct:
        digest, size, executable = file_facts(path)
        path.chmod(0o755 if executable else 0o644)  # commands run with a umask of 077
        return BuiltProduct(
            path=place_of(self.name, self.component, name),
            component=self.name,
            sha256=digest,
            size=size,
            executable=executable,
            source=self.component.result,
            command=command_digest(self.component.build),
            python=self.builder.version,
        )

    def _require_locked_files(self) -> None:
        """Raise WorkspaceError if a locked file differs now, whoever changed it. Commits and other files may."""
        report = verify(self.paths, self.notify)
        changed = [
            f"{drift.kind:<10} {one_line(drift.path)}"
            for drift in report.drift
            if drift.kind != "untracked" and drift.path not in report.built and drift.path in self._locked()
        ]
        if changed:
            more = [f"and {len(changed) - _SHOWN} more"] if len(changed) > _SHOWN else []
            raise WorkspaceError(
                f"Locked files were changed during the build of {self.name}, so its products are not taken",
                where=str(self.paths.root),
                why="\n".join([*changed[:_SHOWN], *more]),
                hint=f"Nothing was undone: {diff_command(self.paths)} shows the changes. Once the files are as locked, "
                "run the same command again.",
            )

    def _locked(self) -> set[str]:
        files = read_receipt(self.paths).files
        return {"activate", *(f"{root}/{path}" for root, listing in files.items() for path in listing)}

    def _place(self, made: Mapping[Path, BuiltProduct]) -> None:
        """Write the receipt with the products, then move them into place.

        Of a build that is killed in between, products are missing: the next setup lays the workspace without them.
        """
        home, receipt = self.paths.root, read_receipt(self.paths)
        every = built_products(receipt.setup)
        old = {path: product for path, product in every.items() if product.component == self.name}
        ours = {path for path, product in old.items() if state_on_disk(home, product) == BUILT}
        for product in made.values():
            if product.path not in ours and state_on_disk(home, product) not in (BUILT, MISSING):
                raise WorkspaceError(
                    "A file is in the way of a product",
                    where=str(home / product.path),
                    hint="Move it away, and build again.",
                )
        for path in ours - {product.path for product in made.values()}:
            (home / path).unlink()
        others = (product for path, product in every.items() if path not in old)
        listed = list(map(asdict, (*others, *made.values())))
        text = replace(receipt, setup={**receipt.setup, "built": listed}).dump()
        write_atomically(self.paths.receipt, text.encode("utf-8", "surrogateescape"), sync=True)
        for file, product in made.items():
            (home / product.path).parent.mkdir(parents=True, exist_ok=True)
            file.replace(home / product.path)
