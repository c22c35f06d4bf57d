"""git as npu-rl runs it: the same ids and bytes whoever runs it, and an end to every wait."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from npu_rl.common.errors import HostError
from npu_rl.common.printable import printable
from npu_rl.stack.git import command, command_log
from npu_rl.stack.git.command import Git, ObjectReader, git_version, init_bare, require_git
from npu_rl.stack.git.environment import Credentials, local_environment, network_environment
from npu_rl.stack.git.messages import GitError, GitStopped, MessageStream
from tests.support import HOSTILE_ATTRIBUTES, File, Repo, hostile_user

# -- the same whoever runs it --------------------------------------------------------------------------

PATCH = b"""\
--- a/pkg/a.py
+++ b/pkg/a.py
@@ -1,2 +1,2 @@
-one $Id$
+ONE $Id$
 two\t
"""


@pytest.fixture
def upstream(tmp_path: Path) -> Repo:
    repo = Repo(tmp_path / "up.git")
    files = {
        ".gitattributes": HOSTILE_ATTRIBUTES,
        "pkg/a.py": "one $Id$\ntwo\t\n",
        "pkg/dos.txt": "a\r\nb\n",
        "pkg/x.bin": b"\0\r\n\xff",
        "pkg/run": File("#!/bin/sh\n", "100755"),
        "pkg/link": File("a.py", "120000"),
    }
    repo.commit(files)
    return repo


@pytest.fixture
def hostile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A user whose every setting would change ids or bytes, or run a program; the folder it would write to."""
    variables, marks = hostile_user(tmp_path)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    old = os.umask(0o077)
    yield marks
    os.umask(old)


def _work(folder: Path, upstream: Repo) -> dict[str, object]:
    """Fetch, read, patch, write, commit, check out: every id and every byte that comes of it."""
    init_bare(folder / "r")
    here = Git(folder / "r", index=folder / "index", work_tree=folder / "files")
    (folder / "files").mkdir()
    root = upstream.tree()
    config = {"uploadpack.allowAnySHA1InWant": "true"}
    here.transfer("fetch", "-q", "--no-write-fetch-head", "--", upstream.url, root, config=config)
    here.run("read-tree", root)
    here.run("apply", "--cached", "-", input=PATCH)
    tree = here.text("write-tree")
    who = {f"GIT_{r}_{f}": "x" for r in ("AUTHOR", "COMMITTER") for f in ("NAME", "EMAIL")}
    who |= {f"GIT_{r}_DATE": "@0 +0000" for r in ("AUTHOR", "COMMITTER")}
    commit = Git(folder / "r", extra=who).text("commit-tree", tree, input="ä\n".encode())
    here.run("read-tree", "-u", "--reset", tree)
    here.run("update-ref", "refs/heads/main", commit)
    with ObjectReader(here) as reader:
        read = reader.read(f"{tree}")
    files = {
        str(p.relative_to(folder)): (
            p.readlink() if p.is_symlink() else p.read_bytes(),
            os.access(p, os.X_OK),
        )
        for p in sorted((folder / "files").rglob("*"))
        if p.is_symlink() or p.is_file()
    }
    clean = here.run("diff-files", "--raw").stdout
    return {"tree": tree, "commit": commit, "files": files, "read": read, "clean": clean}


def test_ids_and_bytes_do_not_depend_on_the_user(
    tmp_path: Path, upstream: Repo, request: pytest.FixtureRequest
) -> None:
    plain = _work(tmp_path / "plain", upstream)
    marks: Path = request.getfixturevalue("hostile")
    assert _work(tmp_path / "again", upstream) == plain
    assert list(marks.iterdir()) == [], "a program or a trace of the user's ran"
    files = plain["files"]
    assert isinstance(files, dict)
    assert files["files/pkg/a.py"] == (b"ONE $Id$\ntwo\t\n", False)
    assert files["files/pkg/dos.txt"] == (b"a\r\nb\n", False)
    assert files["files/pkg/x.bin"] == (b"\0\r\n\xff", False)
    assert files["files/pkg/run"][1] is True and files["files/pkg/link"][0] == Path("a.py")
    assert plain["clean"] == b""


