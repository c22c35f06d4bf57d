"""Two sets of specifiers exclude each other only if no version is in both."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import Version

from npu_rl.stack.requirements.version_ranges import exclude_each_other


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("==1.26.4", ">=2.0.0"),
        ("==0.11.0", ">=0.8,<=0.10.0,!=0.9.0"),
        ("==2.9.0", "==2.9.0+cpu,!=2.9.0+cpu"),
        (">=1.13.3,<2", ">=2.0.0"),
        ("<1", ">=1"),
        ("~=0.8.1", ">=0.9"),
        (">=3.11,<3.12", ">=3.8,<3.11"),
        ("==1!2.0", "<=99"),
        ("==2.*", "<2.0.0"),  # which takes no pre-release of 2.0.0
    ],
)
def test_shown_to_be_empty(one: str, other: str) -> None:
    assert exclude_each_other(SpecifierSet(one), SpecifierSet(other))
    assert exclude_each_other(SpecifierSet(other), SpecifierSet(one))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("==1.26.4", "<2.0.0"),
        ("==2.7.0", "==2.7.0+cpu"),  # which 2.7.0+cpu satisfies
        ("==0.18.0+empty", ">=0.18.0"),
        (">=1,!=1.5", "==1.*"),
        ("==2.*", "<2.0.0rc1"),
        (">=1.0rc1", "<1.0.post1"),
        (">=1.0", "===odd"),
    ],
)
def test_not_shown(one: str, other: str) -> None:
    assert not exclude_each_other(SpecifierSet(one), SpecifierSet(other))


numbers = st.integers(0, 3).map(str)
releases = st.builds(
    "{}.{}{}".format, numbers, numbers, st.sampled_from(["", ".0", ".1", "rc1", ".post1", ".dev1"])
)
texts = st.builds("{}{}".format, st.sampled_from([">=", "<=", ">", "<", "==", "!=", "~="]), releases)
texts |= st.builds("{}{}.{}.*".format, st.sampled_from(["==", "!="]), numbers, numbers)
texts |= st.builds("=={}+cpu".format, releases)


@given(st.lists(texts, max_size=3), st.lists(texts, max_size=3), st.lists(releases, min_size=20, max_size=20))
@example([">1.0"], ["<1.0.post1"], [])
def test_no_version_is_in_two_that_exclude_each_other(
    one: list[str], other: list[str], some: list[str]
) -> None:
    try:
        sets = SpecifierSet(",".join(one)), SpecifierSet(",".join(other))
    except InvalidSpecifier:  # such as ~=1.0+cpu
        return
    if exclude_each_other(*sets):
        for version in [*map(Version, some), *(Version(f"{text}+cpu") for text in some)]:
            assert not all(each.contains(version, prereleases=True) for each in sets), version
