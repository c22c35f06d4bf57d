"""Source distributions of package indexes: found, downloaded, held to a hash, and no secret shown."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from npu_rl.common.errors import SourceError
from npu_rl.stack.sources.pip_config import PipSettings, read_pip_settings
from npu_rl.stack.sources.pypi import DownloadedSdist, download_sdist
from npu_rl.stack.sources.sdist import read_sdist
from tests.sources.archives import sdist
from tests.sources.package_index import Cut, PackageIndex, Redirect, Status

SECRET = "hunter2-s3cret"
DATA = sdist("demo", "1.0", {"setup.py": "", "demo/__init__.py": ""})
OTHER = sdist("demo", "1.0", {"setup.py": "", "other": "1"})
SHA, OTHER_SHA = (hashlib.sha256(data).hexdigest() for data in (DATA, OTHER))
PAGE, FILE = "/simple/demo/", "/files/demo/demo-1.0.tar.gz"


@pytest.fixture(autouse=True)
def no_netrc(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
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
    """Downloads demo 1.0 into a folder of its own, waits for nothing, and keeps pauses and progress."""

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
        assert not self.folder.exists() or list(self.folder.iterdir()) == []
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
    listed = index.add("demo", "demo-1.0.tar.gz", DATA, requires_python=">=99")
    index.add("demo", "demo-1.0-py3-none-any.whl", b"not looked at")
    got = download(at(index))
    assert got == DownloadedSdist(download.folder / "demo-1.0.tar.gz", SHA, len(DATA))
    assert got.path.read_bytes() == DATA
    assert download.progress[-1] == (len(DATA), len(DATA))
    assert [p.name for p in download.folder.iterdir()] == ["demo-1.0.tar.gz"]
    listed.yanked = "broken \x1b[31mbuild"
    assert download(at(index)).notes == ("this release was yanked: broken [31mbuild",)
    listed.yanked = ""
    assert download(at(index)).notes == ("this release was yanked",)


def test_indexes_in_order(index: PackageIndex, second: PackageIndex, download: Client) -> None:
    """The next one is asked if one lacks the release, is down, or has a file with another hash."""
    with PackageIndex() as gone:
        dead = gone.url
    second.add("demo", "demo-1.0.tar.gz", DATA, sha256=False)
    assert download(at(index, second)).notes == ()
    (note,) = download(at(dead, second)).notes
    assert dead in note and "ConnectError" in note and download.pauses == [0.25, 0.5]
    wrong = index.add("demo", "demo-1.0.tar.gz", OTHER, sha256=False)
    got = download(at(index, second))
    assert got.path.read_bytes() == DATA
    got.path.unlink()
    message = download.refused(at(index))
    assert f"expected {SHA}, the file has {OTHER_SHA}" in message and f"from {index.host}" in message
    wrong.sha256 = SHA  # without a lock, the listing's counts
    assert f"expected {SHA}" in download.refused(at(index), sha256=None)
    wrong.sha256 = False
    assert download(at(index), sha256=None).sha256 == OTHER_SHA


def test_folders_in_place_of_indexes(stocked: PackageIndex, download: Client, tmp_path: Path) -> None:
    """find-links come first; an index may be a folder, and folders may be missing."""
    wheels, simple, missing = tmp_path / "wheels", tmp_path / "simple", tmp_path / "missing"
    wheels.mkdir()
    (simple / "demo").mkdir(parents=True)
    (wheels / "demo-1.0.tar.gz").write_bytes(DATA)
    (simple / "demo/demo-1.0.tar.gz").write_bytes(DATA)
    (simple / "demo/index.html").write_text(f'<a href="demo-1.0.tar.gz#sha256={SHA}">demo</a>')
    for place in (str(wheels), wheels.as_uri(), str(wheels / "demo-1.0.tar.gz")):
        assert download(at(stocked, find_links=(place,))).path.read_bytes() == DATA
    for place in (simple.as_uri(), str(simple)):
        got = download(at(missing.as_uri(), place, find_links=(str(missing),)))
        assert (got.path.read_bytes(), got.notes) == (DATA, ())
    assert stocked.requests == []


def test_retries(stocked: PackageIndex, download: Client) -> None:
    stocked.faults[PAGE] = [Status(503), Cut(10)]
    stocked.faults[FILE] = [Status(502), Status(429, (("Retry-After", "3"),))]
    assert download(at(stocked)).path.read_bytes() == DATA
    assert download.pauses == [0.25, 0.5, 0.25, 3.0]
    assert [p.name for p in download.folder.iterdir()] == ["demo-1.0.tar.gz"]
    (download.folder / "demo-1.0.tar.gz").unlink()
    for faults, found, count in (
        ({PAGE: [Status(503)] * 9}, "status 503", 3),
        ({FILE: [Cut(100)] * 9}, "RemoteProtocolError", 4),
    ):
        stocked.faults, stocked.requests = dict(faults), []
        assert found in download.refused(at(stocked))
        assert len(stocked.requests) == count


NO_SDIST = {
    "demo-1.0\n.tar.gz": "has no demo 1.0",
    "demo-1.0+empty.tar.gz": "has no demo 1.0",
    "demo-1.0-py3-none-any.whl": "only as demo-1.0-py3-none-any.whl",
    "demo-1.0.zip": "only as demo-1.0.zip, and an sdist is a .tar.gz (PEP 625)",
}


@pytest.mark.parametrize("filename", NO_SDIST)
def test_files_that_are_not_an_sdist_of_the_version(
    index: PackageIndex, download: Client, filename: str
) -> None:
    index.add("demo", filename, DATA)
    assert NO_SDIST[filename] in download.refused(at(index))
    index.add("demo", "Demo-1.0.tar.gz", OTHER)  # refused by its hash
    index.add("demo", "demo-1.0.tar.gz", DATA)
    assert download(at(index)).path.name == "demo-1.0.tar.gz"


# -- credentials ---------------------------------------------------------------------------------------


@pytest.fixture
def guarded() -> Iterator[PackageIndex]:
    with PackageIndex(auth=("me", SECRET)) as server:
        server.add("demo", "demo-1.0.tar.gz", DATA)
        yield server


def test_passwords_of_an_index(
    guarded: PackageIndex, download: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In its URL, in netrc, missing, wrong."""
    assert "requires other credentials (401)" in download.refused(at(guarded))
    message = download.refused(at(guarded.url_with("me", "wrong-pass")))
    assert "requires other credentials (401)" in message and "wrong-pass" not in message
    settings = at(guarded.url_with("me", SECRET))
    guarded.requests.clear(), guarded.authorised.clear()
    shown = repr(download(settings)) + repr(settings)
    assert guarded.authorised == guarded.requests
    (tmp_path / "netrc").write_text(f"machine 127.0.0.1 login me password {SECRET}\n")
    (tmp_path / "netrc").chmod(0o600)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    assert SECRET not in shown + repr(download(at(guarded)))


