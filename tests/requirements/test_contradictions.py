"""Contradictions among declared bounds: nothing that a version satisfies is reported, and the smallest sets are."""

from __future__ import annotations

from itertools import combinations, product

from hypothesis import example, given, settings
from hypothesis import strategies as st
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from npu_rl.stack.lock.lock_model import Lock, LockedComponent
from npu_rl.stack.requirements.bound_lines import line_of
from npu_rl.stack.requirements.contradictions import Contradiction, contradictions


def stack(**files: dict[str, tuple[str, ...]]) -> Lock:
    """A lock whose components declare this."""
    components = {
        name: LockedComponent(sources=(), take=(), tree="0" * 40, result="0" * 40, declares=declares)
        for name, declares in files.items()
    }
    return Lock(
        lock_format=1, manifest="m", title="M", device="npu", manifest_digest="0" * 64, manifest_files={},
        components=components, tree="0" * 40, commit="0" * 40, host={"python": "3.11"},
    )  # fmt: skip


def found(*texts: str) -> list[Contradiction]:
    return contradictions(stack(one={"requirements.txt": texts}), {})


def test_a_pair_is_one_sentence_with_all_its_places() -> None:
    lock = stack(
        verl={"setup.py": ("numpy>=2.0.0",), "requirements.txt": ("numpy>=2.0.0", "ray"), "npu.txt": ("numpy<2",)},
        other={"a.txt": ("ray>=2.41",)},
    )  # fmt: skip
    lines = {"verl": {"setup.py": {"numpy>=2.0.0": 33}, "npu.txt": {"numpy<2": 7}}}
    assert [str(one) for one in contradictions(lock, lines)] == [
        '"numpy>=2.0.0" (verl/setup.py:33, verl/requirements.txt) and "numpy<2" (verl/npu.txt:7) exclude each other'
    ]


def test_the_smallest_set_first() -> None:
    one, other = found("a>=1", "a<1.2", "a!=1.0.*", "a!=1.1.*", "z==1", "z==2")
    assert (one.package, len(one.bounds), other.package, len(other.bounds)) == ("z", 2, "a", 4)
    assert str(other).endswith("can't be satisfied together")


def test_markers_count_where_they_meet() -> None:
    assert not found('a==1; platform_machine == "x86_64"', 'a==2; platform_machine == "aarch64"')
    assert not found('a==1; python_version < "3.11"', "a==2")
    assert len(found('a==1; platform_machine == "x86_64"', "a==2")) == 1


def test_a_prerelease_is_left_open() -> None:
    assert not found("a>=1.0rc1", "a<=1.0rc1", "a!=1.0rc1")  # none fits, and three are not compared
    assert len(found("a>=2.0rc1", "a<1.5")) == 1


VERSIONS = [f"{major}.{minor}" for major, minor in product(range(2), range(3))]
TRIED = [
    Version(text + end)
    for text in [*VERSIONS, "0.3", "1.3", "2.0", "2.1", "0.1.1", "1.0.1", "1.2.1", "9"]
    for end in ("", ".dev0", "rc1", ".post1", ".0.1", "+cpu")
]
specifiers = st.one_of(
    st.builds(
        "{}{}".format, st.sampled_from([">=", "<=", ">", "<", "==", "!=", "~="]), st.sampled_from(VERSIONS)
    ),
    st.builds("{}{}.*".format, st.sampled_from(["==", "!="]), st.sampled_from([*VERSIONS, "1", "2"])),
)


@settings(max_examples=60)
@given(st.lists(specifiers, min_size=1, max_size=5, unique=True))
@example([">1.0", "<1.1", "!=1.0.*"])
@example(["<=1.0", ">=1.0", "!=1.0"])
def test_no_version_satisfies_what_is_reported_and_each_smaller_set_has_one(texts: list[str]) -> None:
    for one in found(*(f"a{text}" for text in texts)):
        sets = [bound.specifier for bound in one.bounds]
        assert not any(fits(version, sets) for version in TRIED), str(one)
        if 1 < len(sets) < 4:
            for smaller in combinations(sets, len(sets) - 1):
                assert any(fits(version, smaller) for version in TRIED), str(one)


def fits(version: Version, sets: tuple[SpecifierSet, ...] | list[SpecifierSet]) -> bool:
    return all(one.contains(version, prereleases=True) for one in sets)


SCRIPT = """\
# numpy>=2.0.0 is not this line
install_requires = [
    "ray[default]>=2.41.0",
    "numpy >= 2.0.0",
    "my-numpy>=2.0.0",
]
python_requires=">=3.10"
"""


def test_lines_are_those_with_the_words() -> None:
    assert line_of("numpy>=2.0.0", SCRIPT) == 4
    assert line_of("my-numpy>=2.0.0", SCRIPT) == 5
    assert line_of("ray[default]>=2.41.0", SCRIPT) == 3
    assert line_of("ray>=2.41.0", SCRIPT) == 3  # the words of a computed text differ
    assert line_of("python>=3.10", SCRIPT) == 7
    assert line_of("numpy<2", SCRIPT) is None
