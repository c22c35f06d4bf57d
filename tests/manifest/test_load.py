"""Loading: the flagship example, `extends:`, digests, and nothing but ManifestError."""

from __future__ import annotations

import hashlib
import json
import random
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npu_rl.config.yaml_reader import Plain, read_yaml
from npu_rl.errors import ManifestError
from npu_rl.manifest.load_manifest import LoadedManifest, data_digest, load_manifest
from npu_rl.manifest.manifest_kind import MANIFEST, InvalidManifest
from tests.manifest.examples import FLAGSHIP, GOOD, HERE, MINIMAL, PIN, ids


def write(path: Path, text: str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_the_flagship_example() -> None:
    loaded = load_manifest(str(FLAGSHIP))
    manifest = loaded.manifest
    assert manifest.schema_ == 1
    assert (manifest.name, manifest.device, manifest.host.python) == (
        "deepseek-r1-zero",
        "npu",
        ">=3.10,<3.12",
    )
    assert list(manifest.components) == ["verl", "vllm"]
    verl, vllm = manifest.components.values()
    assert [source.git for source in verl.sources] == [
        "https://github.com/volcengine/verl.git",
        "https://gitcode.com/GitHub_Trending/ve/verl.git",
    ]
    assert verl.ref == PIN
    merge = verl.merge[0]
    assert (merge.ref, merge.base, merge.how, merge.drift) == (
        "refs/pull/3054/head", "refs/heads/main", "pick", "refuse",
    )  # fmt: skip
    assert verl.patches[0].path == "verl/55e3c5b"
    assert [(take.from_, take.to) for take in verl.take] == [
        ("verl", "verl"),
        ("scripts/converter_hf_to_mcore.py", "tools/converter_hf_to_mcore.py"),
    ]
    assert verl.dist is not None and verl.dist.version == "0.5.0.dev0"
    assert (verl.checkout, vllm.checkout) == ("take", "full")
    assert vllm.sources[1].pypi == "vllm==0.9.1"
    assert vllm.sources[1].drop == ["vllm/_version.py", "vllm/vllm_flash_attn/…"]
    tree = manifest.tree.patches
    assert (tree[0].path, tree[0].strip, tree[0].directory) == ("./patches/tree.patch", 2, "verl")
    assert (tree[0].exclude, tree[0].offset, tree[0].from_) == (["*.md"], "refuse", None)
    assert (tree[1].path, tree[1].from_) == ("docs/fix.patch", "verl")
    assert manifest.overrides[0].breaks == "vllm"
    assert manifest.env == {"VLLM_USE_V1": "1"}
    assert manifest.runtime is True
    assert loaded.files == {"flagship.yaml": hashlib.sha256(FLAGSHIP.read_bytes()).hexdigest()}
    assert not loaded.bundled and loaded.path == FLAGSHIP.resolve()


@pytest.mark.parametrize("path", GOOD, ids=ids)
def test_good_examples_load_and_stay_text(path: Path) -> None:
    loaded = load_manifest(str(path))
    assert loaded.manifest.components
    assert len(loaded.digest) == 64


def test_scalars_are_typed_by_the_schema_not_by_yaml() -> None:
    manifest = load_manifest(str(HERE / "good" / "everything.yaml")).manifest
    dist = manifest.components["sdist-only"].dist
    assert dist is not None and dist.version == "3.10"
    assert manifest.host.python == "3.10"
    assert manifest.env["SWITCH"] == "true" and manifest.env["EMPTY"] == ""
    assert manifest.runtime is False
    assert manifest.components["sdist-only"].patches[2].strip == 0


def test_a_child_is_laid_over_its_parent() -> None:
    loaded = load_manifest(str(HERE / "good" / "child.yaml"))
    manifest = loaded.manifest
    assert list(manifest.components) == ["verl", "mindspeed"]
    verl = manifest.components["verl"]
    assert verl.ref == "54c9b7364c2d188b2ba4107404cfa3c2b446df19"
    assert verl.merge == [] and verl.patches == [] and len(verl.take) == 2
    assert (manifest.name, manifest.device) == ("child", "npu")
    assert manifest.host.cann is None
    assert manifest.env == {"VLLM_USE_V1": "1", "HCCL_BUFFSIZE": "300"}
    assert list(loaded.files) == ["child.yaml", "flagship.yaml"]
    assert loaded.where("components", "verl", "ref").endswith("child.yaml:9")
    assert loaded.where("components", "verl", "take", 0, "from").endswith("flagship.yaml:14")
    assert loaded.where("components", "verl", "dist", "nobody").endswith("flagship.yaml:15")


def test_faults_of_a_parent_name_the_file_that_wrote_them(tmp_path: Path) -> None:
    write(tmp_path / "base" / "base.yaml", MINIMAL.replace("to: verl", "to: /verl").replace("cpu", "gpu"))
    child = write(tmp_path / "m.yaml", "extends: base/base.yaml\nname: -child\ncomponents: {nobody: ~}\n")
    with pytest.raises(InvalidManifest) as caught:
        load_manifest(child)
    found = [(Path(p.file).relative_to(tmp_path).as_posix(), p.line) for p in caught.value.problems]
    assert found == [("m.yaml", 2), ("m.yaml", 3), ("base/base.yaml", 4), ("base/base.yaml", 9)]


def test_local_paths_follow_the_file_that_wrote_them(tmp_path: Path) -> None:
    base = MINIMAL.replace("{git: https://example.org/verl.git}", "{bundle: verl.bundle}")
    base += "    patches: [./own, ../more/fix.patch, {path: ./a.patch, strip: 0}, verl/0.5.0]\n"
    write(tmp_path / "base" / "base.yaml", base)
    text = "extends: ../base/base.yaml\ntree: {patches: [./tree/]}\n"
    loaded = load_manifest(write(tmp_path / "mine" / "m.yaml", text))
    verl = loaded.manifest.components["verl"]
    assert verl.sources[0].bundle == "../base/verl.bundle"
    paths = [entry.path for entry in verl.patches]
    assert paths == ["../base/own", "../more/fix.patch", "../base/a.patch", "verl/0.5.0"]
    assert loaded.manifest.tree.patches[0].path == "./tree"
    assert loaded.locate(paths[0]).resolve() == (tmp_path / "base" / "own").resolve()
    assert list(loaded.files) == ["m.yaml", "../base/base.yaml"]


def test_paths_in_a_components_own_files_are_left_alone(tmp_path: Path) -> None:
    write(tmp_path / "base" / "base.yaml", MINIMAL + "    patches: [{path: docs/a.patch, from: verl}]\n")
    loaded = load_manifest(write(tmp_path / "m.yaml", "extends: base/base.yaml\n"))
    assert loaded.manifest.components["verl"].patches[0].path == "docs/a.patch"


def test_a_manifest_reached_through_a_linked_folder(tmp_path: Path) -> None:
    write(tmp_path / "base.yaml", MINIMAL)
    write(tmp_path / "real" / "deep" / "m.yaml", "extends: ../../base.yaml\n")
    (tmp_path / "link").symlink_to(tmp_path / "real" / "deep")
    loaded = load_manifest(str(tmp_path / "link" / "m.yaml"))
    assert list(loaded.files) == ["m.yaml", "../../base.yaml"]


def chain(folder: Path, length: int) -> str:
    write(folder / "0.yaml", MINIMAL)
    for index in range(1, length + 1):
        write(folder / f"{index}.yaml", f"extends: ./{index - 1}.yaml\n")
    return str(folder / f"{length}.yaml")


def test_eight_parents_and_no_more(tmp_path: Path) -> None:
    assert len(load_manifest(chain(tmp_path, 8)).files) == 9
    with pytest.raises(ManifestError, match="more than 8 levels of `extends:`"):
        load_manifest(chain(tmp_path, 9))


def test_a_cycle_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "b.yaml", "extends: ./c.yaml\n")
    write(tmp_path / "c.yaml", "extends: ./a/../b.yaml\n".replace("a/../", ""))
    with pytest.raises(ManifestError, match=r"is a cycle") as caught:
        load_manifest(write(tmp_path / "a.yaml", "extends: ./b.yaml\n"))
    assert "c.yaml:1" in str(caught.value)


