"""Schema of the manifest, version 1, as typed models.

Texts arrive as YAML scalars kept as text. Unknown keys are refused; every fault is reported at once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, WithJsonSchema

from npu_rl.common.yaml_documents import scalar_types as f
from npu_rl.common.yaml_documents import text_checks
from npu_rl.common.yaml_documents.problems import shown
from npu_rl.common.yaml_documents.strict_model import Fault, Strict
from npu_rl.common.yaml_documents.suggest import did_you_mean
from npu_rl.stack.manifest import schema_rules


class Source(Strict):
    """One place that delivers objects: either `git` or `pypi`."""

    model_config = ConfigDict(json_schema_extra=schema_rules.SOURCE)

    git: f.GitUrl | None = Field(default=None, description="URL of a git repository, without credentials.")
    pypi: f.Release | None = Field(
        default=None, description="A source release on a package index: name==version."
    )
    drop: list[f.RelativePath] = Field(
        default=[], description="Generated paths to leave out of the release (with pypi only)."
    )

    @classmethod
    def rules(cls, data: Mapping[str, Any]) -> Iterator[Fault]:
        """Yield errors of a source that isn't exactly one of its kinds, or drops what it can't."""
        if ("git" in data) == ("pypi" in data):
            yield (), "a source must have either git or pypi"
        if data.get("drop") and "pypi" not in data:
            only = "works with a pypi source only: a git source delivers its tree unchanged"
            yield ("drop",), f"`drop` {only}"


class Merge(Strict):
    """A pull request to merge or pick into a component."""

    ref: f.Ref = Field(description="The commits to merge: refs/pull/N/head or a full commit id.")
    base: f.Ref = Field(description="The branch the pull request is for: refs/heads/... or a full commit id.")
    how: Literal["merge", "pick"] = Field(default="merge", description="Merge it, or pick its own changes.")
    drift: Literal["refuse", "allow"] = Field(
        default="refuse",
        description="Allow or refuse commits from the base branch that the pin does not have.",
    )


class ReplacedPatch(Strict):
    """A patch file of a component that another patch is used instead of."""

    from_: f.Name = Field(alias="from", description="The component whose files hold it.")
    path: f.RelativePath = Field(description="Its path in the component.")
    sha256: f.Sha256 = Field(
        description="Digest of its bytes. A pin with another file is refused: it may no longer need replacing."
    )


class PatchEntry(Strict):
    """Patches to apply: a patchset, a folder or one file. A bare text in the manifest is its `path`."""

    path: Annotated[str, WithJsonSchema(f.PATCH_SHAPE)] = Field(
        description="A bundled patchset component/version, ./path beside the manifest, or a path in `from`."
    )
    strip: f.Count = Field(default=1, description="Leading folders to strip from paths in the patch.")
    directory: f.Directory = Field(default="", description="The folder the patch is applied in.")
    eol: Literal["keep", "lf"] = Field(
        default="keep", description="lf: a patch whose own lines end in CRLF gets LF before it is applied."
    )
    repair: Literal["none", "final-newline"] = Field(
        default="none",
        description="final-newline: a patch that ends in the middle of its last line gets the newline it lacks.",
    )
    from_: f.Name | None = Field(
        default=None, alias="from", description="The component whose files hold the patch."
    )
    replaces: ReplacedPatch | None = Field(
        default=None, description="The damaged patch of a component that this one is used instead of."
    )

    def component_files(self) -> Iterator[tuple[str, str]]:
        """Yield the component and path of each file or folder of another component that the entry reads."""
        if self.from_ is not None:
            yield self.from_, self.path
        if self.replaces is not None:
            yield self.replaces.from_, self.replaces.path

    @classmethod
    def rules(cls, data: Mapping[str, Any]) -> Iterator[Fault]:
        """Yield errors of the path."""
        path = data.get("path")
        if isinstance(path, str):
            try:
                (text_checks.check_path if "from" in data else text_checks.check_patch_path)(path)
            except ValueError as error:
                yield ("path",), str(error)


def _patch_entry(value: object) -> object:
    return {"path": value} if isinstance(value, str) else value


Patch = Annotated[
    PatchEntry, BeforeValidator(_patch_entry), WithJsonSchema(schema_rules.patch(f.PATCH_TEXT_SHAPE))
]


class Take(Strict):
    """A file or folder of a component, and its place in the code tree."""

    from_: f.RelativePath = Field(alias="from", description="Path in the component; '.' is all of it.")
    to: f.RelativePath = Field(description="Path in the code tree; '.' is its top.")


class Dist(Strict):
    """The dist-info written for a component, so that importlib.metadata finds it."""

    name: f.Distribution = Field(description="Name of the distribution.")
    version: f.Version = Field(description="Version (PEP 440).")
    entry_points: dict[f.Group, dict[f.EntryName, f.ObjectName]] = Field(
        default={}, description="Entry points: group -> name -> module:attribute."
    )


class Submodule(Strict):
    """A gitlink that is taken along, from its own repository."""

    git: f.GitUrl = Field(description="URL of the submodule's repository.")
    ref: f.Pin = Field(description="Full commit id.")


class BuildStep(Strict):
    """A command that makes compiled files of a component's own sources; `setup --build` runs it, nothing else does."""

    run: list[f.Text] = Field(
        min_length=1,
        description="The program and its arguments, without a shell; {python} is the interpreter.",
    )
    env: dict[f.Variable, f.AnyText] = Field(default={}, description="Environment of the command.")
    products: list[f.Glob] = Field(
        min_length=1, description="Patterns of the files that it makes, in the component."
    )
    proven: f.Switch = Field(
        default=False,
        description="The command has been run with this pin, and its products were used.",
    )


