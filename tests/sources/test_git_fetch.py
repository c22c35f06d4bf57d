"""Fetching from real servers, old and new, healthy and not: the right objects or a reason, and no leavings."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from npu_rl.common.errors import SourceError, UsageError
from npu_rl.stack.git.command import Git
from npu_rl.stack.sources.git_fetch import GitRequest, fetch_commits, fetch_from, missing
from npu_rl.stack.sources.git_remote import ls_remote
from npu_rl.stack.sources.progress import Silent, Watcher
from npu_rl.stack.store import Store, Unit
from tests.sources.mirrors import (
    NOISE,
    Notes,
    Upstream,
    command_lines,
    network,
    objects_of,
    reached,
)
from tests.support import HttpGit, Repo, http_git, serve


@contextmanager
def server(kind: str, folder: Path) -> Iterator[str]:
    """The URL of `folder/up.git` on some kind of server."""
    name = "up.git"
    if kind == "file":
        yield f"file://{folder / name}"
    elif kind.startswith("git"):
        with serve(folder, v0=kind.endswith("v0")) as daemon:
            yield daemon.url(name)
    else:
        with http_git(folder, v0=kind.endswith("v0")) as http:
            yield http.url(name)


def check(unit: Unit, request: GitRequest, upstream: Upstream, scratch: Path) -> None:
    """The unit has what was wanted with all it reaches, and it is sound."""
    there = set(objects_of(unit, scratch))
    assert reached(upstream.repo, *request.wants) <= there
    for pack in unit.packs():
        Git(scratch).run("verify-pack", str(pack))
    assert not (unit.path / "shallow").exists()


@dataclass
class Fetching:
    """Fetches the package folder of an upstream; what comes is whole and sound, or nothing is kept."""

    upstream: Upstream
    store: Store
    scratch: Path

    def __call__(
        self,
        url: str,
        *rules: tuple[str, str],
        request: GitRequest | None = None,
        watcher: Watcher = Silent(),  # noqa: B008  (stateless)
        **options: Any,
    ) -> Unit:
        request = request or self.upstream.request(self.upstream.tip)
        unit, received = fetch_from(self.store, request, url, network(*rules, **options), watcher)
        assert received >= unit.size()
        check(unit, request, self.upstream, self.scratch)
        return unit

    def refused(self, url: str, *rules: tuple[str, str], **options: Any) -> str:
        """Why it is not delivered."""
        with pytest.raises(SourceError, match="up") as caught:
            self(url, *rules, **options)
        request = options.get("request") or self.upstream.request(self.upstream.tip)
        assert self.store.find(request.key) is None
        return caught.value.why or ""


@pytest.fixture
def fetch(upstream: Upstream, store: Store, scratch: Path) -> Fetching:
    return Fetching(upstream, store, scratch)


NEW = ["git", "http", "file"]
OLD = ["git v0", "http v0"]


# -- the chain -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", NEW)
@pytest.mark.parametrize("commit", ["middle", "head"])
def test_servers_of_today_serve_by_object_id(
    kind: str, commit: str, upstream: Upstream, store: Store, scratch: Path
) -> None:
    request = upstream.request(getattr(upstream, commit))
    notes = Notes()
    with server(kind, upstream.served) as url:
        unit, received = fetch_from(store, request, url, network(), notes)
        assert unit.facts()["source"] == url
    assert unit.facts()["step"] == "by object id"
    assert set(objects_of(unit, scratch)) == reached(upstream.repo, *request.wants), "and nothing else"
    assert received == unit.size()
    assert notes.begun == [f"up: {url}"]
    assert notes.fractions[-1] == 1.0
    assert notes.notes == []
    check(unit, request, upstream, scratch)


@pytest.mark.parametrize("kind", OLD)
@pytest.mark.parametrize(
    ("commits", "step"),
    [
        (("tip",), "by commit id"),
        (("tip", "middle"), "by ref"),
        (("middle",), "everything"),
        ((), "by ref"),
    ],
    ids=["a tip", "a tip and something else", "in mid-branch", "no commit"],
)
def test_old_servers_are_asked_in_another_way(
    kind: str, commits: tuple[str, ...], step: str, upstream: Upstream, store: Store, scratch: Path
) -> None:
    ids = tuple(getattr(upstream, name) for name in commits)
    wanted = upstream.request(ids[0] if ids else upstream.tip)
    request = GitRequest("up", wanted.wants, ids, wanted.refs)
    with server(kind, upstream.served) as url:
        unit, received = fetch_from(store, request, url, network(), Silent())
    assert unit.facts()["step"] == step
    assert set(objects_of(unit, scratch)) == reached(upstream.repo, *request.wants)
    assert received >= unit.size()
    check(unit, request, upstream, scratch)


@pytest.mark.parametrize("kind", ["git", "http v0"])
def test_a_mirror_without_pull_requests_says_what_it_lacks(
    kind: str, upstream: Upstream, fetch: Fetching, tmp_path: Path
) -> None:
    mirror = upstream.repo.copy(tmp_path / "mirror" / "up.git")
    mirror.git("update-ref", "-d", "refs/pull/7/head")
    mirror.git("gc", "-q", "--prune=now")
    request = upstream.request(upstream.head, refs=("refs/heads/main", "refs/pull/7/head"))
    with server(kind, tmp_path / "mirror") as url:
        why = fetch.refused(url, request=request)
    assert "by object id" in why
    assert "couldn't find remote ref refs/pull/7/head" in why
    assert f"everything: the server sent other objects ({request.wants[0][:12]} is missing)" in why


@pytest.mark.parametrize("kind", ["git", "http v0"])
def test_other_content_under_the_same_name_is_refused(kind: str, fetch: Fetching, tmp_path: Path) -> None:
    liar = Repo(tmp_path / "liar" / "up.git")
    liar.commit({"package/a.py": "something else\n"})
    with server(kind, tmp_path / "liar") as url:
        assert "the server sent other objects" in fetch.refused(url)


# -- servers that fail ---------------------------------------------------------------------------------


@pytest.fixture
def http(upstream: Upstream) -> Iterator[HttpGit]:
    with http_git(upstream.served) as http:
        yield http


def test_an_answer_that_breaks_off_is_asked_for_again(http: HttpGit, fetch: Fetching) -> None:
    http.cut_after, http.cuts = len(NOISE) // 2, 2
    notes = Notes()
    assert fetch(http.url("up.git"), watcher=notes, retries=3).facts()["step"] == "by object id"
    assert [note.rpartition("; ")[2] for note in notes.notes] == ["retrying in 0 s"] * 2


def test_a_server_in_trouble_is_asked_again(http: HttpGit, fetch: Fetching) -> None:
    http.failures, http.status = 2, 429
    notes = Notes()
    fetch(http.url("up.git"), watcher=notes, retries=2)
    assert len(notes.notes) == 2 and "429" in notes.notes[0]


def test_a_server_that_stays_in_trouble_is_left_for_the_next_mirror(http: HttpGit, fetch: Fetching) -> None:
    http.failures = 1000
    assert "503" in fetch.refused(http.url("up.git"), retries=2)
    assert len(http.requests) == 3, "one way of asking, three times"


@pytest.mark.parametrize("status", [401, 404])
def test_a_server_that_says_no_is_asked_once(status: int, http: HttpGit, fetch: Fetching) -> None:
    http.failures, http.status = 1000, status
    fetch.refused(http.url("up.git"), retries=3)
    assert len(http.requests) == 1


def test_a_server_that_falls_silent_is_left(http: HttpGit, fetch: Fetching) -> None:
    """In the middle, or at once: then it is not asked again."""
    http.stall_after = len(NOISE) // 2
    assert "no data for 0.7 seconds" in fetch.refused(http.url("up.git"), stall=0.7)
    http.stall_after, count = 0, len(http.requests)
    fetch.refused(http.url("up.git"), stall=0.5, retries=3)
    assert len(http.requests) == count + 1


# -- addresses -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", ["ext::sh -c id", "--upload-pack=id"])
def test_git_is_never_given_a_command(bad: str, upstream: Upstream, store: Store) -> None:
    request = upstream.request(upstream.tip)
    with pytest.raises(UsageError):
        fetch_from(store, request, bad, network(), Silent())
    with pytest.raises(UsageError):
        fetch_from(store, request, "https://x/", network(("https://x/", bad)), Silent())
    with pytest.raises(UsageError):
        fetch_commits(Git(upstream.repo.path), bad, [upstream.tip], network(), "up", Silent(), contents="")
    with pytest.raises(UsageError):
        ls_remote(Git(upstream.repo.path), bad, [], network(), "up")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.delenv("GIT_CONFIG_GLOBAL", raising=False)
    return home


def test_a_command_is_not_run_even_if_the_users_insteadof_leads_to_one(
    home: Path, fetch: Fetching, tmp_path: Path
) -> None:
    (home / ".gitconfig").write_text(
        f'[url "ext::touch {tmp_path}/ran #"]\n\tinsteadOf = https://nowhere.invalid/\n[protocol]\n\tallow = always\n'
    )
    assert "not allowed" in fetch.refused("https://nowhere.invalid/up.git")
    assert not (tmp_path / "ran").exists()


def test_credentials_are_used_and_shown_to_nobody(http: HttpGit, home: Path, fetch: Fetching) -> None:
    http.auth = "me:s3cr@t"
    (home / ".gitconfig").write_text("[credential]\n\thelper = store\n")
    seen: list[str] = []
    http.spy = lambda: seen.extend(command_lines())
    notes = Notes()
    fetch("https://x/up.git", ("https://x/", http.url("", "me:s3cr%40t")), watcher=notes)
    assert any("remote-http" in line for line in seen) or not Path("/proc/self").exists()
    assert not [line for line in seen if "s3cr" in line]
    assert notes.begun == [f"up: {http.url('up.git', '***')}"]
    # The user's helper did not get to see them.
    assert [path.name for path in home.iterdir()] == [".gitconfig"]


@pytest.mark.parametrize("given", ["me:wr0ng", "wr0ng"])
@pytest.mark.usefixtures("home")
def test_wrong_credentials_fail_once_and_are_not_shown(given: str, http: HttpGit, fetch: Fetching) -> None:
    http.auth = "me:right"
    with pytest.raises(SourceError, match="Authentication failed") as caught:
        fetch("https://x/up.git", ("https://x/", http.url("", given)), retries=3)
    assert "wr0ng" not in str(caught.value)
    assert len(http.authorizations) == 1


def test_credentials_are_given_to_no_other_host(http: HttpGit, home: Path, fetch: Fetching) -> None:
    """The user's own rewriting takes the request elsewhere."""
    with http_git(fetch.upstream.served, auth="me:s3cret") as other:
        (home / ".gitconfig").write_text(f'[url "{other.url("")}"]\n\tinsteadOf = {http.url("")}\n')
        fetch.refused("https://x/up.git", ("https://x/", http.url("", "me:s3cret")))
        assert (http.requests, other.authorizations) == ([], [])


# -- what only `lock` asks -----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["git", "file", "http v0"])
def test_ls_remote(kind: str, upstream: Upstream, scratch: Path) -> None:
    with server(kind, upstream.served) as url:
        refs = ls_remote(Git(scratch), url, ["refs/tags/v1", "refs/pull/7/head"], network(), "up")
    assert upstream.repo.id("refs/tags/v1") != upstream.first, "the tag is annotated"
    assert refs == {"refs/tags/v1": upstream.first, "refs/pull/7/head": upstream.head}


@pytest.mark.parametrize("kind", [*NEW, *OLD])
def test_fetch_commits_without_their_files(kind: str, upstream: Upstream, scratch: Path) -> None:
    repository = Git(scratch)
    upstream.repo.configure("uploadpack.allowFilter", "true")
    with server(kind, upstream.served) as url:
        tips = [upstream.tip, upstream.head]
        fetch_commits(repository, url, tips, network(), "up", Silent(), contents="tree:0")
    assert repository.text("merge-base", upstream.tip, upstream.head) == upstream.middle
    if kind != "file":  # an older git ignores the filter there, and delivers more than was asked for
        assert missing(repository, [upstream.repo.tree("main", "package/noise")]) != []