def test_a_cycle_through_a_link_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.yaml", "extends: ./b.yaml\n")
    (tmp_path / "b.yaml").symlink_to(path)
    with pytest.raises(ManifestError, match="is a cycle"):
        load_manifest(path)


def same(left: LoadedManifest, right: LoadedManifest) -> bool:
    return left.digest == right.digest


def test_the_digest_is_that_of_the_merged_data(tmp_path: Path) -> None:
    whole = load_manifest(write(tmp_path / "whole.yaml", MINIMAL))
    noisy = load_manifest(write(tmp_path / "noisy.yaml", "# a comment\n" + MINIMAL.replace("cpu", '"cpu"')))
    child = load_manifest(write(tmp_path / "child.yaml", "extends: ./whole.yaml\n"))
    other = load_manifest(write(tmp_path / "other.yaml", MINIMAL.replace("cpu", "npu")))
    assert same(whole, noisy) and same(whole, child) and not same(whole, other)


def test_the_digest_is_stable_across_releases(tmp_path: Path) -> None:
    digest = load_manifest(write(tmp_path / "m.yaml", MINIMAL)).digest
    assert digest == "9bf3d1b5befbdee84b4faef98652c249ff227e1d42c6a6ff5bd8b5f3c3a79b70"


def shuffled(value: Plain, rng: random.Random, top: bool = True) -> Plain:
    if isinstance(value, list):
        return [shuffled(item, rng, False) for item in value]
    if not isinstance(value, dict):
        return value
    keys = list(value)
    rng.shuffle(keys)
    result: dict[str, Plain] = {key: shuffled(value[key], rng, False) for key in keys}
    components = value.get("components")
    if top and isinstance(components, dict):
        result["components"] = {name: shuffled(item, rng, False) for name, item in components.items()}
    return result