class Component(Strict):
    """One upstream: where it comes from, at which commit, and what is done to it and taken from it."""

    model_config = ConfigDict(json_schema_extra=schema_rules.COMPONENT)

    sources: list[Source] = Field(min_length=1, description="Where to get it, in order of preference.")
    ref: f.Ref | None = Field(
        default=None, description="A full commit id or refs/...; none if all sources are pypi."
    )
    merge: list[Merge] = Field(default=[], description="Pull requests to merge or pick, in order.")
    expect: f.Pin | None = Field(
        default=None, description="Tree id of the whole repository after the merges; `lock` checks it."
    )
    patches: list[Patch] = Field(default=[], description="Patches to apply after the merges, in order.")
    take: list[Take] = Field(default=[], description="Paths to copy into the code tree.")
    dist: Dist | None = Field(default=None, description="The dist-info to write.")
    checkout: Literal["take", "full"] = Field(
        default="take", description="full: also lay the whole patched repository under src/, for builds."
    )
    build: list[BuildStep] = Field(
        default=[], description="Commands that build it, in order; they need `checkout: full`."
    )
    submodules: dict[f.RelativePath, Submodule] = Field(
        default={}, description="Gitlinks to take along: path -> repository and commit."
    )
    other_submodules: Literal["refuse", "skip"] = Field(
        default="refuse", description="Treatment of the other gitlinks in the taken paths."
    )
    requirements_from: list[f.RequirementFile] | None = Field(
        default=None,
        description="Its files whose requirements count, in place of the device's; setup.py[EXTRA] with an extra.",
    )

    @classmethod
    def rules(cls, data: Mapping[str, Any]) -> Iterator[Fault]:
        """Yield errors of sources and taken paths that don't fit together."""
        yield from _source_rules(data)
        yield from _take_rules(data)
        if data.get("build") and data.get("checkout") != "full":
            yield ("build",), "needs `checkout: full`: a build takes the whole repository"


def _source_rules(data: Mapping[str, Any]) -> Iterator[Fault]:
    sources = [source for source in _items(data.get("sources")) if isinstance(source, Mapping)]
    if not sources:
        return
    if any("git" in source or "bundle" in source for source in sources):
        if "ref" not in data:
            needed = "a git or bundle source needs a full commit id or refs/..."
            yield ("ref",), f"required key 'ref' is missing: {needed}"
        return
    only = "all sources are pypi, and a release has no commits"
    if "ref" in data:
        yield ("ref",), f"must not be set: {only}; the version names the release"
    for key in ("merge", "submodules", "expect"):
        if data.get(key):
            yield (key,), f"needs a git or bundle source: {only}"
    if data.get("checkout") == "full":
        yield ("checkout",), f"'full' needs a git or bundle source: {only}"


def _take_rules(data: Mapping[str, Any]) -> Iterator[Fault]:
    seen: list[tuple[int, str]] = []
    for index, take in enumerate(_items(data.get("take"))):
        if not isinstance(take, Mapping):
            continue
        origin, target = take.get("from"), take.get("to")
        if not isinstance(origin, str) or not isinstance(target, str):
            continue
        # One file may be taken to two places: cann-recipes' launch scripts copy their trainer into verl.
        for other, other_target in seen:
            if target == other_target:
                yield ("take", index, "to"), f"{shown(target)} is also the target of take[{other}]"
        seen.append((index, target))