def test_a_password_is_not_sent_elsewhere(stocked: PackageIndex, download: Client) -> None:
    """Files on another server, and a redirect to one."""
    elsewhere = f"http://localhost:{stocked.port}{FILE}"
    with PackageIndex(auth=("me", SECRET)) as server:
        listed = server.add("demo", "demo-1.0.tar.gz", DATA, href=elsewhere)
        assert download(at(server.url_with("me", SECRET))).sha256 == SHA
        listed.href = None
        server.faults[FILE] = [Redirect(elsewhere)]
        assert download(at(server.url_with("me", SECRET))).sha256 == SHA
    assert (stocked.requests, stocked.authorised) == ([FILE] * 2, [])


def test_no_secret_in_any_message_log_or_file(
    guarded: PackageIndex, download: Client, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    caplog.set_level(logging.DEBUG)
    with PackageIndex() as gone:
        dead = gone.url_with("me", SECRET)
    places = [dead, guarded.url_with("me", SECRET), f"http://me:{SECRET}@no-such-host.invalid/simple"]
    guarded.faults[FILE] = [Status(500)] * 9
    links = (f"http://me:{SECRET}@{guarded.host}/x.html", f"https://me:{SECRET}/{SECRET}@host/x")
    message = download.refused(at(*places, retries=0, find_links=links))
    assert "status 500" in message and "not a valid URL" in message
    message += download.refused(at(*places, retries=0, find_links=links), version="7.7")
    guarded.faults.clear()
    assert SECRET not in message + caplog.text + repr(download(at(*places)))
    assert all(SECRET.encode() not in p.read_bytes() for p in tmp_path.rglob("*") if p.is_file())


# -- addresses -----------------------------------------------------------------------------------------


def test_plain_http_needs_a_trusted_host_and_the_proxy_is_used(
    stocked: PackageIndex, download: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The index answers as a proxy for a host that does not exist."""
    settings = at("http://packages.invalid/simple", proxy=f"http://{stocked.host}")
    assert "trusted-host" in download.refused(settings) and stocked.requests == []
    trusted = replace(settings, trusted_hosts=("packages.invalid",))
    assert download(trusted).sha256 == SHA
    monkeypatch.setenv("http_proxy", f"http://{stocked.host}")
    assert download(replace(trusted, proxy=None)).sha256 == SHA


def test_links_and_redirects_that_are_not_followed(
    index: PackageIndex, download: Client, tmp_path: Path
) -> None:
    """To a host that is not trusted, and from a server to a local file."""
    local = tmp_path / "demo-1.0.tar.gz"
    local.write_bytes(DATA)
    link = index.add("demo", "demo-1.0.tar.gz", DATA)
    for place, listed, redirected in (
        ("http://packages.invalid/demo-1.0.tar.gz", "trusted-host", "trusted-host"),
        (local.as_uri(), "has no demo 1.0", "redirects to a local file"),
    ):
        link.href = place
        assert listed in download.refused(at(index))
        link.href = None
        index.faults[FILE] = [Redirect(place)] * 2
        assert redirected in download.refused(at(index))


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
    assert got.size > 500_000
    assert "verl/trainer/main_ppo.py" in [f.path for f in read_sdist(got.path, keep=["verl"])]