def test_local_commands_get_nothing_of_the_users_environment(hostile: Path) -> None:
    env = local_environment()
    hidden = {"GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_TRACE", "GIT_NAMESPACE", "GIT_CONFIG_PARAMETERS"}
    assert not set(env) & hidden
    assert (env["HOME"], env["LC_ALL"], env["TZ"]) == (os.devnull, "C", "UTC")
    assert env["GIT_CONFIG_GLOBAL"] == env["GIT_CONFIG_SYSTEM"] == os.devnull
    count = int(env["GIT_CONFIG_COUNT"])
    settings = {env[f"GIT_CONFIG_KEY_{i}"]: env[f"GIT_CONFIG_VALUE_{i}"] for i in range(count)}
    assert settings["core.autocrlf"] == "false" and len(settings) == count


def test_network_commands_get_the_users_way_to_a_host(hostile: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ways = ("https_proxy", "GIT_SSH_COMMAND", "GIT_SSL_CAINFO", "GIT_ASKPASS", "SSL_CERT_FILE")
    for name in (*ways, "SSH_ASKPASS", "PYTHONPATH"):  # a helper in Python would run a stray file of the tree
        monkeypatch.setenv(name, "mine")
    env = network_environment({"a.b": "c"})
    assert [env[name] for name in ways] == ["mine"] * len(ways)
    assert env["HOME"] == os.environ["HOME"]
    hidden = {"GIT_DIR", "GIT_TRACE", "GIT_TRACE_CURL", "GIT_NAMESPACE", "SSH_ASKPASS", "PYTHONPATH"}
    assert not set(env) & hidden
    assert (env["GIT_TERMINAL_PROMPT"], env["SSH_ASKPASS_REQUIRE"]) == ("0", "never")
    # the user's GIT_CONFIG_COUNT comes first, so that ours wins
    assert (env["GIT_CONFIG_KEY_0"], env["GIT_CONFIG_VALUE_0"]) == ("core.autocrlf", "true")
    last = int(env["GIT_CONFIG_COUNT"]) - 1
    assert (env[f"GIT_CONFIG_KEY_{last}"], env[f"GIT_CONFIG_VALUE_{last}"]) == ("a.b", "c")
    for count in ("", "x", "-1", "500"):  # which are wrong
        monkeypatch.setenv("GIT_CONFIG_COUNT", count)
        assert int(network_environment()["GIT_CONFIG_COUNT"]) > 0
    monkeypatch.delenv("GIT_SSH_COMMAND")
    monkeypatch.setenv("SSH_ASKPASS_REQUIRE", "force")  # a script that answers
    env = network_environment()
    assert (env["SSH_ASKPASS"], env["SSH_ASKPASS_REQUIRE"]) == ("mine", "force")
    assert "GIT_SSH_COMMAND" not in env, "it would win over core.sshCommand"


# -- which git -----------------------------------------------------------------------------------------


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that is first on PATH, and a `version` that has not been asked yet."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    git_version.cache_clear()
    yield folder
    git_version.cache_clear()


def _script(folder: Path, text: str) -> None:
    (folder / "git").write_text(f"#!/bin/sh\n{text}\n")
    (folder / "git").chmod(0o755)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("echo 'git version 2.34.1'", (2, 34)),
        ("echo 'git version 2.39.5 (Apple Git-154)'", (2, 39)),
        ("echo git version 2.25.1", "git 2.25 is too old"),
        ("echo hello", "can't be determined"),
        ("echo broken >&2; exit 3", "can't be determined"),
    ],
)
def test_versions(text: str, found: tuple[int, int] | str, fake: Path) -> None:
    _script(fake, text)
    if not isinstance(found, str):
        assert git_version() == found
        with pytest.raises(HostError, match=rf"git 2\.{found[1]} can't merge trees"):
            require_git((2, 40), "merge trees")
        return
    with pytest.raises(HostError, match=found) as caught:
        git_version()
    assert caught.value.exit_code == 3


