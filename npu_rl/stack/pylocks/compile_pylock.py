"""Resolution of a manifest's requirements by uv, for one target."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
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
    platform = f"{target.machine}-manylinux_{target.glibc.replace('.', '_')}"
    words = ["--python-version", target.python, "--python-platform", platform, "--python", sys.executable]
    words += ["--exclude-newer", newest] if newest else []
    environment = uv_environment(settings, os.environ if environ is None else environ)
    alone: tuple[Alone, ...] = ()
    with uv_folder(settings, environment) as (folder, variables):
        compiled = partial(_compiled, manifest, packages, settings, words, folder, variables)
        try:
            text = compiled()
        except Unresolvable as error:
            text, one = _with_one_alone(packages, compiled, error)
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


def _compiled(
    manifest: str,
    packages: PackageSet,
    settings: PipSettings,
    words: Sequence[str],
    folder: Path,
    variables: Mapping[str, str],
    *overrides: str,
) -> str:
    """Return uv's output. Its input contains no index URLs. Raises Unresolvable, SourceError, HostError."""
    absent = [f"{name}; sys_platform == 'never'" for name in packages.left_out]  # so an override removes it
    wanted = [*packages.requirements, *packages.of_torch]
    for name, lines in (("requirements.in", wanted), ("overrides.txt", [*absent, *overrides])):
        (folder / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    argv = ["pip", "compile", "requirements.in", "--overrides", "overrides.txt", "--quiet", "--no-header"]
    argv += ["--generate-hashes", "--format", "pylock.toml", *words]
    argv += index_words(settings)
    done = run_uv(argv, variables, folder)
    if done.code == 0:
        return done.stdout
    reason = scrub(_FRAME.sub(" ", done.stderr.replace("\n", " ")), settings.secrets)[:_LONGEST_REASON]
    hint = index_hint(reason, settings)
    if _NO_SOLUTION not in reason:
        raise SourceError(f"uv can't resolve the requirements of {manifest}", why=reason, hint=hint)
    _, found, because = reason.partition("Because ")
    raise Unresolvable(
        f"No set of packages fits the requirements of {manifest}",
        why=f"{found}{because}".strip() or reason,
        hint=hint if is_absent(reason) else None,
    )


def _with_one_alone(
    packages: PackageSet, compiled: Callable[[str], str], error: Unresolvable
) -> tuple[str, Alone]:
    """Return the output without one requirement, and that requirement. Raises the given error if none helps."""
    for text in packages.overridden:
        requirement = Requirement(text)
        with contextlib.suppress(Unresolvable):
            found, version = compiled(text), next(iter(requirement.specifier)).version
            return found, Alone(canonicalize_name(requirement.name), version, error.why or "")
    raise error
