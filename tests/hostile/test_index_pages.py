"""Pages of package indexes that mean nothing: each is given up on, and said so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from npu_rl.common.errors import SourceError
from npu_rl.stack.sources.pip_config import PipSettings
from npu_rl.stack.sources.pypi import download_sdist
from tests.sources.package_index import PackageIndex

PAGES = {
    "unfinished links": b"<a " * 1000,
    "unfinished quotes": b"<a x='\"" * 1000,
    "JSON without a floor": b"[" * 100_000,
    "JSON of another shape": json.dumps({"files": [7, None, {"url": {}}]}).encode(),
    "a number without an end": b'{"files": [{"url": ' + b"9" * 100_000 + b"}]}",
    "a date beyond time": b'{"files": [{"url": "pkg-1.0.tar.gz", "upload-time": "9"}]}',
}


@pytest.mark.parametrize("what", PAGES)
def test_a_page_that_means_nothing_is_given_up_on(what: str, tmp_path: Path) -> None:
    kind = "text/html" if PAGES[what].startswith(b"<") else "application/vnd.pypi.simple.v1+json"
    with PackageIndex() as index:
        index.raw_pages["/simple/pkg/"] = (kind, PAGES[what])
        with pytest.raises(SourceError, match=r"127\.0\.0\.1"):
            settings = PipSettings(index_url=index.url, retries=0)
            download_sdist("pkg", "1.0", sha256=None, settings=settings, folder=tmp_path)
