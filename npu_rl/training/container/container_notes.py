"""Notes on open points of a Dockerfile and a docker run line."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from npu_rl.training.container.base_image import base_image, is_known, is_pinned, wanted_of_base

if TYPE_CHECKING:
    from npu_rl.stack.manifest.load_manifest import LoadedManifest


def of_build(loaded: LoadedManifest) -> Iterator[str]:
    """Yield notes on the Dockerfile of a manifest."""
    name, image = loaded.manifest.name, base_image(loaded)
    if not image:
        yield f"{name} names no image: build with --build-arg BASE=IMAGE, which has {wanted_of_base(loaded)}"
    elif not is_pinned(image):
        yield f"{image} is a tag, which may move: build with --build-arg BASE=NAME@sha256:DIGEST"
    for missing in not_in_the_image(loaded):
        yield f"{missing} is not in the image: build it in a container and keep its wheel"


def of_run(loaded: LoadedManifest, kind: str | None) -> Iterator[str]:
    """Yield notes on the docker run line of a manifest. `kind` is the user's choice, if any."""
    if kind is None and not is_known(loaded):
        yield f"{loaded.manifest.name} names no image of a kind of NPU: the line is for an A3; --kind a2 for an A2"


def not_in_the_image(loaded: LoadedManifest) -> Iterator[str]:
    """Yield the packages of the manifest's host that the Dockerfile doesn't install."""
    version = loaded.manifest.host.transformer_engine
    if version is not None:
        yield f"TransformerEngine {version}"
