"""Bring the files that pages link outside of docs/ onto the site: a hook of mkdocs.

On GitHub a page may link `../patchsets/README.md`; mkdocs knows files of docs/ only. Each such file gets a place below
repository/ on the site, Markdown as a page, and the links of pages in docs/ and of these are written accordingly.
"""

from __future__ import annotations

import os
import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING

from mkdocs.structure.files import File, InclusionLevel

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
OUTSIDE = "repository"
_LINK = re.compile(r"(?<=\]\()(?!https?://|#|mailto:)([^)\s#]+)(#[^)\s]*)?(?=\))")
_FENCED = re.compile(r"(^ *```.*?^ *```$|`[^`\n]+`)", re.M | re.S)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the files outside of docs/ that a page links, and those that these link, page by page."""
    pages = [Path(config.docs_dir, file.src_uri) for file in files.documentation_pages()]
    seen: set[Path] = set()
    while pages:
        page = pages.pop()
        for target in _targets(page):
            if target in seen or _inside(target, config):
                continue
            seen.add(target)
            files.append(_file(target, config))
            if target.suffix == ".md":
                pages.append(target)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, **_: object) -> str:
    """Point links out of docs/ to where the files are on the site.

    A bar in a table's code is escaped for GitHub; Python-Markdown would show the backslash.
    """
    source = _source(page.file.src_uri, config)
    here = posixpath.dirname(page.file.src_uri)

    def place(found: re.Match[str]) -> str:
        target = Path(os.path.normpath(source.parent / found[1]))
        return posixpath.relpath(_uri(target, config), here or ".") + (found[2] or "")

    parts = _FENCED.split(markdown)
    return "".join(
        _LINK.sub(place, part) if number % 2 == 0 else part if "\n" in part else part.replace("\\|", "|")
        for number, part in enumerate(parts)
    )


def _targets(page: Path) -> list[Path]:
    prose = _FENCED.sub("", page.read_text(encoding="utf-8"))
    found = [Path(os.path.normpath(page.parent / link[1])) for link in _LINK.finditer(prose)]
    return [target for target in found if target.is_file()]


def _file(target: Path, config: MkDocsConfig) -> File:
    uri = _uri(target, config)
    return File.generated(config, uri, abs_src_path=str(target), inclusion=InclusionLevel.NOT_IN_NAV)


def _uri(target: Path, config: MkDocsConfig) -> str:
    if _inside(target, config):
        return target.relative_to(config.docs_dir).as_posix()
    return f"{OUTSIDE}/{target.relative_to(ROOT).as_posix()}"


def _source(uri: str, config: MkDocsConfig) -> Path:
    if uri.startswith(f"{OUTSIDE}/"):
        return ROOT / uri.removeprefix(f"{OUTSIDE}/")
    return Path(config.docs_dir, uri)


def _inside(target: Path, config: MkDocsConfig) -> bool:
    return target.is_relative_to(config.docs_dir)
