"""The lock as a file: what is written is read back, and nothing that was tampered with is believed."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npu_rl.common.errors import LockError
from npu_rl.stack.git.objects import FILE, GITLINK, TREE, Entry, format_commit, format_tree, object_id
from npu_rl.stack.lock import lock_model
from npu_rl.stack.lock.inclusion_proof import pack
from npu_rl.stack.lock.lock_model import (
    Lock,
    LockedComponent,
    LockedDist,
    LockedMerge,
    LockedPatch,
    LockedSource,
    LockedSubmodule,
    LockedTake,
    Record,
    dump,
    parse,
)

ID = "0123456789" * 4
SHA = "0123456789abcdef" * 4
WHO = "A <a@b>"


def tree(**entries: Entry) -> tuple[str, bytes]:
    data = format_tree({name.replace("_", "."): entry for name, entry in entries.items()})
    return object_id("tree", data), data


def commit(root: str) -> tuple[str, bytes]:
    data = format_commit(root, [], WHO, 0, "pin\n")
    return object_id("commit", data), data


FOLDER = tree(a_py=Entry(FILE, ID))
PACKAGE = tree(sub=Entry(TREE, FOLDER[0]), lib=Entry(GITLINK, ID))
ROOT = tree(pkg=Entry(TREE, PACKAGE[0]), setup_py=Entry(FILE, ID))
PIN = commit(ROOT[0])
MODULE = commit(FOLDER[0])
PROOF = pack([PIN[1], ROOT[1], PACKAGE[1]])


def sample() -> Lock:
    """A lock with something in every field."""
    merge = LockedMerge(
        ref="refs/pull/1/head",
        how="pick",
        head=ID,
        base_ref="refs/heads/main",
        base_tip=ID,
        merge_base=ID,
        commits=("0123 ä subject",),
        drift=0,
        inside=("pkg/sub/a.py",),
        outside=("docs/ü.md",),
        records=(
            Record("pkg/sub/a.py", FILE, ID, three_way=(ID, ID, ID)),
            Record("pkg/sub/b.py", FILE, ID, content="eJwDAAAAAAE="),
            Record("pkg/sub/c.py", None, None),
        ),
        tree=ID,
    )
    patch = LockedPatch("0001-x", "up/1/0001-x.patch", SHA, ID, 2, ("pkg/sub/a.py",), 0, "d")
    component = LockedComponent(
        sources=(
            LockedSource(git="https://example.com/up.git"),
            LockedSource(git="https://mirror.example/up.git"),
        ),
        take=(LockedTake("pkg/sub", "lib", TREE, FOLDER[0]), LockedTake("pkg/lib", "mod", GITLINK, ID)),
        tree=ID,
        result=ID,
        checkout="full",
        ref="refs/tags/v1",
        pin=PIN[0],
        root=ROOT[0],
        proof=PROOF,
        merges=(merge,),
        patches=(patch,),
        submodules=(
            LockedSubmodule(
                "pkg/lib", "https://example.com/lib.git", MODULE[0], FOLDER[0], pack([MODULE[1]])
            ),
        ),
        dist=LockedDist("up", "1.0+x", {"group.a": {"name": "pkg.mod:attr"}}),
        repository=ID,
        declares={"setup.py[gpu]": ("ray[default]>=2.41; python_version < '3.12'",), "setup.py": ()},
        unread=("setup.py: install_requires is computed (line 7)",),
    )
    release = LockedComponent(
        sources=(
            LockedSource(pypi="rel==1.0", filename="rel-1.0.tar.gz", sha256=SHA, size=7, drop=("rel/x",)),
        ),
        take=(LockedTake("rel", "rel", TREE, ID),),
        tree=ID,
        result=ID,
    )
    return Lock(
        lock_format=1,
        manifest="m",
        title="Ein Titel",
        device="npu",
        manifest_digest=SHA,
        manifest_files={"m.yaml": SHA},
        components={"up": component, "rel": release},
        tree=ID,
        commit=ID,
        runtime=ID,
        tree_patches=(patch,),
        requirements=("ray==2.42.1",),
        host={"cann": "8.2.RC1"},
        env={"VLLM_USE_V1": "1"},
    )


def changed(**changes: Any) -> Lock:
    """The sample with other fields in its component `up`; `dump` makes the digest fit."""
    lock = sample()
    up = replace(lock.components["up"], **changes)
    return replace(lock, components={**lock.components, "up": up})


def refusal(text: str) -> str:
    with pytest.raises(LockError) as error:
        parse(text, "m.lock.json")
    message = str(error.value)
    assert "m.lock.json" in message
    return message


def test_round_trip(tmp_path: Path) -> None:
    lock = sample()
    path = tmp_path / "m.lock.json"
    path.write_text(dump(lock), encoding="utf-8")
    assert lock_model.read(path) == lock
    assert dump(lock_model.read(path)) == path.read_text(encoding="utf-8")


def test_what_is_as_by_default_is_not_written() -> None:
    text = dump(replace(sample(), tree_patches=(), host={}, env={}, components={}))
    assert not {"tree_patches", "host", "env"} & set(json.loads(text))


ODD_TEXT = st.text(st.characters(), max_size=20)
ODD_NAME = st.binary(min_size=1, max_size=20).map(lambda raw: raw.decode("utf-8", "surrogateescape"))


@settings(max_examples=30)
@given(st.lists(ODD_NAME), st.lists(ODD_TEXT))
def test_round_trip_of_odd_texts(names: list[str], subjects: list[str]) -> None:
    lock = sample()
    merge = replace(lock.components["up"].merges[0], outside=tuple(names), commits=tuple(subjects))
    lock = changed(merges=(merge,))
    text = dump(lock)
    text.encode("utf-8")  # whatever bytes a file name upstream has, the lock is UTF-8
    assert parse(text, "") == lock
    assert lock.content_id() == parse(text, "").content_id()


def test_line_ends_do_not_matter() -> None:
    """A checkout with autocrlf must not break the lock."""
    assert parse(dump(sample()).replace("\n", "\r\n"), "") == sample()


@given(st.integers(0, len(dump(sample())) - 1), st.sampled_from('0aZ"{}[],: '))
def test_one_changed_character_is_noticed(at: int, character: str) -> None:
    text = dump(sample())
    edited = text[:at] + character + text[at + 1 :]
    if edited != text:
        try:
            assert parse(edited, "") == sample()  # white space between values means nothing
        except LockError as error:
            assert error.hint


@given(st.integers(0, len(dump(sample())) - 2))
def test_a_truncated_lock(end: int) -> None:
    assert "not valid JSON" in refusal(dump(sample())[:end])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "not valid JSON"),
        ("[1]", "The file is not a lock"),
        ('{"lock_format": true}', "The file is not a lock"),
        ("[" * 100_000, "not valid JSON"),
        ('{"lock_format": 1, "x": ' + "[" * 900 + "]" * 900 + "}", "edited by hand or damaged"),
    ],
)
def test_what_is_no_lock(text: str, says: str) -> None:
    assert says in refusal(text) or "not valid JSON" in refusal(text)


def test_files_that_are_no_lock(tmp_path: Path) -> None:
    path = tmp_path / "x.lock.json"
    with pytest.raises(LockError, match="This manifest has no lock"):
        lock_model.read(path)
    with pytest.raises(LockError, match="not a regular file"):
        lock_model.read(tmp_path)
    with pytest.raises(LockError, match="not a regular file"):
        lock_model.read(Path("/dev/zero"))
    path.write_bytes(b"\xff\xfe{}")
    with pytest.raises(LockError, match="can't be read"):
        lock_model.read(path)
    with path.open("wb") as file:
        file.truncate(lock_model.MAXIMUM_SIZE + 1)
    with pytest.raises(LockError, match="too large"):
        lock_model.read(path)


# -- shape ---------------------------------------------------------------------------------------------


def edited(edit: Callable[[dict[str, Any]], object]) -> str:
    """The sample's JSON after an edit, with a digest that fits."""
    body = json.loads(dump(sample()))
    edit(body)
    body["digest"] = lock_model._digest(body)
    return json.dumps(body)