@pytest.mark.parametrize(("mode", "found"), [(None, "not installed"), (0o644, "started"), (0o755, "started")])
def test_no_git(mode: int | None, found: str, fake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(fake))
    if mode:
        (fake / "git").write_bytes(b"\0\1\2")
        (fake / "git").chmod(mode)
    with pytest.raises(HostError, match=found):
        git_version()


# -- errors --------------------------------------------------------------------------------------------


def test_a_remote_can_not_steer_the_terminal() -> None:
    error = GitError(["fetch"], 1, "remote: \x1b[2Jhello\r\x07 ünïcode\n\ttwo\u202e")
    assert error.stderr == "remote: \\x1b[2Jhello\\r\\x07 ünïcode\n\ttwo\\u202e"
    assert printable("plain") == "plain"


def test_an_error_has_command_cause_and_code(fake: Path, tmp_path: Path) -> None:
    init_bare(tmp_path / "r")
    with pytest.raises(GitError) as caught:
        Git(tmp_path / "r").run("cat-file", "-p", "https://me:secret@host/x")
    assert "git cat-file -p" in str(caught.value) and "fatal: " in str(caught.value)
    assert "secret" not in str(caught.value) and caught.value.code == 128
    assert Git(tmp_path / "r").run("cat-file", "-e", "0" * 40, ok=(0, 1)).code == 1
    _script(fake, "exit 7")
    with pytest.raises(GitError, match="exit status 7"):
        Git(tmp_path).run("gc")


def test_a_folder_that_is_gone(tmp_path: Path) -> None:
    with pytest.raises(HostError, match="no longer exists"):
        Git(tmp_path / "nowhere").run("version")


@pytest.mark.parametrize(
    ("words", "what"),
    [
        ("fatal: write error: No space left on device", "The disk is full"),
        ("error: Disk quota exceeded", "The disk is full"),
        ("error: unable to create x: Read-only file system", "The file system is read-only"),
    ],
)
def test_a_disk_that_says_no_is_the_hosts_fault(words: str, what: str, fake: Path, tmp_path: Path) -> None:
    _script(fake, f"echo '{words}' >&2; exit 128")
    with pytest.raises(HostError, match=what):
        Git(tmp_path).run("gc")
    with pytest.raises(HostError, match=what):
        Git(tmp_path).transfer("fetch", config={})


def test_a_remotes_full_disk_is_not_ours(fake: Path, tmp_path: Path) -> None:
    _script(fake, "echo 'remote: No space left on device' >&2; exit 128")
    with pytest.raises(GitError):
        Git(tmp_path).transfer("fetch", config={})


# -- the watchdog --------------------------------------------------------------------------------------


def _ended(fifo: int) -> bool:
    """Whether nobody has the other end of the pipe open any more. Waits for that."""
    select.select([fifo], [], [])
    seen = b""
    while data := os.read(fifo, 10):
        seen += data
    return seen == b"x"


@pytest.fixture
def fifo(tmp_path: Path) -> Iterator[tuple[Path, int]]:
    path = tmp_path / "fifo"
    os.mkfifo(path)
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    os.set_blocking(handle, True)
    yield path, handle
    os.close(handle)


