"""Resolution of a manifest's requirements by uv, for one target."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from npu_rl.common.bounded import parse_toml
from npu_rl.common.errors import ManifestError, SourceError
from npu_rl.stack.pylocks.package_sets import PackageSet
from npu_rl.stack.pylocks.pylock_file import Alone, Pylock, locked_packages
from npu_rl.stack.pylocks.pylock_targets import Target
from npu_rl.stack.pylocks.uv_program import (
    index_hint,
    index_words,
    is_absent,
    run_uv,
    uv_environment,
    uv_folder,
)
from npu_rl.stack.sources.credentials import scrub

if TYPE_CHECKING:
    from npu_rl.stack.sources.pip_config import PipSettings

_NO_SOLUTION = "No solution found"
_FRAME = re.compile(r"[^\x20-\x7e]+")
_LONGEST_REASON = 4000  # characters


class Unresolvable(ManifestError):
    """No set of packages fits a manifest's requirements; `why` is uv's reason, as one line."""


def compile_pylock(
    manifest: str,
    packages: PackageSet,
    target: Target,
    settings: PipSettings,
    *,
    newest: str = "",
    environ: Mapping[str, str] | None = None,
) -> Pylock:
    """Return the packages of a manifest for one target.

    If no set fits, each pinned requirement named in the manifest's `overrides` is tried as one that is installed alone,
    so that its bounds don't affect the others.

    Args:
        manifest: Its name.
        settings: pip's settings, with the indexes.
        newest: Ignore uploads after this moment (RFC 3339).

    Raises:
        Unresolvable: If no set fits.
        SourceError: If uv fails otherwise.
        HostError: If uv is not installed.
    """
    words = ["--python-version", target.python, "--python-platform", target.uv_platform]
    words += ["--python", sys.executable]
    words += ["--exclude-newer", newest] if newest else []
    environment = uv_environment(settings, os.environ if environ is None else environ)
    with uv_folder(settings, environment) as (folder, variables):
        resolution = _Resolution(manifest, packages, settings, words, folder, variables)
        alone: tuple[Alone, ...] = ()
        try:
            text = resolution.text()
        except Unresolvable as error:
            text, one = resolution.with_one_alone(error)
            alone = (one,)
    return Pylock(
        manifest=manifest,
        target=target,
        made_from=packages.digest(),
        packages=tuple(sorted(locked_packages(parse_toml(text)), key=lambda one: one.name)),
        newest=newest,
        left_out=packages.left_out,
        alone=alone,
    )


@dataclass(frozen=True)
class _Resolution:
    """Input of uv except overrides; `words` are further arguments."""

    manifest: str
    packages: PackageSet
    settings: PipSettings
    words: Sequence[str]
    folder: Path
    variables: Mapping[str, str]

    def text(self, *overrides: str) -> str:
        """Return uv's output. Raises Unresolvable, SourceError, HostError."""
        never = "; sys_platform == 'never'"  # an override that holds nowhere removes a package
        wanted = self._written("requirements.in", [*self.packages.requirements, *self.packages.of_torch])
        left_out = self._written(
            "overrides.txt", [*(name + never for name in self.packages.left_out), *overrides]
        )
        words = ["pip", "compile", wanted, "--overrides", left_out, "--quiet", "--no-header"]
        words += ["--generate-hashes", "--format", "pylock.toml", *self.words]
        words += index_words(self.settings)
        done = run_uv(words, self.variables, self.folder)
        if done.code:
            raise self._error(done.stderr)
        return done.stdout

    def with_one_alone(self, error: Unresolvable) -> tuple[str, Alone]:
        """Return the output without one requirement, and that requirement. Raises the given error if none helps."""
        for text in self.packages.overridden:
            requirement = Requirement(text)
            try:
                found = self.text(text)
            except Unresolvable:
                continue
            version = next(iter(requirement.specifier)).version
            return found, Alone(canonicalize_name(requirement.name), version, error.why or "")
        raise error

    def _written(self, name: str, lines: Sequence[str]) -> str:
        """Write an input file of uv, which contains no index URLs, and return its name."""
        (self.folder / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        return name

    def _error(self, printed: str) -> Unresolvable | SourceError:
        reason = scrub(_FRAME.sub(" ", printed.replace("\n", " ")), self.settings.secrets)[:_LONGEST_REASON]
        if _NO_SOLUTION not in reason:
            return SourceError(
                f"uv can't resolve the requirements of {self.manifest}",
                why=reason,
                hint=index_hint(reason, self.settings),
            )
        _, found, because = reason.partition("Because ")
        return Unresolvable(
            f"No set of packages fits the requirements of {self.manifest}",
            why=f"{found}{because}".strip() or reason,
            hint=index_hint(reason, self.settings) if is_absent(reason) else None,
        )
