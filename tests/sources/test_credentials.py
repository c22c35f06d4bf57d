from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npu_rl.stack.sources.credentials import HIDDEN, scrub, secrets_in, strip_credentials


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://host/simple", "https://host/simple"),
        ("https://me:pass@host:8080/simple", "https://host:8080/simple"),
        ("https://token@host/simple/", "https://host/simple/"),
        ("https://me:p@ss@host/simple", "https://host/simple"),
        ("https://host/a?sig=pass#sha256=1", "https://host/a"),
        ("file:///srv/simple", "file:///srv/simple"),
        ("https://host/@scope/a", "https://host/@scope/a"),
        ("https://me:pa/ss@host/simple", HIDDEN),
        ("https://me:12/ss@host/simple", HIDDEN),
        ("http://[::1/x", HIDDEN),
    ],
)
def test_strip_credentials(url: str, shown: str) -> None:
    assert strip_credentials(url) == shown


def test_secrets_as_written_and_as_meant() -> None:
    found = secrets_in(
        ["https://me:p%40ss@host/", "https://tok-3n@host/", "https://host/", "", "https://x:y@h"]
    )
    assert found == ("p%40ss", "tok-3n", "p@ss")


@given(st.text(st.characters(min_codepoint=33, max_codepoint=126, exclude_characters="/?#@"), min_size=8))
def test_no_password_survives(password: str) -> None:
    url = f"https://me-myself:{password}@host/simple"
    marked = f"<{password}>"  # the shown part must not merely happen to hold it
    assert marked not in strip_credentials(url.replace(password, marked))
    assert "me-myself" not in strip_credentials(url)
    assert password not in scrub(f"failed: {url} <{password}>", secrets_in([url])).replace(HIDDEN, "")
