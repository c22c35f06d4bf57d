"""Requirements files as pip reads them, and none that takes long or raises."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from packaging.requirements import Requirement

from npu_rl.stack.requirements.requirement_file import read_requirement_file

# vLLM 0.18.0's requirements/common.txt, verl's and vllm-ascend's have lines of these forms.
TEXT = """\
# numpy<1
numpy >= 2.0.0   # why
six>=1.16.0; python_version > '3.11' # of 3.12
ray[default]>=2.41.0
transformers
--extra-index-url https://user:secret@example.org/simple
#--pre
-r common.txt
--requirement=build.txt
-c   "limits.txt"
tensordict>=0.8.0,<=0.10.0, \\
    !=0.9.0
torch==2.9.0 --hash=sha256:abc \\
  --hash=sha256:def
fsspec#egg==1
"""


def test_what_pip_reads() -> None:
    reading = read_requirement_file(TEXT)
    assert reading.bounds == (
        "numpy >= 2.0.0",
        "six>=1.16.0; python_version > '3.11'",
        "ray[default]>=2.41.0",
        "tensordict>=0.8.0,<=0.10.0, !=0.9.0",
        "torch==2.9.0",
    )
    assert reading.includes == ("common.txt", "build.txt", "limits.txt")
    assert reading.unread == ("line 15: not a requirement (PEP 508)",)


def test_what_can_not_be_compared_is_named_and_never_quoted() -> None:
    urls = "git+https://u:secret@example.org/a.git\nb @ https://u:secret@example.org/b.whl\n-e ./c\n./d.whl\n"
    reading = read_requirement_file(f"{urls}e===1.0\nf>=1.0.*\ng>1; platform_release > 'x~'\n{'h' * 600}>1\n")
    assert reading.bounds == ("e===1.0",)
    assert [reason.partition(":")[0] for reason in reading.unread] == [
        f"line {n}" for n in (1, 2, 3, 4, 6, 7, 8)
    ]
    assert "secret" not in repr(reading) and "hhh" not in repr(reading)


names = st.from_regex(r"[A-Za-z][A-Za-z0-9]{0,8}", fullmatch=True)
versions = st.from_regex(r"[0-9]{1,2}(\.[0-9]{1,2}){0,2}", fullmatch=True)
bounds = st.builds("{}{}{}".format, names, st.sampled_from([">=", "<", "==", "!=", "<=", ">"]), versions)
noise = st.sampled_from(["", "# numpy<1", "  ", "--pre", "-i https://example.org", "numpy"])


@given(st.lists(st.one_of(bounds, noise), max_size=20), st.sampled_from(["\n", "\r\n", " \\\n\n"]))
def test_each_bound_is_found_in_order(lines: list[str], end: str) -> None:
    wanted = [line for line in lines if line[:1].isalpha() and line != "numpy"]
    assert read_requirement_file(end.join([*lines, ""])).bounds == tuple(dict.fromkeys(wanted))


@given(st.text(alphabet=st.characters(codec="utf-8"), max_size=300))
def test_any_text_is_read_or_named(text: str) -> None:
    reading = read_requirement_file(text)
    for bound in reading.bounds:
        assert Requirement(bound).specifier and "\n" not in bound and bound.isprintable()