def up(body: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = body["components"]["up"]
    return found


def merge_of(body: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = up(body)["merges"][0]
    return found


SHAPES: dict[str, Callable[[dict[str, Any]], object]] = {
    "lock: unknown key 'news'": lambda b: b.update(news=1),
    "lock: Lock.__init__": lambda b: b.pop("title"),
    "lock.components.up.merges[0].drift: expected int": lambda b: merge_of(b).update(drift=True),
    "lock.components.up.merges[0].records[0].three_way: expected 3 items": lambda b: merge_of(b)["records"][
        0
    ].update(three_way=[ID]),
}


@pytest.mark.parametrize("where", SHAPES)
def test_another_shape(where: str) -> None:
    message = refusal(edited(SHAPES[where]))
    assert "does not follow its schema" in message
    assert where.split("__init__")[0].removesuffix("Lock.") in message


# A lock may come from anybody. Its ids and refs become arguments of git, its names become paths.
HOSTILE: dict[str, Callable[[dict[str, Any]], object]] = {
    "an option as an id": lambda b: merge_of(b).update(head="--upload-pack=touch owned"),
    "an option as a base": lambda b: merge_of(b).update(merge_base="--depth=1"),
    "an option in a record": lambda b: merge_of(b)["records"][0].update(three_way=["-x", ID, ID]),
    "an option as a submodule's id": lambda b: up(b)["submodules"][0].update(root="--output=x"),
    "an option as a ref": lambda b: merge_of(b).update(ref="--exec=x"),
    "a ref that is none": lambda b: up(b).update(ref="main"),
    "a helper as a URL": lambda b: up(b)["sources"][0].update(git="ext::sh -c touch% owned"),
    "an option as a URL": lambda b: up(b)["sources"][0].update(git="--upload-pack=x"),
    "a password in a URL": lambda b: up(b)["sources"][0].update(git="https://u:p@example.com/x.git"),
    "a component that is a path": lambda b: b["components"].update({"../../x": up(b)}),
    "a take that leaves": lambda b: up(b)["take"][0].update(to="../x"),
    "a take into .git": lambda b: up(b)["take"][0].update(to="x/.git/hooks"),
    "an absolute take": lambda b: up(b)["take"][0].update(to="/x"),
    "a record that leaves": lambda b: merge_of(b)["records"][0].update(path="pkg/../../x"),
    "a record in .git": lambda b: merge_of(b)["records"][0].update(path="pkg/.Git/config"),
    "a submodule that leaves": lambda b: up(b)["submodules"][0].update(path="../x"),
    "a directory that leaves": lambda b: up(b)["patches"][0].update(directory="../x"),
    "a dist that is a path": lambda b: up(b)["dist"].update(name="../x"),
    "a version that is a path": lambda b: up(b)["dist"].update(version="1/../../x"),
    "a variable that runs code": lambda b: b["env"].update(LD_PRELOAD="/x.so", PATH="/x"),
    "a variable that is code": lambda b: b["env"].update({"A; touch owned; B": "1"}),
    "a mode of its own": lambda b: up(b)["take"][0].update(mode="104755"),
    "another way to merge": lambda b: merge_of(b).update(how="rebase"),
    "another checkout": lambda b: up(b).update(checkout="FULL"),
    "a release that is an option": lambda b: b["components"]["rel"]["sources"][0].update(pypi="-r x==1"),
    "a hash that is none": lambda b: b["components"]["rel"]["sources"][0].update(sha256="x"),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_lock_with_a_good_digest(what: str) -> None:
    assert "does not follow its schema" in refusal(edited(HOSTILE[what]))


# -- proof ---------------------------------------------------------------------------------------------

OTHER_ROOT = tree(pkg=Entry(TREE, FOLDER[0]))
OTHER_PIN = commit(OTHER_ROOT[0])
TAKES = sample().components["up"].take
MODULES = sample().components["up"].submodules
BOMB = base64.b64encode(zlib.compress(b"commit" + bytes(64 * 1024 * 1024))).decode()

FORGERIES: dict[str, tuple[str, dict[str, Any]]] = {
    "another take id": (f"pkg/sub is {FOLDER[0]}", {"take": (replace(TAKES[0], id=ID),)}),
    "another path": ("pkg/other is missing", {"take": (replace(TAKES[0], path="pkg/other"),)}),
    "another submodule commit": ("pkg/lib is", {"take": (replace(TAKES[1], id=PIN[0]),)}),
    "another pin": (f"not the commit {OTHER_PIN[0]}", {"pin": OTHER_PIN[0]}),
    "another commit's proof": (
        f"the commit's tree is {OTHER_ROOT[0]}",
        {"pin": OTHER_PIN[0], "proof": pack([OTHER_PIN[1], OTHER_ROOT[1]])},
    ),
    "another root": (f"the commit's tree is {ROOT[0]}", {"root": ID}),
    "no root for a whole checkout": ("has no root tree", {"root": None, "take": ()}),
    "no proof": ("not the commit", {"proof": ()}),
    "trees before the commit": ("not the commit", {"proof": PROOF[::-1]}),
    "no base64": ("", {"proof": ("%%%", *PROOF[1:])}),
    "a bomb": ("unpacks to more than", {"proof": (BOMB, *PROOF[1:])}),
    "another module's commit": (
        "the commit of the submodule pkg/lib",
        {"submodules": (replace(MODULES[0], pin=ID),)},
    ),
    "another module's tree": (
        "the tree of the submodule pkg/lib",
        {"submodules": (replace(MODULES[0], root=ID),)},
    ),
    "no proof of a module": (
        "the commit of the submodule pkg/lib",
        {"submodules": (replace(MODULES[0], proof=()),)},
    ),
}


@pytest.mark.parametrize("what", FORGERIES)
def test_a_proof_that_does_not_prove(what: str) -> None:
    says, changes = FORGERIES[what]
    message = refusal(dump(changed(**changes)))
    assert "inclusion proof of up in the lock is invalid" in message and says in message


def test_a_commit_that_is_garbage_but_hashes_right() -> None:
    data = b"tree \xff\xff"
    message = refusal(dump(changed(pin=object_id("commit", data), proof=pack([data]), root=None)))
    assert "inclusion proof" in message


# -- what has to be delivered --------------------------------------------------------------------------


def test_wants_are_what_upstream_has() -> None:
    """What an earlier merge made is in no repository; neither is a submodule's commit in its parent's."""

    def oid(n: int) -> str:
        return f"{n:040x}"

    def merge(*records: Record) -> LockedMerge:
        return replace(sample().components["up"].merges[0], records=records)

    merges = (
        merge(
            Record("a", FILE, oid(4), three_way=(oid(1), oid(2), oid(3))),
            Record("b", FILE, oid(5), content="x"),
            Record("c", None, None),
            Record("d", FILE, oid(6)),
        ),
        merge(
            Record("a", FILE, oid(8), three_way=(oid(1), oid(4), oid(7))),
            Record("e", FILE, oid(5)),
        ),
    )
    component = replace(sample().components["up"], merges=merges)
    assert component.wanted_objects() == (ROOT[0], *map(oid, (1, 2, 3, 6, 7)))
    assert replace(component, root=None).wanted_objects() == (FOLDER[0], *map(oid, (1, 2, 3, 6, 7)))
