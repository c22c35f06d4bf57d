"""`extends:` works alike in manifests and recipes: chains, cycles, links, and who wrote a fault."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.config.documents import write
from tests.config.kinds import Examples, both_kinds


@both_kinds
def test_good_examples_load(examples: Examples) -> None:
    assert len(examples.good) > 2
    for path in examples.good:
        loaded = examples.load(str(path))
        assert examples.content(loaded)
        assert loaded.path == path.resolve() and not loaded.bundled
        assert len(loaded.digest) == 64


@both_kinds
def test_faults_of_a_parent_name_the_file_that_wrote_them(examples: Examples, tmp_path: Path) -> None:
    base = examples.minimal
    for text, harmed in examples.harm.items():
        base = base.replace(text, harmed)
    write(tmp_path / "base" / "base.yaml", base)
    child = write(tmp_path / "m.yaml", f"extends: base/base.yaml\n{examples.child}")
    with pytest.raises(examples.kind.invalid) as caught:
        examples.load(child)
    found = [(Path(p.file).relative_to(tmp_path).as_posix(), p.line) for p in caught.value.problems]
    assert found == examples.faults


@both_kinds
def test_a_file_reached_through_a_linked_folder(examples: Examples, tmp_path: Path) -> None:
    write(tmp_path / "base.yaml", examples.minimal)
    write(tmp_path / "real" / "deep" / "m.yaml", "extends: ../../base.yaml\n")
    (tmp_path / "link").symlink_to(tmp_path / "real" / "deep")
    loaded = examples.load(str(tmp_path / "link" / "m.yaml"))
    assert list(loaded.files) == ["m.yaml", "../../base.yaml"]


def chain(examples: Examples, folder: Path, length: int) -> str:
    write(folder / "0.yaml", examples.minimal)
    for index in range(1, length + 1):
        write(folder / f"{index}.yaml", f"extends: ./{index - 1}.yaml\n")
    return str(folder / f"{length}.yaml")


@both_kinds
def test_eight_parents_and_no_more(examples: Examples, tmp_path: Path) -> None:
    assert len(examples.load(chain(examples, tmp_path, 8)).files) == 9
    with pytest.raises(examples.kind.error, match="more than 8 levels of `extends:`"):
        examples.load(chain(examples, tmp_path, 9))


@both_kinds
def test_a_cycle_is_refused(examples: Examples, tmp_path: Path) -> None:
    write(tmp_path / "b.yaml", "extends: ./c.yaml\n")
    write(tmp_path / "c.yaml", "extends: ./b.yaml\n")
    with pytest.raises(examples.kind.error, match=r"is a cycle") as caught:
        examples.load(write(tmp_path / "a.yaml", "extends: ./b.yaml\n"))
    assert "c.yaml:1" in str(caught.value)


@both_kinds
def test_a_cycle_through_a_link_is_refused(examples: Examples, tmp_path: Path) -> None:
    path = write(tmp_path / "a.yaml", "extends: ./b.yaml\n")
    (tmp_path / "b.yaml").symlink_to(path)
    with pytest.raises(examples.kind.error, match="is a cycle"):
        examples.load(path)


@both_kinds
def test_the_digest_is_that_of_what_is_said_not_of_who_says_it(examples: Examples, tmp_path: Path) -> None:
    whole = examples.load(write(tmp_path / "whole.yaml", examples.minimal))
    noisy = examples.load(
        write(tmp_path / "noisy.yaml", "# why\n" + examples.minimal.replace(*examples.quoted))
    )
    child = examples.load(write(tmp_path / "child.yaml", "extends: ./whole.yaml\n"))
    other = examples.load(write(tmp_path / "other.yaml", "extends: ./whole.yaml\nenv: {A: '1'}\n"))
    assert whole.digest == noisy.digest == child.digest != other.digest
