"""What is taken of a component: paths, links, submodules, whole checkouts, the same file twice."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from npu_rl.common.errors import ComposeError, LockError, NpuRlError, PatchError, SourceError
from npu_rl.stack.lock import lock_model
from tests.resolve.world import PATCH, World, component, pull, request, takes
from tests.support import File, Repo, ok, run_cli


def plain(world: World) -> Repo:
    return world.upstream(
        {"pkg/a.py": "one\ntwo\n", "pkg/sub/b.py": "b\n", "setup.py": "s\n", "README": "r\n"}
    )


def refused(world: World, entry: object, error: type[NpuRlError] = LockError) -> str:
    return world.refused({"up": entry}, error)


# -- paths ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("absent", "Its root contains: README, pkg, setup.py"),
        ("pkg/absent/deeper", "pkg contains: a.py, sub"),
        ("pkg/sub/c.py", "pkg/sub contains: b.py"),
        ("setup.py/x", "setup.py is a file."),
    ],
)
def test_a_path_that_is_not_there(world: World, path: str, says: str) -> None:
    message = refused(world, component(plain(world), take=takes((path, "x"))))
    assert f"up has no path {path} at this pin" in message and says in message


def test_a_file_needs_a_name(world: World) -> None:
    message = refused(world, component(plain(world), take=takes(("setup.py", "."))))
    assert "setup.py of up is a file" in message and "`to:`" in message


def test_a_link_is_not_taken_for_what_it_leads_to(world: World) -> None:
    up = plain(world)
    up.commit({"link": File("pkg", mode="120000")})
    assert "link of up is a symbolic link" in refused(world, component(up, take=takes(("link", "x"))))


def test_single_files_and_spaces_and_letters(world: World) -> None:
    up = world.upstream({"a b/ü.py": "1\n", "tools/run me.sh": File("#!/bin/sh\n", mode="100755")})
    entry = component(up, take=takes(("a b", "neuer Ordner"), ("tools/run me.sh", "bin/läuft")))
    made = world.compose(world.locked({"up": entry}))
    assert made.modes == {"neuer Ordner/ü.py": "100644", "bin/läuft": "100755"}


# -- the same file in two places ------------------------------------------------------------------------


def test_a_patch_changes_a_file_in_all_its_places(world: World) -> None:
    world.write("x.patch", PATCH)
    entry = component(
        plain(world),
        take=takes(("pkg", "pkg"), ("pkg/a.py", "verl/trainer/a.py"), (".", "all")),
        patches=["./x.patch"],
    )
    made = world.compose(world.locked({"up": entry}))
    places = ["pkg/a.py", "verl/trainer/a.py", "all/pkg/a.py"]
    assert [made.code[p] for p in places] == [b"one\n2\n"] * 3
    assert [(h["component"], h["patch"], h["hunk"], h["file"]) for h in made.hunks] == [
        ("up", "x", 1, place) for place in places
    ]


def test_verify_tells_the_places_of_a_hunk_apart(world: World) -> None:
    world.write("x.patch", PATCH)
    entry = component(plain(world), take=takes(("pkg", "pkg"), ("pkg/a.py", "b.py")), patches=["./x.patch"])
    world.locked({"up": entry})
    manifest, place = world.root / "project" / "m.yaml", world.root / "w"
    ok(run_cli(["setup", "-m", manifest, "-w", place], world.env))
    (place / "code" / "b.py").write_text("one\ntwo\n")
    done = run_cli(["verify", "-w", place, "--json"], world.env)
    report = json.loads(done.stdout)
    assert (done.returncode, report["ok"]) == (3, False)
    assert report["drift"] == [
        {"path": "code/b.py", "kind": "modified", "component": "up", "patch": "x", "hunk": 1}
    ]
    (patch,) = report["patches"]
    assert {hunk["file"]: hunk["state"] for hunk in patch["hunks"]} == {
        "pkg/a.py": "in place",
        "b.py": "missing",
    }


# -- whole checkouts -----------------------------------------------------------------------------------


def test_a_whole_checkout_lies_under_src_with_its_patches(world: World) -> None:
    up = plain(world)
    world.write("x.patch", PATCH + "--- a/setup.py\n+++ b/setup.py\n@@ -1 +1 @@\n-s\n+built\n")
    entry = component(up, patches=["./x.patch"], checkout="full")
    lock = world.locked({"up": entry})
    assert lock.components["up"].root == up.tree() == lock.components["up"].tree
    made = world.compose(lock)
    assert made.src["up"] == {
        "README": b"r\n",
        "pkg/a.py": b"one\n2\n",
        "pkg/sub/b.py": b"b\n",
        "setup.py": b"built\n",
    }
    assert made.code["pkg/a.py"] == b"one\n2\n" and "setup.py" not in made.code
    assert {(h["root"], h["file"]) for h in made.hunks} == {
        ("code", "pkg/a.py"),
        ("src/up", "pkg/a.py"),
        ("src/up", "setup.py"),
    }
    narrow = refused(world, {**entry, "checkout": "take"}, PatchError)
    assert "changes paths that the component does not take" in narrow and "setup.py" in narrow


# -- submodules ----------------------------------------------------------------------------------------


def with_module(world: World, path: str = "pkg/lib") -> tuple[Repo, Repo, str]:
    """A repository with a submodule at `path`; both, and the submodule's commit."""
    lib = world.repo("lib")
    oid = lib.commit({"l.py": "lib\n", "deep/d.py": "d\n"})
    up = plain(world)
    url = "[submodule]\n\turl = https://example.com/nobody-reads-this.git\n"
    up.commit({path: File(oid, mode="160000"), ".gitmodules": url})
    return up, lib, oid


