"""Loading manifests: the flagship example, types, `extends:`, local paths and digests."""

from __future__ import annotations

import hashlib
import random
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from npu_rl.common.yaml_documents.document_kind import MANIFEST
from npu_rl.common.yaml_documents.yaml_reader import Plain, read_yaml
from npu_rl.stack.manifest.load_manifest import data_digest, load_manifest
from tests.config.documents import write
from tests.manifest.examples import FLAGSHIP, GOOD, HERE, MINIMAL, PIN


def test_the_flagship_example() -> None:
    loaded = load_manifest(str(FLAGSHIP))
    manifest = loaded.manifest
    verl, vllm = manifest.components.values()
    assert list(manifest.components) == ["verl", "vllm"]
    assert (manifest.name, manifest.device, manifest.host.python) == (
        "deepseek-r1-zero",
        "npu",
        ">=3.10,<3.12",
    )
    assert (len(verl.sources), verl.ref, verl.checkout, vllm.checkout) == (2, PIN, "take", "full")
    assert verl.merge[0].model_dump() == {
        "ref": "refs/pull/3054/head", "base": "refs/heads/main", "how": "pick", "drift": "refuse",
    }  # fmt: skip
    assert vllm.sources[1].drop == ["vllm/_version.py", "vllm/vllm_flash_attn/…"]
    patches = [(p.path, p.from_, p.strip, p.directory) for p in (*verl.patches, *manifest.tree.patches)]
    assert patches == [
        ("verl/55e3c5b", None, 1, ""),
        ("./patches/tree.patch", None, 2, "verl"),
        ("docs/fix.patch", "verl", 1, ""),
    ]
    assert manifest.runtime is True and manifest.env == {"VLLM_USE_V1": "1"}
    assert loaded.files == {"flagship.yaml": hashlib.sha256(FLAGSHIP.read_bytes()).hexdigest()}
    assert not loaded.bundled and loaded.path == FLAGSHIP.resolve()


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


def test_local_paths_follow_the_file_that_wrote_them(tmp_path: Path) -> None:
    base = MINIMAL + "    patches: [./own, ../more/fix.patch, {path: ./a.patch, strip: 0}, verl/0.5.0]\n"
    write(tmp_path / "base" / "base.yaml", base)
    text = "extends: ../base/base.yaml\ntree: {patches: [./tree/]}\n"
    loaded = load_manifest(write(tmp_path / "mine" / "m.yaml", text))
    verl = loaded.manifest.components["verl"]
    paths = [entry.path for entry in verl.patches]
    assert paths == ["../base/own", "../more/fix.patch", "../base/a.patch", "verl/0.5.0"]
    assert loaded.manifest.tree.patches[0].path == "./tree"
    assert loaded.locate(paths[0]).resolve() == (tmp_path / "base" / "own").resolve()
    assert list(loaded.files) == ["m.yaml", "../base/base.yaml"]


def test_paths_in_a_components_own_files_are_left_alone(tmp_path: Path) -> None:
    write(tmp_path / "base" / "base.yaml", MINIMAL + "    patches: [{path: docs/a.patch, from: verl}]\n")
    loaded = load_manifest(write(tmp_path / "m.yaml", "extends: base/base.yaml\n"))
    assert loaded.manifest.components["verl"].patches[0].path == "docs/a.patch"


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
