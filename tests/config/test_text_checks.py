"""Single values, held against git and packaging where those decide."""

from __future__ import annotations

import subprocess
from pathlib import PurePosixPath

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from npu_rl.common.yaml_documents import text_checks
from npu_rl.common.yaml_documents.problems import shown
from npu_rl.common.yaml_documents.text_checks import check_git_url
from tests.manifest.examples import PIN

REF_TEXT = st.text(
    alphabet=st.sampled_from("ab/.-@{}~^:?*[]\\ lock\x7f\x01\té"), min_size=1, max_size=12
) | st.sampled_from(["a.lock", "@", "a.lock/b", "x@{1}", "a..b", ".a", "a/.b", "a.", "a/"])


def passes(check: object, value: str) -> bool:
    assert callable(check)
    try:
        assert check(value) == value
    except ValueError as error:
        assert str(error)
        return False
    return True


@settings(max_examples=150, deadline=None)
@given(REF_TEXT)
@example("main")
def test_refs_follow_git(name: str) -> None:
    ref = f"refs/heads/{name}"
    by_git = subprocess.run(["git", "check-ref-format", ref], capture_output=True).returncode == 0
    dash_first = any(part.startswith("-") for part in ref.split("/"))
    assert passes(text_checks.check_full_ref, ref) == (by_git and not dash_first and not ref.endswith("."))


@given(st.text(alphabet="0123456789abcdefABCDEF", min_size=1, max_size=45))
def test_only_forty_lower_case_digits_are_an_id(text: str) -> None:
    full = len(text) == 40 and text == text.lower()
    assert passes(text_checks.check_full_ref, text) == full
    assert passes(text_checks.check_pin, text) == full


PATHS = st.lists(
    st.sampled_from(
        ["a", "b.py", ".", "..", "", ".git", ".GIT", ".github", ".gitignore", "-x", " ", "~", "é"]
    ),
    min_size=1,
    max_size=5,
).map("/".join) | st.text(max_size=10)


@given(PATHS)
def test_a_path_stays_inside(path: str) -> None:
    if passes(text_checks.check_path, path):
        parts = PurePosixPath(path).parts
        assert ".." not in parts and not PurePosixPath(path).is_absolute()
        assert str(PurePosixPath(path)) == path, "there is one way to write it"
        assert not any(part.lower() == ".git" for part in parts)
        assert not any(ord(character) < 32 for character in path)


@pytest.mark.parametrize("path", ["a", "a/b.py", ".github/x", ".gitignore", "a b", "…", "a/-b", "a:b", "."])
def test_good_paths(path: str) -> None:
    assert passes(text_checks.check_path, path)


@pytest.mark.parametrize(
    "url",
    [
        "https://github.com/volcengine/verl.git",
        "http://localhost:8080/x",
        "ssh://git@example.org/~/x.git",
        "ssh://[fe80::1]:22/x",
        "git://example.org/x",
        "file:///srv/x y".replace(" ", "%20"),
        "git@github.com:volcengine/verl.git",
        "me@example.org:~/x",
    ],
)
def test_good_urls(url: str) -> None:
    assert passes(check_git_url, url)


@given(
    st.text(max_size=15),
    st.sampled_from(["", "ext::", "https://", "ssh://", "git@", "file://", "-", "git://"]),
)
def test_an_accepted_url_is_no_option_and_no_command(text: str, start: str) -> None:
    url = start + text
    if passes(check_git_url, url):
        assert not url.startswith("-") and "::" not in url.split("/")[0].split("@")[0]
        assert not any(character.isspace() or ord(character) < 32 for character in url)
        host = url.split("://")[-1].split("@")[-1]
        assert not host.startswith("-")


@given(st.text(st.characters(exclude_characters="/"), max_size=12))
def test_a_password_never_reaches_a_message(secret: str) -> None:
    secret = f"hunter2{secret}"
    for url in (
        f"https://me:{secret}@h/x",
        f"https://{secret}@h/x",
        f"ssh://me:{secret}@h/x",
        f"https://h/x?t={secret}",
    ):
        with pytest.raises(ValueError) as caught:
            check_git_url(url)
        assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("url", ["https://me:hunter2@h/x", "x https://hunter2@h", "ext::https://a:hunter2@h"])
def test_values_are_shown_without_credentials(url: str) -> None:
    assert "hunter2" not in shown(url)
    assert len(shown("x" * 10_000)) < 100


@pytest.mark.parametrize(
    "name", ["LD_PRELOAD", "VLLM_USE_V1", "HCCL_BUFFSIZE", "_X", "PYTHONUNBUFFERED", "NPU_RL_X"]
)
def test_variables_a_manifest_may_set(name: str) -> None:
    assert passes(text_checks.check_variable, name)


@pytest.mark.parametrize(
    "name", ["PYTHONPATH", "PYTHONHOME", "PATH", "BASH_ENV", "GIT_DIR", "LD_AUDIT", "a-b", "", "é"]
)
def test_variables_a_manifest_may_not_set(name: str) -> None:
    assert not passes(text_checks.check_variable, name)


@given(st.text(max_size=12))
def test_no_check_raises_anything_but_value_error(text: str) -> None:
    for name, check in vars(text_checks).items():
        if name.startswith("check_"):
            assert passes(check, text) in (True, False)


def test_a_pin_is_a_full_ref() -> None:
    assert passes(text_checks.check_full_ref, PIN)
