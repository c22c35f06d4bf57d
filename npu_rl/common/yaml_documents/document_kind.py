"""The two kinds of configuration file, manifest and recipe: their names, bundled files and error classes.

A file is found by a bundled name or a path without being read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from npu_rl.common.bundled import bundled_manifests, bundled_recipes
from npu_rl.common.errors import ManifestError, NpuRlError, RecipeError, UsageError
from npu_rl.common.user_path import user_path
from npu_rl.common.yaml_documents.problems import Invalid, shown
from npu_rl.common.yaml_documents.suggest import did_you_mean
from npu_rl.common.yaml_documents.text_checks import is_manifest_path


@dataclass(frozen=True)
class DocumentKind:
    """One kind of configuration file.

    Attributes:
        noun: Its name in messages; with an s, its folder among the bundled files.
        bundled: Returns the bundled files by name.
        error: Raised for a file that can't be read.
        invalid: Raised for invalid content, with all errors.
    """

    noun: str
    bundled: Callable[[], Mapping[str, Path]]
    error: type[NpuRlError]
    invalid: type[Invalid]

    @property
    def folder(self) -> str:
        """Name of the folder of the bundled files."""
        return f"{self.noun}s"


class InvalidManifest(Invalid, ManifestError):
    """A manifest that does not follow the schema."""

    noun = "manifest"


class InvalidRecipe(Invalid, RecipeError):
    """A recipe that was read, but does not follow the schema. `problems` has every fault found."""

    noun = "recipe"


MANIFEST = DocumentKind("manifest", bundled_manifests, ManifestError, InvalidManifest)
RECIPE = DocumentKind("recipe", bundled_recipes, RecipeError, InvalidRecipe)


def find(kind: DocumentKind, name_or_path: str) -> Path:
    """Return the file of a bundled name or of a path. Raises the kind's error if it does not exist."""
    if not is_manifest_path(name_or_path):
        return find_bundled(kind, name_or_path)
    path = user_path(name_or_path).absolute()
    if not path.is_file():
        raise kind.error(f"No such {kind.noun} file", where=str(path), hint="Check the path.")
    return path


def find_bundled(kind: DocumentKind, name: str, where: str | None = None) -> Path:
    """Return the file of a bundled name. Raises the kind's error; `where` is the file and line that name it."""
    known = kind.bundled()
    if name in known:
        return known[name]
    error = kind.error(
        f"Unknown bundled {kind.noun} {shown(name)}{did_you_mean(name, list(known))}",
        where=where,
        hint=f"`npu-rl {kind.folder} list` prints the names. A path contains '/' or ends in .yaml.",
    )
    if where is None:  # an argument of the command line, not a line of a file
        error.exit_code = UsageError.exit_code
    raise error


def find_manifest(name_or_path: str) -> Path:
    """Return the manifest's file. Raises ManifestError if it does not exist."""
    return find(MANIFEST, name_or_path)
