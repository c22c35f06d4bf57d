"""URL rules: precedence, where they may lead, and credentials, which are never shown."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npu_rl.common.errors import UsageError
from npu_rl.stack.git.messages import redact
from npu_rl.stack.sources.url_rewriting import (
    check_url,
    hide_credentials,
    load_rewrites,
)

URL = "https://host/a.git"


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "config.yaml"
    monkeypatch.setenv("NPU_RL_CONFIG", str(path))
    monkeypatch.delenv("NPU_RL_REWRITE", raising=False)
    return path


def test_the_longest_prefix_wins_then_the_option_then_the_variable(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert load_rewrites().apply(URL) == URL
    config.write_text(
        "rewrite: {'https://host/team/': 'https://config/', 'https://host/': 'https://config/'}\n"
    )
    assert load_rewrites().apply(URL) == "https://config/a.git"
    monkeypatch.setenv("NPU_RL_REWRITE", "\nhttps://host/=https://env/\n\nhttps://host/=https://env2/\n")
    assert load_rewrites().apply(URL) == "https://env/a.git"
    rewrites = load_rewrites(["https://host/=https://option/", "https://option/=https://never-twice/"])
    assert rewrites.apply(URL) == "https://option/a.git"
    assert rewrites.apply("https://host/team/a.git") == "https://config/a.git"
    assert rewrites.apply("https://other/c.git") == "https://other/c.git"


@pytest.mark.parametrize(
    ("target", "result"),
    [
        ("/srv/my mirror/", "file:///srv/my%20mirror/a.git"),
        ("/srv/100%/", "file:///srv/100%25/a.git"),
        ("git@mirror:group/", "git@mirror:group/a.git"),
        ("ssh://git@mirror:2222/", "ssh://git@mirror:2222/a.git"),
        ("git://mirror/", "git://mirror/a.git"),
        ("http://[::1]:80/", "http://[::1]:80/a.git"),
        ("https://user:a%3Db@mirror/?=/", "https://user:a%3Db@mirror/?=/a.git"),
    ],
)
def test_where_a_rule_may_lead(target: str, result: str, config: Path) -> None:
    assert load_rewrites([f"https://host/={target}"]).apply(URL) == result


REFUSED = [
    *("ext::sh -c touch% /tmp/x", "ext::sh", "fd::17", "-oProxyCommand=touch x", "--upload-pack=touch x"),
    *("-u@host:path", "git@-oProxyCommand=x:path", "git@host:-x", "ssh://-oProxyCommand=x/path"),
    *("ssh://-u@host/path", "ssh://git:password@host/path", "git://user:password@host/path", "ftp://host/x"),
    *("relative/path", "../relative", "file://relative/path", "file:relative", "https://", "https:///path"),
    *("https://host", "https://-host/path", "https://user:pa/ss@host/path", "https://host:port/path"),
    *("https://ho st/path", "https://host/pa\nth", "https://user:p%0aw@host/path", "file:///a\nb", ""),
]


@pytest.mark.parametrize("url", REFUSED)
def test_urls_that_git_is_not_given(url: str) -> None:
    with pytest.raises(UsageError, match="Unsupported git URL") as caught:
        check_url(url, where="here")
    assert (caught.value.exit_code, caught.value.where) == (2, "here")
    assert "pass" not in str(caught.value).replace("user or password", "")


@pytest.mark.parametrize(
    "rule",
    ["=", "ghp_S3cret", "https://h/ https://me:S3cret@m/", "https://me:S3@m/=", "=http://u:S3 cret@m/"],
)
def test_invalid_rules_are_not_repeated(rule: str, config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="Invalid rewrite rule") as caught:
        load_rewrites([rule])
    assert caught.value.where == "--rewrite, number 1"
    monkeypatch.setenv("NPU_RL_REWRITE", f"https://a/=https://b/\n{rule}")
    with pytest.raises(UsageError) as again:
        load_rewrites()
    assert again.value.where == "NPU_RL_REWRITE, line 2"
    assert "cret" not in str(caught.value) + str(again.value)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("- a\n", "keys"),
        ("rewrite: [a]\n", "keys"),
        ("rewrite: {a: 1}\n", "keys"),
        ("rewrite: {a: ''}\n", "keys"),
        ("rewrit: {a: b}\nx: 1\n", "Unknown keys: rewrit, x"),
        ("rewrite: {https://a/: https://me:s3cret@b/\n", "line"),
        ("rewrite: {a: !!python/object:os.system s3cret}\n", "line"),
        ("\x00s3cret", "not text"),
        ("\udcff\udcfe\udcff", ""),
        ("[" * 5000, ""),
        ("rewrite: 2001-13-45\n", ""),
        ("rewrite: &a [*a]\n", ""),
    ],
)
def test_a_bad_configuration_file_is_named_and_not_quoted(text: str, why: str, config: Path) -> None:
    config.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(UsageError, match="configuration file") as caught:
        load_rewrites()
    assert caught.value.where == str(config) and caught.value.__cause__ is None
    assert why in str(caught.value) and "s3cret" not in str(caught.value)


# -- credentials ---------------------------------------------------------------------------------------


secrets = st.text(
    st.characters(codec="ascii", exclude_characters="/@ '\"", exclude_categories=("C",)), min_size=1
)


@given(user=secrets, password=secrets)
def test_neither_user_nor_password_is_shown(user: str, password: str) -> None:
    url = f"https://{user}:{password}@host/path"
    assert hide_credentials(url) == redact(url) == "https://***@host/path"
    assert hide_credentials("https://me:pa/ss@host/x") == "https://***@host/x"
    assert "s3" not in hide_credentials("https://a/=https://me:s3@b/")