@given(st.sampled_from(GOOD), st.integers())
def test_the_digest_does_not_depend_on_the_order_of_keys(path: Path, seed: int) -> None:
    data = read_yaml(path.read_bytes(), path.name, MANIFEST).data
    other = shuffled(data, random.Random(seed))
    assert isinstance(other, dict)
    assert data_digest(data) == data_digest(other)


def test_the_digest_depends_on_the_order_of_components_and_lists() -> None:
    data = read_yaml(FLAGSHIP.read_bytes(), "m", MANIFEST).data
    components = data["components"]
    assert isinstance(components, dict)
    turned = {**data, "components": dict(reversed(components.items()))}
    assert data_digest(turned) != data_digest(data)
    requirements = data["requirements"]
    assert isinstance(requirements, list)
    assert data_digest({**data, "requirements": requirements[::-1]}) != data_digest(data)


LINES = [line for path in GOOD for line in path.read_text(encoding="utf-8").splitlines()]


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(GOOD),
    st.lists(
        st.tuples(
            st.integers(0, 40),
            st.sampled_from(["drop", "insert", "text"]),
            st.sampled_from(LINES),
            st.text(max_size=8),
        )
    ),
)
def test_a_damaged_manifest_raises_nothing_but_manifest_error(
    path: Path, edits: list[tuple[int, str, str, str]]
) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    for position, kind, line, text in edits:
        at = position % (len(lines) + 1)
        if kind == "drop":
            del lines[at : at + 1]
        else:
            lines.insert(at, line if kind == "insert" else text)
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "m.yaml"
        target.write_text("\n".join(lines), encoding="utf-8", errors="replace")
        try:
            assert load_manifest(str(target)).manifest.components
        except ManifestError as error:
            assert "m.yaml" in str(error)


WORDS = """schema name title device host components tree requirements overrides env runtime verl sources git
pypi bundle drop ref merge base how drift patches path strip directory exclude offset from take to dist
version entry_points checkout submodules"""
KEYS = st.sampled_from(WORDS.split()) | st.text(max_size=5)
VALUES = st.recursive(
    st.text(max_size=10)
    | st.sampled_from([PIN, "refs/heads/main", "a/b", ".", "1", "full", "./x", "x.bundle"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=20,
)


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(KEYS, VALUES, max_size=8))
def test_any_tree_of_known_keys_raises_nothing_but_manifest_error(data: dict[str, object]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "m.yaml"
        target.write_text(json.dumps(data), encoding="utf-8")
        try:
            assert load_manifest(str(target)).manifest.components
        except ManifestError as error:
            assert "m.yaml:" in str(error)
