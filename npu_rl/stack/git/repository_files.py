"""Recognition of the files that git itself writes into a repository's folder.

Names with a hash or random letters are git's, and so are names that every repository has. A user's file may have any
other name, so files with those names are judged by their content: a thesis named `shallow` was removed with an old
workspace (2026-11-25). An empty file has nothing to lose.
"""

from __future__ import annotations

import re
from pathlib import Path

from npu_rl.common.bounded import open_file, read_file

_OID = "[0-9a-f]{40}"
_LARGEST = 1 << 20  # bytes; a longer file is not read, and counts as a user's
_BY_NAME = re.compile(
    r"HEAD|refs/heads/main|objects/info/alternates"  # every repository has these: another content is damage
    rf"|objects/(info/commit-graphs/graph-{_OID}\.graph|pack/pack-{_OID}\.(pack|idx|rev|keep|bitmap|mtimes|promisor)"
    rf"|pack/multi-pack-index-{_OID}\.(bitmap|rev)|[0-9a-f]{{2}}/[0-9a-f]{{38}}"
    r"|(pack/|[0-9a-f]{2}/)?tmp_(pack|idx|rev|obj|midx|bitmap|mtimes|graph)_\w{6})"
)
_BY_CONTENT = tuple(
    (re.compile(name), re.compile(content))
    for name, content in (
        (rf"index(\.lock)?|sharedindex\.{_OID}", r"DIRC"),
        (r"objects/info/commit-graph", r"CGPH"),
        (r"objects/pack/multi-pack-index", r"MIDX"),
        (r"reftable/0x[0-9a-f]+-0x[0-9a-f]+-[0-9a-f]+\.(ref|log)", r"REFT"),
        (
            r"(ORIG|FETCH|MERGE|CHERRY_PICK|REVERT|REBASE|BISECT)_HEAD|AUTO_MERGE|BISECT_EXPECTED_REV",
            rf"({_OID}(\t[^\n]*)?(\n|\Z))+\Z",
        ),
        (r"(HEAD|refs/.+?)(\.lock)?", rf"({_OID}|ref: refs/\S+)\s*\Z"),
        (
            r"logs/(HEAD|refs/.+)",
            rf"({_OID} {_OID} [^\n<]*<[^\n>]*> [0-9]+ [+-][0-9]{{4}}(\t[^\n]*)?(\n|\Z))+\Z",
        ),
        (r"packed-refs", rf"(# pack-refs [^\n]*\n)?({_OID} refs/\S+\n|\^{_OID}\n)*\Z"),
        (r"info/refs", rf"({_OID}\trefs/\S+\n)*\Z"),
        (r"shallow|objects/info/commit-graphs/commit-graph-chain", rf"({_OID}\n)*\Z"),
        (r"objects/info/packs", rf"(P pack-{_OID}\.pack\n|\n)*\Z"),
        (r"reftable/tables\.list", r"(0x[0-9a-f]+-0x[0-9a-f]+-[0-9a-f]+\.(ref|log)\n)*\Z"),
        (r"gc\.pid", r"[0-9]+ \S+\s*\Z"),
        (r"MERGE_MODE", r"(no-ff)?\s*\Z"),
        (r"MERGE_RR", rf"({_OID}(\.[0-9]+)?\t[^\0]*\0)*\Z"),
        (r"BISECT_START", r"\S+\s*\Z"),
        (r"BISECT_TERMS", r"[\w-]+\n[\w-]+\s*\Z"),
        (r"BISECT_NAMES", r"( ('[^'\n]*'|\\')+)*\s*\Z"),
        (r"BISECT_LOG", r"(# [\w ]+: [^\n]*\n|git bisect [^\n]*\n)*\Z"),
        (r"(COMMIT_EDIT|MERGE_|SQUASH_)MSG", r"((#[^\n]*)?\n)*(#[^\n]*)?\Z"),  # a drafted message is work
        (
            r"gc\.log|(config|packed-refs|shallow|objects/.+|reftable/.+)\.lock|BISECT_(ANCESTORS_OK|FIRST_PARENT)"
            r"|fsmonitor--daemon(\.ipc|/cookies/[0-9]+-[0-9]+)",
            r"\Z",
        ),
    )
)
_SAMPLE = re.compile(r"hooks/[a-z-]+\.sample")


def has_gits_name(inner: str) -> bool:
    """Return whether a path in a repository is one that only git uses."""
    return _BY_NAME.fullmatch(inner) is not None


def has_gits_content(path: Path, inner: str) -> bool:
    """Return whether a file has a name that git uses, and content as git writes it there.

    Args:
        inner: Its path in the repository. A pipe or device is not read.
    """
    if _SAMPLE.fullmatch(inner):
        return _is_gits_sample(path)
    wanted = next((content for name, content in _BY_CONTENT if name.fullmatch(inner)), None)
    if wanted is None or not path.is_file():
        return wanted is not None
    whole = wanted.pattern.endswith("Z")  # else it is how a binary file begins
    with open_file(path) as file:
        content = file.read(_LARGEST + 1 if whole else 4)
    text = content.decode("utf-8", "replace")
    return len(content) <= _LARGEST and (not text.strip() or wanted.match(text) is not None)


def _is_gits_sample(path: Path) -> bool:
    """Return whether a sample hook is the one shipped with the git on PATH; an edited sample is a user's draft."""
    import shutil  # samples are rare, and it takes 5 ms

    prefix = Path(shutil.which("git") or "/").resolve().parent.parent
    template = prefix / "share/git-core/templates/hooks" / path.name
    try:
        return read_file(path, _LARGEST) == read_file(template, _LARGEST)
    except (OSError, ValueError):
        return False
