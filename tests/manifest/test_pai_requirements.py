"""The requirements of Pai-Megatron-Patch's manifests: the document's own pins, each package once."""

from __future__ import annotations

from packaging.requirements import Requirement

from npu_rl.stack.manifest.load_manifest import load_manifest

MANIFEST = "pai-megatron-deepseek-v3"
# Line 9 of the document, without `-i`.
PINS = """
modelscope==1.30.0 tensordict==0.10.0 torchdata==0.11.0 codetiming==1.4.0 vllm==0.8.5
transformers==4.56.2 blobfile==3.0.0 numpy==1.26.4 accelerate==1.10.0 wandb==0.19.11 datasets==3.6.0
grpcio==1.71.0 omegaconf==2.3.0 hydra-core==1.3.2 msgspec==0.19.0 mathruler==0.1.0 pylatexenc==2.10
langgraph==0.6.6 ray[default]==2.46.0
"""
WHEEL = "https://pai-vision-data-hz.oss-cn-zhangjiakou.aliyuncs.com/csrc/"


def test_they_are_the_documents() -> None:
    manifest = load_manifest(MANIFEST).manifest
    assert set(manifest.requirements) >= set(PINS.split())
    wanted = [Requirement(text) for text in manifest.requirements]
    assert len({one.name for one in wanted}) == len(wanted)
    wheels = {one.name: one.url for one in wanted if one.url}
    assert set(wheels) == {"flash_attn", "apex"}
    assert all(
        url.startswith(WHEEL) and url.endswith("-cp312-cp312-linux_x86_64.whl") for url in wheels.values()
    )
    assert "torch" not in {one.name for one in wanted}  # it comes with vllm


def test_both_variants_have_the_same() -> None:
    other = load_manifest("pai-megatron-deepseek-v3-mcore-250908").manifest
    ours = load_manifest(MANIFEST).manifest
    assert (other.requirements, other.host, other.env) == (ours.requirements, ours.host, ours.env)