def test_a_submodule_that_is_named(world: World) -> None:
    up, lib, oid = with_module(world)
    entry = component(up, submodules={"pkg/lib": {"git": lib.url, "ref": oid}})
    lock = world.locked({"up": entry})
    made = world.compose(lock)
    assert (made.code["pkg/lib/l.py"], made.code["pkg/lib/deep/d.py"]) == (b"lib\n", b"d\n")
    told = [line for line in world.told if "setup.py" not in line]  # it has no call of setup()
    assert len(told) == 1  # of the branch, nothing of the submodule


@pytest.mark.parametrize("checkout", ["take", "full"])
def test_a_submodule_in_every_role(world: World, checkout: str) -> None:
    """Taken by itself, patched, beside a merge, and below a whole checkout."""
    up, lib, oid = with_module(world)
    pull(up, 1, {"pkg/sub/b.py": "merged\n"})
    up.commit({"README": "r2\n"})
    world.write("x.patch", PATCH.replace("pkg/a.py", "pkg/lib/l.py").replace("-1,2 +1,2", "-1 +1").replace(
        " one\n-two", "-lib"
    ))  # fmt: skip
    entry = component(
        up,
        take=takes(("pkg/lib", "."), ("pkg/sub", "sub")),
        merge=[request(1)],
        patches=["./x.patch"],
        submodules={"pkg/lib": {"git": lib.url, "ref": oid}},
        checkout=checkout,
    )
    made = world.compose(world.locked({"up": entry}))
    assert made.code == {"l.py": b"2\n", "deep/d.py": b"d\n", "sub/b.py": b"merged\n"}
    if checkout == "full":
        assert made.src["up"]["pkg/lib/l.py"] == b"2\n" and made.src["up"]["README"] == b"r2\n"


def test_a_submodule_nobody_named(world: World) -> None:
    up, _, _ = with_module(world)
    message = refused(world, component(up))
    assert "submodules that the manifest does not list" in message and "pkg/lib" in message
    message = refused(world, component(up, take=takes(("pkg/lib", "lib"))))
    assert "pkg/lib of up is a submodule that the manifest does not list" in message
    world.locked({"up": component(up, take=takes(("pkg/sub", "sub")))})  # elsewhere it does not matter


def test_a_submodule_wrongly_named(world: World) -> None:
    up, lib, oid = with_module(world)
    module = {"git": lib.url, "ref": oid}
    message = refused(world, component(up, submodules={"pkg/lib": module, "pkg/bil": module}))
    assert "up has no submodule at pkg/bil" in message and "Submodules in the taken paths: pkg/lib" in message
    message = refused(world, component(up, submodules={"pkg/lib": {**module, "ref": "1" * 40}}), SourceError)
    assert "up/pkg/lib" in message and "1" * 12 in message
    wrong = {**module, "git": f"file://{world.root}/nowhere.git"}
    message = refused(world, component(up, submodules={"pkg/lib": wrong}), SourceError)
    assert "up/pkg/lib" in message and "nowhere.git" in message


@pytest.mark.parametrize("checkout", ["take", "full"])
def test_a_part_of_a_submodule(world: World, checkout: str) -> None:
    """It is taken to its place on the path, patched there, beside a merge; the repository names its commit."""
    up, lib, oid = with_module(world)
    pull(up, 1, {"pkg/sub/b.py": "merged\n"})
    up.commit({"README": "r2\n"})
    world.write("x.patch", "--- a/pkg/lib/deep/d.py\n+++ b/pkg/lib/deep/d.py\n@@ -1 +1 @@\n-d\n+patched\n")
    entry = component(
        up,
        take=takes(("pkg/lib/deep", "deep"), ("pkg/sub", "sub"), ("pkg/lib/l.py", "one/l.py")),
        merge=[request(1)],
        patches=["./x.patch"],
        submodules={"pkg/lib": {"git": lib.url, "ref": oid}},
        checkout=checkout,
    )
    lock = world.locked({"up": entry})
    if checkout == "take":
        assert [(held.path, held.mode, held.id) for held in lock.components["up"].held] == [
            ("pkg/lib", "160000", oid)
        ]
    made = world.compose(lock, world.empty_store())
    assert made.code == {"deep/d.py": b"patched\n", "sub/b.py": b"merged\n", "one/l.py": b"lib\n"}
    assert world.check() == lock


