from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from npu_rl.common.errors import HostError, SourceError
from npu_rl.stack.sources.pip_config import PipSettings, read_pip_settings
from npu_rl.stack.sources.pypi import DownloadedSdist, download_sdist, find_sdist
from npu_rl.stack.sources.sdist import read_sdist

from .archives import sdist
from .package_index import Cut, PackageIndex, Redirect, Status

SECRET = "hunter2-s3cret"


def demo(**files: str) -> bytes:
    return sdist("demo", "1.0", {"setup.py": "", "demo/__init__.py": "", **files})


DATA = demo()
OTHER = demo(other="1")
SHA = hashlib.sha256(DATA).hexdigest()
OTHER_SHA = hashlib.sha256(OTHER).hexdigest()


@pytest.fixture(autouse=True)
def no_machine_settings(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if request.node.get_closest_marker("pypi"):
        return
    for name in list(os.environ):
        if name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("NETRC", str(tmp_path / "no-netrc"))


@pytest.fixture
def second() -> Iterator[PackageIndex]:
    with PackageIndex() as server:
        yield server


@pytest.fixture
def stocked(index: PackageIndex) -> PackageIndex:
    """The index with demo 1.0."""
    index.add("demo", "demo-1.0.tar.gz", DATA)
    return index


class Client:
    """Downloads demo 1.0 into a folder of its own, waits for nothing and keeps what it was told."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.pauses: list[float] = []
        self.progress: list[tuple[int, int | None]] = []

    def __call__(
        self, settings: PipSettings, sha256: str | None = SHA, version: str = "1.0"
    ) -> DownloadedSdist:
        return download_sdist(
            "demo",
            version,
            sha256=sha256,
            settings=settings,
            folder=self.folder,
            on_progress=lambda done, total: self.progress.append((done, total)),
            pause=self.pauses.append,
        )

    def refused(self, settings: PipSettings, sha256: str | None = SHA, version: str = "1.0") -> str:
        with pytest.raises(SourceError) as caught:
            self(settings, sha256, version)
        assert list(self.folder.iterdir()) == []
        return str(caught.value)


@pytest.fixture
def download(tmp_path: Path) -> Client:
    return Client(tmp_path / "sdists")


def at(*indexes: PackageIndex | str, **options: object) -> PipSettings:
    first, *rest = (i if isinstance(i, str) else i.url for i in indexes)
    return PipSettings(
        index_url=first,
        extra_index_urls=tuple(rest),
        **{"timeout": 5.0, "retries": 2, **options},  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("as_json", [False, True])
def test_found_and_downloaded_from_an_index(index: PackageIndex, download: Client, as_json: bool) -> None:
    index.as_json = as_json
    index.add("demo", "demo-0.9.tar.gz", OTHER)
    index.add("demo", "demo-1.0.tar.gz", DATA, requires_python=">=99")
    index.add("demo", "demo-1.0-py3-none-any.whl", b"not looked at")
    link = find_sdist("demo", "1.0", at(index))
    assert (link.filename, link.sha256, link.index, link.notes) == ("demo-1.0.tar.gz", SHA, index.url, ())
    assert link.url == f"http://{index.host}/files/demo/demo-1.0.tar.gz"
    got = download(at(index))
    assert got.path == download.folder / "demo-1.0.tar.gz"
    assert got.path.read_bytes() == DATA
    assert (got.sha256, got.size, got.url, got.index) == (SHA, len(DATA), link.url, index.url)
    assert download.progress[-1] == (len(DATA), len(DATA))
    assert [p.name for p in download.folder.iterdir()] == ["demo-1.0.tar.gz"]


@pytest.mark.parametrize("encoding", ["label", "squeeze"])
def test_the_archives_own_bytes_are_kept(index: PackageIndex, download: Client, encoding: str) -> None:
    """Some servers call a .tar.gz an encoded .tar, others compress whatever they may."""
    index.add("demo", "demo-1.0.tar.gz", DATA, encoding=encoding)
    assert download(at(index)).path.read_bytes() == DATA


def test_names_and_versions_are_compared_by_meaning(index: PackageIndex, tmp_path: Path) -> None:
    index.add("my-demo", "My_Demo-1.0.0.post1.tar.gz", DATA)
    got = download_sdist("My.Demo", "1.post1", sha256=SHA, settings=at(index), folder=tmp_path / "f")
    assert got.filename == "My_Demo-1.0.0.post1.tar.gz"


def test_the_next_index_is_asked_when_the_first_lacks_it(
    index: PackageIndex, second: PackageIndex, download: Client
) -> None:
    second.add("demo", "demo-1.0.tar.gz", DATA)
    got = download(at(index, second))
    assert got.index == second.url
    assert got.notes == ()
    assert index.requests == ["/simple/demo/"]


def test_an_index_that_is_down_is_noted(second: PackageIndex, download: Client) -> None:
    with PackageIndex() as gone:
        dead = gone.url
    second.add("demo", "demo-1.0.tar.gz", DATA)
    got = download(at(dead, second))
    assert got.sha256 == SHA
    assert len(got.notes) == 1 and dead in got.notes[0] and "ConnectError" in got.notes[0]
    assert download.pauses == [0.25, 0.5]


def test_find_links_come_first_and_the_index_is_left_alone(
    stocked: PackageIndex, download: Client, tmp_path: Path
) -> None:
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    (wheels / "demo-1.0.tar.gz").write_bytes(DATA)
    (wheels / "demo-1.0-py3-none-any.whl").write_bytes(b"")
    for place in (str(wheels), wheels.as_uri(), str(wheels / "demo-1.0.tar.gz")):
        got = download(at(stocked, find_links=(place,)))
        assert got.index == Path(place.removeprefix("file://")).as_uri()
        assert got.path.read_bytes() == DATA
    assert stocked.requests == []
    assert (wheels / "demo-1.0.tar.gz").read_bytes() == DATA


def test_folders_as_indexes(download: Client, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    simple = tmp_path / "simple"
    (simple / "demo").mkdir(parents=True)
    (simple / "demo/index.html").write_text(f'<a href="demo-1.0.tar.gz#sha256={SHA}">demo</a>')
    (simple / "demo/demo-1.0.tar.gz").write_bytes(DATA)
    empty = tmp_path / "more/simple"
    empty.mkdir(parents=True)
    missing = (tmp_path / "missing").as_uri()
    for first in (simple.as_uri(), str(simple)):
        got = download(at(empty.as_uri(), missing, first, find_links=(str(tmp_path / "no-wheels"),)))
        assert got.path.read_bytes() == DATA
        assert got.notes == ()
    assert capfd.readouterr() == ("", "")


def test_a_wrong_hash_is_refused_and_the_next_place_delivers(
    index: PackageIndex, second: PackageIndex, download: Client
) -> None:
    index.add("demo", "demo-1.0.tar.gz", OTHER, sha256=False)
    second.add("demo", "demo-1.0.tar.gz", DATA, sha256=False)
    got = download(at(index, second))
    assert (got.index, got.path.read_bytes()) == (second.url, DATA)
    got.path.unlink()
    message = download.refused(at(index))
    assert f"expected {SHA}" in message and f"the file has {OTHER_SHA}" in message
    assert index.host in message and "demo-1.0.tar.gz" in message


def test_a_listing_with_another_hash_is_not_even_fetched(index: PackageIndex, download: Client) -> None:
    index.add("demo", "demo-1.0.tar.gz", OTHER)
    message = download.refused(at(index))
    assert f"the index lists {OTHER_SHA}" in message
    assert index.requests == ["/simple/demo/"]


def test_the_hash_in_the_listing_is_held_to_without_a_lock(index: PackageIndex, download: Client) -> None:
    index.add("demo", "demo-1.0.tar.gz", DATA, sha256=OTHER_SHA)
    assert f"expected {OTHER_SHA}" in download.refused(at(index), sha256=None)
    index.projects["demo"][0].sha256 = False
    assert download(at(index), sha256=None).sha256 == SHA


@pytest.mark.parametrize("as_json", [False, True])
def test_a_yanked_release_is_taken_with_a_note(index: PackageIndex, download: Client, as_json: bool) -> None:
    index.as_json = as_json
    index.add("demo", "demo-1.0.tar.gz", DATA, yanked="broken \x1b[31mbuild")
    assert download(at(index)).notes == ("this release was yanked: broken [31mbuild",)
    index.projects["demo"][0].yanked = ""
    assert find_sdist("demo", "1.0", at(index)).notes == ("this release was yanked",)


def test_server_errors_are_tried_again(stocked: PackageIndex, download: Client) -> None:
    stocked.faults["/simple/demo/"] = [Status(503), Status(500)]
    stocked.faults["/files/demo/demo-1.0.tar.gz"] = [Status(502), Status(429, (("Retry-After", "3"),))]
    assert download(at(stocked)).sha256 == SHA
    assert download.pauses == [0.25, 0.5, 0.25, 3.0]


def test_retries_are_bounded(stocked: PackageIndex, download: Client) -> None:
    stocked.faults["/simple/demo/"] = [Status(503)] * 9
    assert "status 503" in download.refused(at(stocked))
    assert len(stocked.requests) == 3
    stocked.faults = {"/files/demo/demo-1.0.tar.gz": [Status(500)] + [Cut(100)] * 9}
    assert "status 500" in download.refused(at(stocked, retries=0))
    stocked.requests.clear()
    assert "RemoteProtocolError" in download.refused(at(stocked))
    assert len(stocked.requests) == 4


def test_what_is_cut_off_is_fetched_anew(stocked: PackageIndex, download: Client) -> None:
    stocked.faults["/simple/demo/"] = [Cut(10)]
    stocked.faults["/files/demo/demo-1.0.tar.gz"] = [Cut(100), Cut(0)]
    assert download(at(stocked)).path.read_bytes() == DATA
    assert download.pauses == [0.25, 0.25, 0.5]
    assert [p.name for p in download.folder.iterdir()] == ["demo-1.0.tar.gz"]


def test_an_interrupted_download_leaves_nothing(stocked: PackageIndex, tmp_path: Path) -> None:

    def interrupt(done: int, total: int | None) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        download_sdist(
            "demo", "1.0", sha256=SHA, settings=at(stocked), folder=tmp_path / "f", on_progress=interrupt
        )
    assert list((tmp_path / "f").iterdir()) == []


def test_bad_names_and_versions(download: Client) -> None:
    for name, version in (("", "1.0"), ("../x", "1.0"), ("x\n", "1.0"), ("demo", ">=1")):
        with pytest.raises(SourceError, match="Not a"):
            find_sdist(name, version, PipSettings(no_index=True))
    assert "no-index and has no find-links" in download.refused(PipSettings(no_index=True))


NO_SDIST = {
    "demo-1.0\n.tar.gz": "has no demo 1.0",
    "demo-1.0.exe": "has no demo 1.0",
    "demo-1.0+empty.tar.gz": "has no demo 1.0",
    "demo-1.0-py3-none-any.whl": "only as demo-1.0-py3-none-any.whl",
    "demo-1.0.zip": "only as demo-1.0.zip, and an sdist is a .tar.gz (PEP 625)",
}


@pytest.mark.parametrize("filename", NO_SDIST)
def test_what_is_no_sdist_of_the_version(index: PackageIndex, download: Client, filename: str) -> None:
    index.add("demo", filename, DATA)
    assert NO_SDIST[filename] in download.refused(at(index))
    index.add("demo", "demo-1.0.tar.gz", DATA)
    assert find_sdist("demo", "1.0", at(index)).filename == "demo-1.0.tar.gz"


def test_another_archive_of_the_version_is_tried(index: PackageIndex, download: Client) -> None:
    index.add("demo", "Demo-1.0.tar.gz", OTHER)
    index.add("demo", "demo-1.0.tar.gz", DATA)
    assert download(at(index)).filename == "demo-1.0.tar.gz"


# --- credentials -------------------------------------------------------------------------------------------


@pytest.fixture
def guarded() -> Iterator[PackageIndex]:
    with PackageIndex(auth=("me", SECRET)) as server:
        server.add("demo", "demo-1.0.tar.gz", DATA)
        yield server


def test_a_password_in_the_url(guarded: PackageIndex, download: Client) -> None:
    settings = at(guarded.url_with("me", SECRET))
    link = find_sdist("demo", "1.0", settings)
    got = download(settings)
    assert got.sha256 == SHA
    assert guarded.authorised == guarded.requests
    for shown in (repr(link), str(link), repr(got), repr(settings)):
        assert SECRET not in shown
        assert "me:" not in shown


def test_a_password_in_netrc(
    guarded: PackageIndex, download: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text(f"machine 127.0.0.1 login me password {SECRET}\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    got = download(at(guarded))
    assert got.path.read_bytes() == DATA
    assert SECRET not in repr(got)


def test_without_or_with_a_wrong_password(guarded: PackageIndex, download: Client) -> None:
    assert "requires other credentials (401)" in download.refused(at(guarded))
    message = download.refused(at(guarded.url_with("me", "wrong-pass")))
    assert "requires other credentials (401)" in message
    assert "wrong-pass" not in message


def test_a_password_is_not_sent_elsewhere(stocked: PackageIndex, download: Client) -> None:
    """A guarded stocked whose files lie on another server, and one that redirects there."""
    elsewhere = f"http://localhost:{stocked.port}/files/demo/demo-1.0.tar.gz"
    with PackageIndex(auth=("me", SECRET)) as server:
        server.add("demo", "demo-1.0.tar.gz", DATA, href=elsewhere)
        assert download(at(server.url_with("me", SECRET))).sha256 == SHA
        server.projects["demo"][0].href = None
        server.faults["/files/demo/demo-1.0.tar.gz"] = [Redirect(elsewhere)]
        assert download(at(server.url_with("me", SECRET))).sha256 == SHA
    assert stocked.requests == ["/files/demo/demo-1.0.tar.gz"] * 2
    assert stocked.authorised == []


def test_no_secret_in_any_message_log_or_file(
    guarded: PackageIndex, download: Client, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    caplog.set_level(logging.DEBUG)
    with PackageIndex() as gone:
        dead = gone.url_with("me", SECRET)
    places = [dead, guarded.url_with("me", SECRET), f"http://me:{SECRET}@no-such-host.invalid/simple"]
    guarded.faults["/files/demo/demo-1.0.tar.gz"] = [Status(500)] * 9
    links = (f"http://me:{SECRET}@{guarded.host}/x.html", f"https://me:{SECRET}/{SECRET}@host/x")
    message = download.refused(at(*places, retries=0, find_links=links))
    assert "status 500" in message
    assert "not a valid URL" in message
    assert SECRET not in message
    assert SECRET not in download.refused(at(*places, retries=0, find_links=links), version="7.7")
    assert SECRET not in caplog.text
    guarded.faults.clear()
    got = download(at(*places))
    assert SECRET not in "".join(got.notes) + repr(got)
    assert all(SECRET.encode() not in p.read_bytes() for p in tmp_path.rglob("*") if p.is_file())


# --- where it may go ---------------------------------------------------------------------------------------


def test_plain_http_needs_a_trusted_host_and_the_proxy_is_used(
    stocked: PackageIndex, download: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stocked answers as a proxy for a host that does not exist."""
    settings = at("http://packages.invalid/simple", proxy=f"http://{stocked.host}")
    assert "trusted-host" in download.refused(settings)
    assert stocked.requests == []
    trusted = replace(settings, trusted_hosts=("packages.invalid",))
    assert download(trusted).url == "http://packages.invalid/files/demo/demo-1.0.tar.gz"
    monkeypatch.setenv("http_proxy", f"http://{stocked.host}")
    assert download(replace(trusted, proxy=None)).sha256 == SHA


def test_a_link_or_redirect_to_an_untrusted_place(index: PackageIndex, download: Client) -> None:
    link = index.add("demo", "demo-1.0.tar.gz", DATA, href="http://packages.invalid/demo-1.0.tar.gz")
    assert "trusted-host" in download.refused(at(index))
    link.href = None
    index.faults["/files/demo/demo-1.0.tar.gz"] = [Redirect("http://packages.invalid/x")]
    assert "trusted-host" in download.refused(at(index))


def test_a_page_out_there_can_not_name_local_files(
    index: PackageIndex, download: Client, tmp_path: Path
) -> None:
    local = tmp_path / "demo-1.0.tar.gz"
    local.write_bytes(DATA)
    link = index.add("demo", "demo-1.0.tar.gz", DATA, href=local.as_uri())
    assert "has no demo 1.0" in download.refused(at(index))
    link.href = None
    index.faults["/files/demo/demo-1.0.tar.gz"] = [Redirect(local.as_uri())] * 2
    assert "redirects to a local file" in download.refused(at(index))


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("application/vnd.pypi.simple.v1+json", b"{not json"),
        ("application/vnd.pypi.simple.v1+json", b"[1, 2]"),
        ("application/vnd.pypi.simple.v1+json", b'{"files": [3]}'),
        ("text/html; charset=utf-8", b"\xff\xfe<a href=x>"),
        ("text/html", b'<a href="http://[::1/x">x</a>'),
    ],
)
def test_malformed_pages(
    index: PackageIndex, second: PackageIndex, download: Client, kind: str, body: bytes
) -> None:
    index.raw_pages["/simple/demo/"] = (kind, body)
    message = download.refused(at(index))
    assert "its page can't be read" in message or "has no demo 1.0" in message
    second.add("demo", "demo-1.0.tar.gz", DATA)
    assert download(at(index, second)).sha256 == SHA


