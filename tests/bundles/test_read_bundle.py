"""A bundle is proven before anything of it is used: whatever is wrong with it, nothing is written."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest

from npu_rl.common.errors import BundleError
from npu_rl.stack.bundles.bundle_facts import content_id, dump_list, parse_facts, parse_list
from npu_rl.stack.bundles.bundle_names import FACTS, LIST, is_member_name
from npu_rl.stack.bundles.bundle_tar import BLOCK
from tests.bundles.made import (
    MadeStack,
    Members,
    block_of,
    changed_header,
    members_of,
    opened,
    sealed,
    tar_of,
    with_checksum,
)
from tests.support import run_cli

MANIFEST, LOCK = "manifests/m/m.yaml", "manifests/m/m.lock.json"


@pytest.fixture(scope="module")
def members(made_stack: MadeStack) -> Members:
    return members_of(made_stack.file)


def refused(tmp_path: Path, data: bytes) -> str:
    place = tmp_path / "bad.tar"
    place.write_bytes(data)
    with pytest.raises(BundleError) as caught:
        opened(place)
    return str(caught.value)


def unit(members: Members) -> str:
    return next(name for name in sorted(members) if name.startswith("units/"))


def test_a_whole_bundle_is_read(stack: MadeStack, members: Members) -> None:
    bundle = opened(stack.file)
    assert bundle.facts.id == stack.made.id == content_id(bundle.hashes)
    assert bundle.size == stack.file.stat().st_size == stack.made.size
    assert {hashlib.sha256(members[name]).hexdigest() for name in bundle.hashes} == {*bundle.hashes.values()}
    assert list(members)[:2] == [LIST, FACTS] and list(members) == sorted(members)
    assert [one.name for one in bundle.facts.stacks] == ["m"] and not bundle.is_signed
    assert sealed(members) == stack.file.read_bytes()


def test_one_cut_short_at_any_block_writes_nothing(stack: MadeStack, tmp_path: Path) -> None:
    whole = stack.file.read_bytes()
    for end in range(0, len(whole), BLOCK):
        assert "next:" in refused(tmp_path, whole[:end])
    (tmp_path / "bad.tar").write_bytes(whole[: len(whole) // 2])
    before = sorted(path.name for path in tmp_path.iterdir())
    env = {**stack.world.env, "NPU_RL_STORE": str(tmp_path / "store"), "TMPDIR": str(tmp_path)}
    done = run_cli(["setup", "-m", stack.manifest, "--bundle", "bad.tar"], env, tmp_path)
    assert (done.returncode, done.stdout) == (1, "") and "cut short" in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def _as_link(members: Members) -> bytes:
    def change(block: bytearray) -> None:
        block[156:157] = b"2"
        block[157:168] = b"/etc/passwd"

    return changed_header(tar_of(members), MANIFEST, change)


def _larger(members: Members) -> bytes:
    return tar_of({**members, MANIFEST: members[MANIFEST] + b"# more\n"})


def _twice(members: Members) -> bytes:
    data = tar_of(members)
    at = block_of(data, MANIFEST)
    end = at + BLOCK + len(members[MANIFEST]) + -len(members[MANIFEST]) % BLOCK
    return data[:end] + data[at:]


def _outside(members: Members) -> bytes:
    def change(block: bytearray) -> None:
        block[:100] = b"manifests/m/n/../../../x".ljust(100, b"\0")

    return changed_header(tar_of(members), MANIFEST, change)


def _of_another_list(members: Members) -> bytes:
    lines = parse_list(members[LIST])
    return tar_of({**members, LIST: dump_list({**lines, "patches/" + "0" * 64: "0" * 64})})


BAD: dict[str, tuple[Callable[[Members], bytes], str]] = {
    "link": (_as_link, "is a link"),
    "larger": (_larger, "larger than stated"),
    "smaller": (lambda m: tar_of({**m, MANIFEST: m[MANIFEST][:-1]}), "smaller than stated"),
    "twice": (_twice, "twice"),
    "outside": (_outside, "not a member that its list has"),
    "another list": (_of_another_list, "name different members"),
    "unlisted": (lambda m: tar_of({**m, "patches/" + "0" * 64: b""}), "not a member that its list has"),
    "missing": (lambda m: tar_of({name: m[name] for name in m if name != MANIFEST}), "is missing"),
    "damaged": (lambda m: tar_of({**m, LOCK: m[LOCK].replace(b"A test", b"A tesT")}), "is damaged"),
    "no list": (lambda m: tar_of({name: m[name] for name in m if name != LIST}), "does not begin with"),
    "no facts": (lambda m: tar_of({name: m[name] for name in m if name != FACTS}), "it has no bundle.json"),
    "other facts": (
        lambda m: tar_of({**m, FACTS: m[FACTS].replace(b"0.2.0", b"0.2.1")}),
        "not as the list",
    ),
    "a unit less": (
        lambda m: sealed({n: m[n] for n in m if n != unit(m)}),
        "which its lock names, is missing",
    ),
    "another unit": (lambda m: sealed({**m, f"units/{'0' * 40}/00.pack": b"PACK"}), "of another lock"),
    "another patch": (lambda m: sealed({**m, f"patches/{'0' * 64}": b""}), "of another lock"),
    "another sdist": (lambda m: sealed({**m, "sdists/x-1.tar.gz": b""}), "of another lock"),
    "another id": (lambda m: sealed(m, id="0" * 64), "its id is not that"),
    "no stack": (lambda m: sealed(m, stacks=()), "for no manifest"),
    "edited lock": (lambda m: sealed({**m, LOCK: m[LOCK].replace(b"A test", b"A tesT")}), "is not a lock"),
    "no lock": (lambda m: sealed({n: m[n] for n in m if n != LOCK}), "or its lock is missing"),
    "empty": (lambda m: b"", "cut short"),
    "text": (lambda m: b"# v2 git bundle\n" * 64, "header"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_bundle_is_refused(members: Members, tmp_path: Path, name: str) -> None:
    make, told = BAD[name]
    assert told in refused(tmp_path, make(members)).lower()


def test_the_name_of_a_member_is_as_it_is(members: Members, tmp_path: Path) -> None:
    changed = tar_of({**members, MANIFEST: members[MANIFEST].replace(b"1", b"2")})
    place = tmp_path / "bad.tar"
    place.write_bytes(changed)
    with pytest.raises(BundleError) as caught:
        opened(place)
    assert (caught.value.why or "").startswith(f"{MANIFEST} is damaged")


def test_a_wrong_patch_under_a_right_name(members: Members, tmp_path: Path) -> None:
    (patch,) = (name for name in members if name.startswith("patches/"))
    assert "is not the text of its name" in refused(tmp_path, sealed({**members, patch: b"else"}))


def test_a_member_whose_size_leads_behind_the_end(stack: MadeStack, tmp_path: Path) -> None:
    data = bytearray(stack.file.read_bytes())
    at = block_of(bytes(data), LIST)
    data[at + 124 : at + 135] = b"77777777777"
    data[at : at + BLOCK] = with_checksum(bytes(data[at : at + BLOCK]))
    assert "cut short" in refused(tmp_path, bytes(data))


@pytest.mark.parametrize(
    "name",
    ["../x", "/etc/passwd", "manifests/m", "manifests/m/../x", "manifests/m/.git/config", "units/x/00.pack",
     "npu-rl/x.so", "patches/abc", "wheels/x.exe", "wheels/a/b.whl", "SHA256SUMS/x", "manifests//x", ""],
)  # fmt: skip
def test_names_of_members_lead_nowhere(name: str) -> None:
    assert not is_member_name(name)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"bundle_format": 2}',
        '{"bundle_format": 1, "id": 1}',
        "{" * 9,
        '{"bundle_format": true}',
    ],
)
def test_other_facts_are_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_facts(text.encode())


@pytest.mark.parametrize(
    "change",
    [
        lambda line: line + line,
        lambda line: line.upper(),
        lambda line: line.replace(b"  ", b" *"),
        lambda line: line.rstrip(b"\n"),
        lambda line: line.replace(b"bundle.json", b"../x"),
        lambda line: line.replace(b"bundle.json", b"SHA256SUMS"),
        lambda line: line + "0ä".encode(),
    ],
)
def test_other_lists_are_refused(change: Callable[[bytes], bytes]) -> None:
    line = dump_list({FACTS: "a" * 64})
    assert parse_list(line) == {FACTS: "a" * 64}
    with pytest.raises(ValueError):
        parse_list(change(line))


def test_a_bundle_that_changes_after_the_proof(stack: MadeStack, tmp_path: Path) -> None:
    from npu_rl.stack.bundles.read_bundle import open_bundle

    place = tmp_path / "m.tar"
    place.write_bytes(stack.file.read_bytes())
    with open_bundle(place) as bundle, place.open("r+b") as file:
        file.seek(block_of(place.read_bytes(), LOCK) + BLOCK)
        file.write(b"{{")
        file.flush()
        bundle.read(
            unit(members_of(stack.file))
        )  # at the other end, so that nothing of the first is in a buffer
        with pytest.raises(BundleError, match="not a whole bundle"):
            bundle.read(LOCK)