def test_the_commit_of_a_submodule_is_proven_by_the_pin(world: World) -> None:
    """A lock in which the repository is said to name another commit is refused."""
    up, lib, oid = with_module(world)
    module = {"pkg/lib": {"git": lib.url, "ref": oid}}
    lock = world.locked({"up": component(up, take=takes(("pkg/lib/deep", "deep")), submodules=module)})
    one = lock.components["up"]
    (held,) = one.held
    forged = replace(lock, components={"up": replace(one, held=(replace(held, id="1" * 40),))})
    with pytest.raises(LockError, match="inclusion proof of up in the lock is invalid"):
        lock_model.parse(lock_model.dump(forged), "forged.lock.json")


@pytest.mark.parametrize("checkout", ["take", "full"])
def test_the_other_submodules_are_skipped_in_one_line(world: World, checkout: str) -> None:
    up, lib, oid = with_module(world)
    up.commit({f"pkg/more/{name}": File(oid, mode="160000") for name in "abc"})
    pull(up, 1, {"pkg/sub/b.py": "merged\n"})
    up.commit({"README": "r2\n"})
    module = {"pkg/lib": {"git": lib.url, "ref": oid}}
    entry = component(up, submodules=module, merge=[request(1)], checkout=checkout)
    assert "pkg/more/a, pkg/more/b, pkg/more/c" in refused(world, entry)
    assert "`other_submodules: skip`" in refused(world, entry)
    lock = world.locked({"up": {**entry, "other_submodules": "skip"}})
    assert lock.components["up"].skipped == ("pkg/more/a", "pkg/more/b", "pkg/more/c")
    made = world.compose(lock, world.empty_store())
    assert made.code["pkg/lib/l.py"] == b"lib\n" and made.code["pkg/sub/b.py"] == b"merged\n"
    assert not [path for path in made.code if "more" in path]
    assert world.check() == lock


# -- symbolic links ------------------------------------------------------------------------------------

LEAVING = {
    "absolute": {"pkg/link": "/etc/passwd"},
    "above": {"pkg/link": "../../outside"},
    "above, in the middle": {"pkg/link": "sub/../../../outside"},
    "through another link": {"pkg/up": "..", "pkg/link": "up/../outside"},
    "through a link to a folder": {"pkg/sub/up": "../..", "pkg/link": "sub/up/../outside"},
    "through what is not there": {"pkg/link": "nothing/../../../outside"},
}
STAYING = {
    "pkg/link": "a.py",
    "pkg/sub/link": "../../pkg/./a.py",
    "pkg/sub/top": "../..",
    "pkg/loop": "pool",
    "pkg/pool": "loop",
    "pkg/nowhere": "nothing/here",
}


@pytest.mark.parametrize(
    ("checkout", "what"),
    [*(("take", what) for what in LEAVING), ("full", "above"), ("full", "through another link")],
)
def test_a_link_that_leaves_the_tree(world: World, what: str, checkout: str) -> None:
    up = plain(world)
    up.commit({path: File(target, mode="120000") for path, target in LEAVING[what].items()})
    wanted = [] if checkout == "full" else takes(("pkg", "pkg"))
    message = refused(world, component(up, checkout=checkout, take=wanted), ComposeError)
    assert "has a symbolic link that points outside the tree" in message
    assert f"pkg/link -> {LEAVING[what]['pkg/link']}" in message or "pkg/up -> .." in message


def test_a_link_that_stays(world: World) -> None:
    up = plain(world)
    up.commit({path: File(target, mode="120000") for path, target in STAYING.items()})
    made = world.compose(world.locked({"up": component(up)}))
    for path, target in STAYING.items():
        assert (made.modes[path], made.code[path].decode()) == ("120000", target)


def test_a_link_may_leave_when_the_folder_is_laid_higher(world: World) -> None:
    """What counts is where it lies in the end."""
    up = plain(world)
    up.commit({"pkg/sub/link": File("../a.py", mode="120000")})
    message = refused(world, component(up, take=takes(("pkg/sub", "."))), ComposeError)
    assert "link -> ../a.py" in message