@pytest.mark.parametrize("option", ["cert", "client_cert"])
def test_missing_certificates(index: PackageIndex, tmp_path: Path, option: str) -> None:
    missing = tmp_path / "missing.pem"
    with pytest.raises(HostError) as caught:
        find_sdist("demo", "1.0", at(index, **{option: missing}))
    assert str(missing) in str(caught.value)
    empty = tmp_path / "empty.pem"
    empty.write_text("")
    with pytest.raises(HostError, match="network settings"):
        find_sdist("demo", "1.0", at(index, **{option: empty}))


def test_a_folder_that_can_not_be_made(stocked: PackageIndex, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(HostError, match="can't be written"):
        download_sdist("demo", "1.0", sha256=SHA, settings=at(stocked), folder=tmp_path / "file/sub")
    (tmp_path / "taken/demo-1.0.tar.gz/x").mkdir(parents=True)
    with pytest.raises(HostError, match="can't be written"):
        download_sdist("demo", "1.0", sha256=SHA, settings=at(stocked), folder=tmp_path / "taken")
    assert [p.name for p in (tmp_path / "taken").iterdir()] == ["demo-1.0.tar.gz"]


# --- nothing is run ----------------------------------------------------------------------------------------


def test_code_in_an_sdist_is_never_run(index: PackageIndex, download: Client, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    code = f"open({str(marker)!r}, 'w')\n"
    backend = '[build-system]\nrequires = []\nbuild-backend = "setup"\nbackend-path = ["."]\n'
    data = demo(**{"setup.py": code, "conftest.py": code, "pyproject.toml": backend})
    index.add("demo", "demo-1.0.tar.gz", data)
    got = download(at(index), sha256=hashlib.sha256(data).hexdigest())
    files = {f.path: f.data for f in read_sdist(got.path)}
    assert files["setup.py"] == code.encode()
    assert not marker.exists()


@pytest.mark.pypi
def test_a_real_sdist(tmp_path: Path) -> None:
    """verl 0.5.0 (0.6 MB) from the index this machine's pip uses."""
    settings = replace(read_pip_settings(), retries=0, timeout=20.0)
    sha256 = "0aabeab59459f947c826a3cfef35836e52691e50083f7611a4ef28a504796409"
    try:
        got = download_sdist("verl", "0.5.0", sha256=sha256, settings=settings, folder=tmp_path)
    except SourceError as error:
        if os.environ.get("NPU_RL_REQUIRE_PYPI") == "1" or "wrong sha256" in str(error):
            raise
        pytest.skip(f"no package index can be reached: {error}")
    files = [f.path for f in read_sdist(got.path, keep=["verl"])]
    assert got.size > 500_000
    assert "verl/trainer/main_ppo.py" in files
