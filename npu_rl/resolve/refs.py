"""Refs to full commit ids, and what a person should be told about each name."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from npu_rl.errors import SourceError
from npu_rl.git.command import Git
from npu_rl.sources.git_fetch import Network, ls_remote, remote, short

Tell = Callable[[str], None]
_FULL_ID = re.compile(r"[0-9a-f]{40}")


def is_full_id(ref: str) -> bool:
    return _FULL_ID.fullmatch(ref) is not None


def resolve(
    repository: Git, urls: Sequence[str], refs: Sequence[str], network: Network, component: str, tell: Tell
) -> dict[str, str]:
    """Commit ids of refs (full ids stay as they are), from the first mirror that has them all.

    Told: a moving branch, and a name that is both a branch and a tag.
    Raises SourceError that names each mirror and what it lacks.
    """
    names = [ref for ref in dict.fromkeys(refs) if not is_full_id(ref)]
    found = {ref: ref for ref in refs if is_full_id(ref)}
    if not names:
        return found
    patterns = [p for ref in names for p in _patterns(ref)]
    reasons = []
    for url in urls:
        try:
            there = ls_remote(repository, url, patterns, network, component)
        except SourceError as error:
            reasons.append(f"{error.what}: {error.why}")
            continue
        lacking = [ref for ref in names if ref not in there]
        if lacking:
            reasons.append(f"{shown(url, network, component)} does not have {', '.join(lacking)}")
            continue
        for ref in names:
            found[ref] = there.get(f"{ref}^{{}}", there[ref])
            _tell_about(ref, there, component, tell)
        tags = {ref: found[ref] for ref in names if ref.startswith("refs/tags/")}
        if tags:
            _compare(
                repository, [other for other in urls if other != url], url, tags, network, component, tell
            )
        return found
    raise SourceError(
        f"The refs of {component} can't be resolved",
        why="\n".join(reasons),
        hint="If a source does not have the ref, check its name. Otherwise check the network, or point the URLs at a\n"
        "mirror: --rewrite FROM=TO",
    )


def shown(url: str, network: Network, component: str) -> str:
    """A URL as it is really asked, fit for a person."""
    return remote(url, network, component).shown


def _compare(
    repository: Git,
    others: Sequence[str],
    url: str,
    tags: Mapping[str, str],
    network: Network,
    component: str,
    tell: Tell,
) -> None:
    """Hold a mirror's tags against those of every other source: a tag names one commit, or somebody moved it.

    Told: a source that can't be asked, or lacks a tag. Raises SourceError that names both answers.
    """
    once = replace(network, retries=0)
    mine = shown(url, network, component)
    for other in others:
        place = shown(other, network, component)
        if place == mine:
            continue  # one mirror for both
        try:
            there = ls_remote(
                repository, other, [p for tag in tags for p in (tag, f"{tag}^{{}}")], once, component
            )
        except SourceError as error:
            tell(f"note: {component}: the tags of {place} could not be compared: {error.why}")
            continue
        for tag, oid in tags.items():
            found = there.get(f"{tag}^{{}}", there.get(tag))
            if found is None:
                tell(f"note: {component}: {place} does not have {tag}")
            elif found != oid:
                raise SourceError(
                    f"{tag} of {component} is a different commit in different sources",
                    why=f"{mine} has {oid},\n{place} has {found}.",
                    hint="Find out which commit is right and set `ref:` to its full id, or remove the other source.",
                )


def _patterns(ref: str) -> list[str]:
    twin = _twin(ref)
    return [ref, f"{ref}^{{}}", *([twin, f"{twin}^{{}}"] if twin else [])]


def _twin(ref: str) -> str | None:
    for mine, other in (("refs/heads/", "refs/tags/"), ("refs/tags/", "refs/heads/")):
        if ref.startswith(mine):
            return other + ref[len(mine) :]
    return None


def _tell_about(ref: str, there: dict[str, str], component: str, tell: Tell) -> None:
    twin = _twin(ref)
    oid = there.get(f"{ref}^{{}}", there[ref])
    if twin in there:
        other = there.get(f"{twin}^{{}}", there[twin])
        same = "the same commit" if other == oid else f"a different commit, {short(other)}"
        tell(f"{component}: {ref.split('/', 2)[2]} is both a branch and a tag; {twin} is {same}")
    if ref.startswith("refs/heads/"):
        tell(f"{component}: {ref} is a branch, which can move; locked at {short(oid)}")