def _items(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


class Host(Strict):
    """The expected machine. Of it, `setup --install` brings torch and its like, where they are absent."""

    cann: f.Text | None = Field(default=None, description="CANN toolkit.")
    driver: f.Text | None = Field(default=None, description="NPU or GPU driver.")
    firmware: f.Text | None = Field(default=None, description="NPU firmware.")
    kernels: f.Text | None = Field(default=None, description="CANN kernels (operator package).")
    nnal: f.Text | None = Field(default=None, description="NNAL (ATB).")
    python: f.Text | None = Field(default=None, description="Python, as a range such as >=3.10,<3.12.")
    torch: f.Text | None = Field(default=None, description="torch.")
    torch_npu: f.Text | None = Field(default=None, description="torch_npu.")
    torchvision: f.Text | None = Field(default=None, description="torchvision, for the host's torch.")
    torchaudio: f.Text | None = Field(default=None, description="torchaudio, for the host's torch.")
    triton_ascend: f.Text | None = Field(default=None, description="triton-ascend.")
    apex: f.Text | None = Field(default=None, description="apex, of Ascend's build.")
    cuda: f.Text | None = Field(default=None, description="CUDA toolkit.")
    cudnn: f.Text | None = Field(default=None, description="cuDNN.")
    transformer_engine: f.Text | None = Field(
        default=None, description="TransformerEngine, built for the host's torch."
    )
    image: f.Text | None = Field(default=None, description="Container image, best with its digest.")


class Tree(Strict):
    """Changes to the assembled code tree."""

    patches: list[Patch] = Field(default=[], description="Patches to the assembled tree, in order.")


class Override(Strict):
    """A bound that a component declares and the manifest's version of a package breaks."""

    component: f.Name = Field(description="The component that declares the bound.")
    package: f.Distribution = Field(description="The package whose version breaks it.")
    file: f.RequirementFile = Field(description="The component's file that declares it, or setup.py[EXTRA].")
    bound: f.Bound = Field(description="The bound as declared, such as >=2.0.0.")
    why: f.Text = Field(description="Why it is right to break it.")


# Names that reports use besides those of components: the assembled tree, and the runtime package in it.
_RESERVED = {"tree", "npu_rl_runtime"}


class Manifest(Strict):
    """A manifest as written: the components, and the changes to them."""

    model_config = ConfigDict(json_schema_extra=schema_rules.MANIFEST)

    schema_: f.SchemaVersion = Field(alias="schema", description="Version of the manifest's format: 1.")
    name: f.Name = Field(description="Name of the manifest.")
    title: f.Text = Field(description="One line for people.")
    device: Literal["npu", "cuda", "cpu"] = Field(description="Devices that the training runs on.")
    extends: f.Extends | None = Field(
        default=None,
        description="A bundled manifest or a relative path to start from; ~ removes a key of it.",
    )
    host: Host = Field(default=Host(), description="Requirements on the machine.")
    components: dict[f.Name, Component] = Field(min_length=1, description="The upstreams, in order.")
    tree: Tree = Field(default=Tree(), description="Changes to the assembled code tree.")
    requirements: list[f.Requirement] = Field(
        default=[], description="Packages to install (PEP 508): one set that resolves."
    )
    overrides: list[Override] = Field(default=[], description="Bounds that have to be broken, and why.")
    env: dict[f.Variable, f.AnyText] = Field(default={}, description="Environment of the training.")
    runtime: f.Switch = Field(default=True, description="Lay npu_rl_runtime into the code tree.")

    @classmethod
    def rules(cls, data: Mapping[str, Any]) -> Iterator[Fault]:
        """Yield errors across components: reserved, duplicate, unknown and unused names."""
        components = data.get("components")
        if not isinstance(components, Mapping):
            return
        for name in sorted(_RESERVED & set(components)):
            yield ("components", name), f"{name!r} is a reserved name: choose another"
        yield from _duplicate_names(components)
        origins = list(_patch_origins(data, components))
        yield from _unused_components(components, {name for _, name in origins})
        for path, name in origins:
            if name not in components:
                names, near = ", ".join(map(str, components)), did_you_mean(name, list(components))
                yield path, f"unknown component {shown(name)}{near} (components: {names})"


def _unused_components(components: Mapping[str, Any], patch_holders: Container[str]) -> Iterator[Fault]:
    """Yield an error for each component that has no taken paths and no patches for others."""
    for name, component in components.items():
        if not isinstance(component, Mapping) or component.get("take") or name in patch_holders:
            continue
        if component.get("checkout") != "full":
            ways = "set `take` or `checkout: full`, or name it in a patch's `from`"
            yield ("components", name, "take"), f"the component is unused: {ways}"


def _duplicate_names(components: Mapping[str, Any]) -> Iterator[Fault]:
    from packaging.utils import canonicalize_name

    folders: defaultdict[str, list[str]] = defaultdict(list)
    dists: defaultdict[str, list[str]] = defaultdict(list)
    for name, component in components.items():
        folders[name.casefold()].append(name)
        dist = component.get("dist") if isinstance(component, Mapping) else None
        if isinstance(dist, Mapping) and isinstance(dist.get("name"), str):
            dists[canonicalize_name(dist["name"])].append(name)
    for names in folders.values():
        for name in names[1:]:
            yield ("components", name), f"differs from {names[0]!r} only by letter case"
    for names in dists.values():
        for name in names[1:]:
            path = ("components", name, "dist", "name")
            yield path, f"component {names[0]!r} has the same distribution name"


def _patch_origins(data: Mapping[str, Any], components: Mapping[str, Any]) -> Iterator[tuple[Any, str]]:
    patch_holders: list[tuple[tuple[str, ...], Any]] = [(("tree",), data.get("tree"))]
    patch_holders.extend((("components", name), component) for name, component in components.items())
    for path, holder in patch_holders:
        patches = holder.get("patches") if isinstance(holder, Mapping) else None
        for index, entry in enumerate(_items(patches)):
            if not isinstance(entry, Mapping):
                continue
            where = (*path, "patches", index)
            if isinstance(entry.get("from"), str):
                yield (*where, "from"), entry["from"]
            replaced = entry.get("replaces")
            if isinstance(replaced, Mapping) and isinstance(replaced.get("from"), str):
                yield (*where, "replaces", "from"), replaced["from"]
