"""URL rules: which one wins, what they may lead to, and that no credential is ever shown."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npu_rl.common.errors import UsageError
from npu_rl.common.user_settings import config_path
from npu_rl.stack.git.messages import redact
from npu_rl.stack.sources.url_rewriting import (
    Rewrites,
    check_url,
    hide_credentials,
    load_rewrites,
    split_credentials,
)


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "config.yaml"
    monkeypatch.setenv("NPU_RL_CONFIG", str(path))
    monkeypatch.delenv("NPU_RL_REWRITE", raising=False)
    return path


# -- which rule wins -----------------------------------------------------------------------------------


def test_without_rules_a_url_stays_as_it_is(config: Path) -> None:
    assert load_rewrites().apply("https://host/a.git") == "https://host/a.git"


def test_the_longest_prefix_wins_wherever_it_stands(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config.write_text("rewrite:\n  https://host/team/: https://config/\n")
    monkeypatch.setenv("NPU_RL_REWRITE", "https://host/=https://env/")
    rewrites = load_rewrites(["https://=https://option/"])
    assert rewrites.apply("https://host/team/a.git") == "https://config/a.git"
    assert rewrites.apply("https://host/b.git") == "https://env/b.git"
    assert rewrites.apply("https://other/c.git") == "https://option/other/c.git"


def test_of_equal_prefixes_the_options_wins_then_the_variables(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config.write_text("rewrite: {'https://host/': 'https://config/'}\n")
    url = "https://host/a.git"
    assert load_rewrites().apply(url) == "https://config/a.git"
    monkeypatch.setenv("NPU_RL_REWRITE", "\nhttps://host/=https://env/\n\nhttps://host/=https://env2/\n")
    assert load_rewrites().apply(url) == "https://env/a.git"
    assert load_rewrites(["https://host/=https://option/"]).apply(url) == "https://option/a.git"


def test_a_rule_applies_once(config: Path) -> None:
    rewrites = load_rewrites(["https://a/=https://b/", "https://b/=https://c/"])
    assert rewrites.apply("https://a/x") == "https://b/x"


@pytest.mark.parametrize(
    ("target", "result"),
    [
        ("/srv/mirror/", "file:///srv/mirror/a.git"),
        ("/srv/my mirror/", "file:///srv/my%20mirror/a.git"),
        ("/srv/100%/", "file:///srv/100%25/a.git"),
        ("git@mirror:group/", "git@mirror:group/a.git"),
        ("ssh://git@mirror:2222/", "ssh://git@mirror:2222/a.git"),
        ("git://mirror/", "git://mirror/a.git"),
        ("http://[::1]:80/", "http://[::1]:80/a.git"),
        ("https://user:a%3Db@mirror/", "https://user:a%3Db@mirror/a.git"),
    ],
)
def test_where_a_rule_may_lead(target: str, result: str, config: Path) -> None:
    assert load_rewrites([f"https://host/={target}"]).apply("https://host/a.git") == result


def test_an_equals_sign_in_the_target_belongs_to_it(config: Path) -> None:
    assert load_rewrites(["https://h/=https://m/?=/"]).apply("https://h/a") == "https://m/?=/a"


# -- what is refused -----------------------------------------------------------------------------------

REFUSED = [
    "ext::sh -c touch% /tmp/x",
    "ext::sh",
    "fd::17",
    "-oProxyCommand=touch x",
    "--upload-pack=touch x",
    "-u@host:path",
    "git@-oProxyCommand=x:path",
    "git@host:-x",
    "ssh://-oProxyCommand=x/path",
    "ssh://-u@host/path",
    "ssh://git:password@host/path",
    "git://user:password@host/path",
    "ftp://host/x",
    "javascript://host/x",
    "relative/path",
    "./relative",
    "../relative",
    "file://relative/path",
    "file:relative",
    "https://",
    "https:///path",
    "https://host",
    "https://-host/path",
    "https://user:pa/ss@host/path",
    "https://host:port/path",
    "https://ho st/path",
    "https://host/pa th",
    "https://host/pa\nth",
    "https://user:p%0aw@host/path",
    "file:///a\nb",
    "",
]


@pytest.mark.parametrize("url", REFUSED)
def test_git_is_not_given(url: str) -> None:
    with pytest.raises(UsageError, match="Unsupported git URL") as caught:
        check_url(url, where="here")
    assert caught.value.exit_code == 2
    assert caught.value.where == "here"
    assert "pass" not in str(caught.value).replace("user or password", "")


@pytest.mark.parametrize("target", ["ext::sh -c id ", "-oProxyCommand=id", "--upload-pack=id", "ssh://-oX/"])
def test_not_even_by_a_rewrite(target: str, config: Path) -> None:
    with pytest.raises(UsageError) as caught:
        load_rewrites([f"https://host/={target}"]).apply("https://host/a.git")
    assert "rewrite https://host/" in str(caught.value.where)


@pytest.mark.parametrize("rule", ["", "=", "a=", "=b", "no-equals-sign"])
@pytest.mark.parametrize("where", ["--rewrite", "NPU_RL_REWRITE"])
def test_what_is_no_rule(rule: str, where: str, config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = [rule] if where == "--rewrite" else []
    if where == "NPU_RL_REWRITE":
        monkeypatch.setenv("NPU_RL_REWRITE", rule)
    if rule == "" and not options:
        assert load_rewrites() == Rewrites()
        return
    with pytest.raises(UsageError, match="Invalid rewrite rule") as caught:
        load_rewrites(options)
    assert caught.value.where == ("--rewrite, number 1" if options else "NPU_RL_REWRITE, line 1")
    assert "FROM=TO" in str(caught.value)


@pytest.mark.parametrize(
    "line", ["ghp_S3cret", "https://h/ https://me:S3cret@m/", "https://me:S3cret@m/=", "=http://u:S3 cret@m/"]
)
def test_a_line_that_is_no_rule_is_not_repeated(
    line: str, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NPU_RL_REWRITE", f"https://a/=https://b/\n{line}")
    with pytest.raises(UsageError) as caught:
        load_rewrites()
    assert "cret" not in str(caught.value)
    assert caught.value.where == "NPU_RL_REWRITE, line 2"


@pytest.mark.parametrize(
    "target", ["http://u:S3 cret@m/", "u:S3cret@m/", "http://u:S3/cret@m/", "https://S3 cret@m/"]
)
def test_a_password_that_no_url_may_have_is_not_shown(target: str, config: Path) -> None:
    with pytest.raises(UsageError) as caught:
        load_rewrites([f"https://host/={target}"]).apply("https://host/a.git")
    assert "S3" not in str(caught.value)
    assert "cret" not in str(caught.value).replace("secret", "")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("- a\n", "keys"),
        ("hello", "keys"),
        ("rewrite: [a]\n", "keys"),
        ("rewrite: {a: 1}\n", "keys"),
        ("rewrite: {a: null}\n", "keys"),
        ("rewrite: {a: ''}\n", "keys"),
        ("rewrit: {a: b}\nx: 1\n", "Unknown keys: rewrit, x"),
        ("rewrite: {https://a/: https://me:s3cret@b/\n", "line"),
        ("rewrite:\n  https://a/: 'https://me:s3cret@b/\n", "line"),
        ("rewrite: {a: !!python/object:os.system s3cret}\n", "line"),
        ("\x00s3cret", "not text"),
        ("[" * 5000, ""),
        ("rewrite: 2001-13-45\n", ""),
        ("rewrite: &a [*a]\n", ""),
        ("!!x 1", ""),
    ],
)
def test_a_bad_configuration_file_is_named_and_not_quoted(text: str, why: str, config: Path) -> None:
    config.write_text(text)
    with pytest.raises(UsageError, match="configuration file") as caught:
        load_rewrites()
    assert caught.value.where == str(config)
    assert why in str(caught.value)
    assert "s3cret" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_a_configuration_file_that_is_not_text(config: Path) -> None:
    config.write_bytes(b"\xff\xfe\xff")
    with pytest.raises(UsageError, match="configuration file"):
        load_rewrites()


@pytest.mark.parametrize("text", ["", "# nothing\n", "rewrite:\n", "rewrite: {}\n"])
def test_an_empty_configuration_file_is_fine(text: str, config: Path) -> None:
    config.write_text(text)
    assert load_rewrites() == Rewrites()


def test_where_the_configuration_file_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NPU_RL_CONFIG", "~/c.yaml")
    assert config_path() == tmp_path / "c.yaml"
    monkeypatch.delenv("NPU_RL_CONFIG")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "x"))
    assert config_path().name == "config.yaml"
    assert config_path().is_relative_to(tmp_path)


# -- credentials ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "plain", "who"),
    [
        ("https://me:pw@host/a", "https://host/a", ("https://host", "me", "pw")),
        ("http://me:p%40w%2F@host:8080/a", "http://host:8080/a", ("http://host:8080", "me", "p@w/")),
        ("https://t0ken@host/a", "https://host/a", ("https://host", "t0ken", "")),
        ("https://me:p@w@host/a@b", "https://host/a@b", ("https://host", "me", "p@w")),
        ("https://host/a@b", "https://host/a@b", None),
        ("ssh://git@host/a", "ssh://git@host/a", None),
        ("git@host:a", "git@host:a", None),
        ("file:///a@b/c", "file:///a@b/c", None),
    ],
)
def test_credentials_are_taken_out_of_a_url(url: str, plain: str, who: tuple[str, str, str] | None) -> None:
    check_url(url)
    found, credentials = split_credentials(url)
    assert found == plain
    if who is None:
        assert credentials is None
    else:
        assert credentials is not None
        assert (credentials.place, credentials.username, credentials.password) == who


secrets = st.text(
    st.characters(codec="ascii", exclude_characters="/@ '\"", exclude_categories=("C",)), min_size=1
)


@given(user=secrets, password=secrets)
def test_neither_user_nor_password_is_shown(user: str, password: str) -> None:
    url = f"https://{user}:{password}@host/path"
    assert hide_credentials(url) == redact(url) == "https://***@host/path"


def test_rather_too_much_is_hidden_than_too_little() -> None:
    assert hide_credentials("https://me:pa/ss@host/x") == "https://***@host/x"
    assert "s3" not in hide_credentials("https://a/=https://me:s3@b/")
