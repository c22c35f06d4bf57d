"""Resolution of refs to full commit ids, with notes about moving and ambiguous names."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from npu_rl.common.errors import SourceError
from npu_rl.stack.git.command import Git
from npu_rl.stack.git.objects import short
from npu_rl.stack.sources.git_remote import Network, ls_remote, remote
from npu_rl.stack.sources.progress import Notify

_FULL_ID = re.compile(r"[0-9a-f]{40}")


def is_full_id(ref: str) -> bool:
    """Return whether a ref is a full commit id."""
    return _FULL_ID.fullmatch(ref) is not None


def resolve(
    repository: Git,
    urls: Sequence[str],
    refs: Sequence[str],
    network: Network,
    component: str,
    notify: Notify,
) -> dict[str, str]:
    """Resolve refs to commit ids, from the first mirror that has all of them.

    Notifies of branches, and of names that are both a branch and a tag.

    Raises:
        SourceError: No mirror has all refs; it lists those that each one lacks.
    """
    asked = [*refs, *filter(None, map(_same_name_ref, refs))]
    reasons = []
    for url in urls:
        try:
            remote_refs = ls_remote(repository, url, asked, network, component)
        except SourceError as error:
            reasons.append(f"{error.what}: {error.why}")
            continue
        missing = [ref for ref in refs if ref not in remote_refs]
        if missing:
            reasons.append(f"{shown(url, network, component)} does not have {', '.join(missing)}")
            continue
        for ref in refs:
            _report_name(ref, remote_refs, component, notify)
        tags = {ref: remote_refs[ref] for ref in refs if ref.startswith("refs/tags/")}
        others = [other for other in urls if other != url] if tags else []
        _compare_tags(repository, others, url, tags, network, component, notify)
        return {ref: remote_refs[ref] for ref in refs}
    raise SourceError(
        f"The refs of {component} can't be resolved",
        why="\n".join(reasons),
        hint="If a source does not have the ref, check its name. Otherwise check the network, or point the URLs at a\n"
        "mirror: --rewrite FROM=TO",
    )


def shown(url: str, network: Network, component: str) -> str:
    """Return the URL after rewriting, without credentials."""
    return remote(url, network, component).shown


def _compare_tags(
    repository: Git,
    others: Sequence[str],
    url: str,
    tags: Mapping[str, str],
    network: Network,
    component: str,
    notify: Notify,
) -> None:
    """Compare a mirror's tags with those of every other source: if they differ, somebody moved a tag.

    Notifies of a source that can't be read or lacks a tag.

    Raises:
        SourceError: A tag differs; it has both commit ids.
    """
    without_retries = replace(network, retries=0)
    shown_url = shown(url, network, component)
    for other in others:
        place = shown(other, network, component)
        if place == shown_url:
            continue  # one mirror for both
        try:
            remote_refs = ls_remote(repository, other, tags, without_retries, component)
        except SourceError as error:
            notify(f"note: {component}: the tags of {place} could not be compared: {error.why}")
            continue
        for tag, oid in tags.items():
            found = remote_refs.get(tag)
            if found is None:
                notify(f"note: {component}: {place} does not have {tag}")
            elif found != oid:
                raise SourceError(
                    f"{tag} of {component} is a different commit in different sources",
                    why=f"{shown_url} has {oid},\n{place} has {found}.",
                    hint="Find out which commit is right and set `ref:` to its full id, or remove the other source.",
                )


def _same_name_ref(ref: str) -> str | None:
    for shown_url, other in (("refs/heads/", "refs/tags/"), ("refs/tags/", "refs/heads/")):
        if ref.startswith(shown_url):
            return other + ref[len(shown_url) :]
    return None


def _report_name(ref: str, remote_refs: dict[str, str], component: str, notify: Notify) -> None:
    other_ref = _same_name_ref(ref)
    oid = remote_refs[ref]
    if other_ref in remote_refs:
        other = remote_refs[other_ref]
        same = "the same commit" if other == oid else f"a different commit, {short(other)}"
        notify(f"{component}: {ref.split('/', 2)[2]} is both a branch and a tag; {other_ref} is {same}")
    if ref.startswith("refs/heads/"):
        notify(f"{component}: {ref} is a branch, which can move; locked at {short(oid)}")