@pytest.mark.parametrize("deaf", ["", "trap '' TERM; "], ids=["TERM is enough", "KILL is needed"])
def test_silence_ends_the_process_and_all_it_started(
    deaf: str, fake: Path, tmp_path: Path, fifo: tuple[Path, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("npu_rl.stack.git.command._GRACE", 0.2)
    _script(fake, f"{deaf}echo from >&2\n( {deaf}printf x; exec sleep 60 ) >{fifo[0]} & wait; sleep 60")
    started = time.monotonic()
    with pytest.raises(GitError) as caught:
        Git(tmp_path).transfer("fetch", config={}, stall=0.4)
    assert caught.value.stalled == 0.4
    assert caught.value.received_data
    assert "no data for 0.4 seconds" in str(caught.value)
    assert _ended(fifo[1])
    assert time.monotonic() - started < 10


@pytest.mark.parametrize("pipes", ["", "exec >/dev/null 2>/dev/null; "], ids=["open", "closed"])
def test_silence_from_the_first_moment(pipes: str, fake: Path, tmp_path: Path) -> None:
    _script(fake, f"{pipes}exec sleep 60")
    with pytest.raises(GitError) as caught:
        Git(tmp_path).transfer("fetch", config={}, stall=0.2)
    assert (caught.value.stalled, caught.value.received_data) == (0.2, False)


def test_a_slow_remote_that_keeps_talking_is_left_alone(fake: Path, tmp_path: Path) -> None:
    _script(
        fake,
        "for i in 1 2 3 4 5 6; do printf 'Receiving objects: %s%%\\r' $i >&2; sleep 0.1; done; echo done",
    )
    seen: list[str] = []
    done = Git(tmp_path).transfer("fetch", config={}, stall=0.4, on_progress=seen.append)
    assert done.text() == "done"
    assert seen == [f"Receiving objects: {i}%" for i in range(1, 7)]
    assert done.stderr == ""


def test_what_a_process_prints_as_it_exits_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    process = subprocess.Popen(
        ["sh", "-c", "read line; echo done"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )

    def exit_now() -> int:  # as if it exited at the very moment at which it is asked
        assert process.stdin is not None
        process.stdin.close()
        return process.wait()

    output: list[bytes] = []
    watch = command._Watch(5.0, None, threading.Event(), command_log.CommandOutcome())
    with process, monkeypatch.context() as patched:
        patched.setattr(process, "poll", exit_now)
        assert command._read_output(process, watch, output, MessageStream(None))
    assert b"".join(output) == b"done\n"


def test_a_helper_that_stays_behind_with_the_pipes_is_not_waited_for(
    fake: Path, tmp_path: Path, fifo: tuple[Path, int]
) -> None:
    """An ssh master, a credential cache."""
    _script(fake, f"sleep 20 & echo $! >{tmp_path}/pid; echo out; echo words >&2")
    started = time.monotonic()
    try:
        done = Git(tmp_path).transfer("fetch", config={}, stall=60)
    finally:
        os.kill(int((tmp_path / "pid").read_text()), 9)
    assert (done.text(), done.stderr) == ("out", "words")
    assert time.monotonic() - started < 10


def test_a_transfer_can_be_given_up(fake: Path, tmp_path: Path, fifo: tuple[Path, int]) -> None:
    _script(fake, f"exec >{fifo[0]}; printf x; exec sleep 60")
    stop = threading.Event()

    def give_up() -> None:
        select.select([fifo[1]], [], [])
        stop.set()

    thread = threading.Thread(target=give_up)
    thread.start()
    with pytest.raises(GitStopped):
        Git(tmp_path).transfer("fetch", config={}, stall=60, stop=stop)
    thread.join()
    assert _ended(fifo[1])
    with pytest.raises(GitStopped):
        Git(tmp_path).transfer("fetch", config={}, stop=stop)


def test_a_watcher_that_fails_ends_the_process(fake: Path, tmp_path: Path, fifo: tuple[Path, int]) -> None:
    _script(fake, f"printf x >{fifo[0]}; exec 3>{fifo[0]}; echo 'Receiving objects: 1%' >&2; exec sleep 60")

    def fail(line: str) -> None:
        raise HostError(line)

    with pytest.raises(HostError, match="Receiving"):
        Git(tmp_path).transfer("fetch", config={}, on_progress=fail)
    assert _ended(fifo[1])


def test_a_remote_that_never_stops_talking_does_not_fill_the_memory(fake: Path, tmp_path: Path) -> None:
    _script(
        fake,
        f"exec {sys.executable} -c \"import sys; sys.stderr.write('remote: x\\n' * 50000 + 'y' * 300000)\"",
    )
    done = Git(tmp_path).transfer("fetch", config={})
    assert len(done.stderr) < 70_000
    assert done.stderr.count("\n") <= 200


def test_input_larger_than_a_pipe_arrives(fake: Path, tmp_path: Path) -> None:
    _script(fake, "sleep 0.05; exec cat")
    data = b"0123456789abcdef" * 20_000
    assert Git(tmp_path).transfer("fetch", config={}, input=data).stdout == data


# -- credentials ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("password", ["s3cret", "", "with space 'quotes' \"$(id)\" `id` %s \\n ünï"])
def test_credentials_reach_git_word_for_word_and_no_other_helper(
    password: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".gitconfig").write_text("[credential]\n\thelper = store\n\tusername = somebody\n")
    init_bare(tmp_path / "r")
    who = Credentials("https://host:8443", "me", password)
    asked = b"protocol=https\nhost=host:8443\npath=a.git\n\n"
    here = Git(tmp_path / "r")
    given = here.transfer("credential", "fill", config={}, credentials=who, input=asked).stdout.decode()
    assert {f"password={password}", "username=me"} <= set(given.splitlines())
    here.transfer("credential", "approve", config={}, credentials=who, input=given.encode())
    assert not (tmp_path / ".git-credentials").exists()
    assert "s3cret" not in repr(who)


def test_credentials_are_for_one_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    init_bare(tmp_path / "r")
    who = Credentials("https://host", "me", "s3cret")
    for other in (
        "protocol=http\nhost=host",
        "protocol=https\nhost=host.evil",
        "protocol=https\nhost=host:444",
    ):
        with pytest.raises(GitError) as caught:
            Git(tmp_path / "r").transfer(
                "credential", "fill", config={}, credentials=who, input=f"{other}\n\n".encode()
            )
        assert "s3cret" not in str(caught.value)


# -- objects -------------------------------------------------------------------------------------------


def test_objects_are_read_as_they_are(upstream: Repo) -> None:
    with ObjectReader(Git(upstream.path)) as reader:
        assert reader.read(upstream.tree("main", "pkg/x.bin")) == ("blob", b"\0\r\n\xff")
        kind, data = reader.read(upstream.id("main"))
        assert (kind, data[:5]) == ("commit", b"tree ")
        with pytest.raises(GitError, match="cat-file") as caught:
            reader.read("1" * 40)
        assert "missing" in str(caught.value)
        assert reader.read(upstream.tree("main", "pkg"))[0] == "tree"  # a miss is not the end


def test_a_damaged_object_is_an_error_not_content(upstream: Repo) -> None:
    blob = upstream.git("hash-object", "-w", "--stdin", input=os.urandom(50_000))
    loose = upstream.path / "objects" / blob[:2] / blob[2:]
    loose.chmod(0o644)
    data = bytearray(loose.read_bytes())
    data[len(data) // 2] ^= 0xFF
    loose.write_bytes(data)
    good = upstream.tree()
    with ObjectReader(Git(upstream.path)) as reader:
        with pytest.raises(GitError) as caught:
            reader.read(blob)
        assert "damaged" in str(caught.value) or "missing" in str(caught.value)
        try:
            assert reader.read(good)[0] == "tree"
        except GitError as error:  # older gits end at a damaged object; that must be said, too
            assert "exited" in str(error) or "damaged" in str(error)


@pytest.mark.parametrize("name", ["a:b", 'a"b', '"a\\b', "a b", "#a", "ünï"])
def test_objects_can_be_borrowed_from_a_folder_of_any_name(name: str, upstream: Repo, tmp_path: Path) -> None:
    lender = upstream.copy(tmp_path / name / "r.git")
    init_bare(tmp_path / "mine")
    here = Git(tmp_path / "mine", alternates=(tmp_path / "none", lender.path / "objects"))
    assert here.text("cat-file", "-t", upstream.tree()) == "tree"
