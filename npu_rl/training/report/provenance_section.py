"""The report's section on provenance: repositories, pull requests, patches, overrides, packages and variables.

The lock is read as plain data: of whatever version it is, what it has is shown.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from npu_rl.training.report.gather_report import GatheredRun
from npu_rl.training.report.markup import Markup, folded, joined, section, table, tag

_Rows = list[tuple[str | Markup, ...]]


def provenance_section(run: GatheredRun) -> Markup:
    """Return the section on the code and environment of a run, with all ids."""
    lock = run.lock
    parts = [
        _facts(run),
        _part(
            "Repositories", ("component", "source", "ref", "pin", "tree at the pin", "result"), _pins(lock)
        ),
        _part("Submodules", ("component", "path", "source", "pin"), _submodules(lock)),
        _part(
            "Pull requests",
            ("component", "request", "how", "head", "base", "merge base", "commits", "result"),
            _merges(lock),
            "None in the lock." if lock else "Not known without a lock.",
        ),
        _part(
            "Patches",
            ("component", "patch", "file", "sha256", "hunks", "tree after it"),
            _patches(lock),
            "None in the lock." if lock else "Not known without a lock.",
        ),
        _part("Overrides", ("of", "override"), _overrides(run), "None: the recipe as it is."),
        _part("Files of the recipe and the manifest", ("file", "sha256"), _files(run)),
        _part("Environment of the workspace and its host", ("part", "id", "content"), _environment(run)),
        _part("Packages of the interpreter", ("package", "version"), list(run.packages.items())),
        _variables(run),
        _texts(run),
    ]
    return section("Provenance", "provenance", *parts)


def id_code(value: object) -> Markup:
    """Return a complete id in a code font."""
    return tag("code", plain_text(value))


def _facts(run: GatheredRun) -> Markup:
    facts = run.facts
    names = {
        "id": "run id",
        "created": "created",
        "recipe": "recipe",
        "recipe_digest": "digest of the recipe",
        "manifest": "manifest",
        "tree": "code tree",
        "commit": "commit",
        "workspace": "workspace",
    }
    rows: _Rows = [
        (label, id_code(facts[name])) for name, label in names.items() if facts.get(name) is not None
    ]
    lock = run.lock
    rows += [(label, id_code(lock[name])) for name, label in _LOCK.items() if lock.get(name) is not None]
    interpreter = facts.get("interpreter")
    if isinstance(interpreter, Mapping):
        rows.append(
            ("interpreter", id_code(f"Python {interpreter.get('version')}, {interpreter.get('path')}"))
        )
    environment = facts.get("environment")
    if isinstance(environment, Mapping) and environment.get("id") is not None:
        rows.append(("environment", id_code(environment["id"])))
    for key, label in (("accepted_faults", "accepted fault"), ("overruled", "overruled rule")):
        reasons = facts.get(key)
        if isinstance(reasons, Mapping):
            rows += [(f"{label} {name}", plain_text(reason)) for name, reason in reasons.items()]
    return _part("The run", ("what", "id"), rows)


_LOCK = {
    "digest": "digest of the lock",
    "manifest_digest": "digest of the manifest",
    "runtime": "npu_rl_runtime",
}


def _pins(lock: Mapping[str, Any]) -> _Rows:
    rows: _Rows = []
    for name, component in _components(lock):
        sources = [_source(one) for one in _list(component, "sources")]
        rows.append(
            (
                name,
                joined([tag("span", source) for source in sources], "\n"),
                plain_text(component.get("ref", "")),
                id_code(component.get("pin") or next(iter(sources), "")),
                id_code(component.get("tree", "")),
                id_code(component.get("result", "")),
            )
        )
    return rows


def _source(source: Mapping[str, Any]) -> str:
    known = [plain_text(source[key]) for key in ("git", "pypi", "bundle", "sha256") if source.get(key)]
    return " ".join(known) or "?"


def _submodules(lock: Mapping[str, Any]) -> _Rows:
    return [
        (name, plain_text(one.get("path", "")), plain_text(one.get("git", "")), id_code(one.get("pin", "")))
        for name, component in _components(lock)
        for one in _list(component, "submodules")
    ]


def _merges(lock: Mapping[str, Any]) -> _Rows:
    rows: _Rows = []
    for name, component in _components(lock):
        for one in _list(component, "merges"):
            commits = [plain_text(commit) for commit in one.get("commits") or ()]
            older, drift = one.get("older", 0), one.get("drift", 0)
            count = f"{older + len(commits) if isinstance(older, int) else len(commits)}"
            if drift:
                count += f", {plain_text(drift)} of the base branch"
            base = joined([plain_text(one.get("base_ref", "")), id_code(one.get("base_tip", ""))], " ")
            listed = folded(count, tag("pre", "\n".join(commits))) if commits else count
            rows.append(
                (
                    name,
                    plain_text(one.get("ref", "")),
                    plain_text(one.get("how", "")),
                    id_code(one.get("head", "")),
                    base,
                    id_code(one.get("merge_base", "")),
                    listed,
                    id_code(one.get("tree", "")),
                )
            )
    return rows


def _patches(lock: Mapping[str, Any]) -> _Rows:
    series = [(name, one) for name, component in _components(lock) for one in _list(component, "patches")]
    series += [("the tree", one) for one in _list(lock, "tree_patches")]
    return [
        (
            name,
            plain_text(one.get("name", "")),
            plain_text(one.get("file", "")),
            id_code(one.get("sha256", "")),
            plain_text(one.get("hunks", "")),
            id_code(one.get("tree", "")),
        )
        for name, one in series
    ]


def _overrides(run: GatheredRun) -> _Rows:
    return [("the command line", id_code(one)) for one in run.overrides]


def _files(run: GatheredRun) -> _Rows:
    listed = [run.facts.get("recipe_files"), run.lock.get("manifest_files")]
    return [
        (plain_text(name), id_code(digest))
        for files in listed
        if isinstance(files, Mapping)
        for name, digest in files.items()
    ]


def _environment(run: GatheredRun) -> _Rows:
    """Return the parts of the environment that `train --expect` compares."""
    environment = run.facts.get("environment")
    parts = environment.get("parts") if isinstance(environment, Mapping) else None
    return [
        (
            plain_text(name),
            id_code(part.get("id", "")),
            plain_text(json.dumps(part.get("value"), ensure_ascii=False)),
        )
        for name, part in (parts.items() if isinstance(parts, Mapping) else ())
        if isinstance(part, Mapping)
    ]


def _variables(run: GatheredRun) -> Markup:
    """Return the variables of the first attempt, and the differences in later ones."""
    parts: list[Markup] = []
    before: Mapping[str, str] = {}
    for attempt in run.attempts:
        changed = {name: value for name, value in attempt.environment.items() if before.get(name) != value}
        gone = [name for name in before if name not in attempt.environment] if attempt.environment else []
        rows: _Rows = [(name, id_code(value)) for name, value in changed.items()]
        rows += [(name, "no longer set") for name in gone]
        title = f"Variables of attempt {attempt.number}" + (", where they differ" if before else "")
        if rows:
            parts.append(_part(title, ("variable", "value"), rows))
        before = attempt.environment or before
    manifest = run.lock.get("env")
    if isinstance(manifest, Mapping) and manifest:
        rows = [(plain_text(name), id_code(value)) for name, value in manifest.items()]
        parts.append(_part("Variables of the manifest", ("variable", "value"), rows))
    return joined(parts)


def _texts(run: GatheredRun) -> Markup:
    parts = []
    if run.recipe_text:
        parts.append(folded("The resolved recipe", tag("pre", run.recipe_text)))
    required = run.lock.get("requirements")
    if isinstance(required, list) and required:
        text = "\n".join(plain_text(one) for one in required)
        parts.append(folded(f"Requirements of the manifest ({len(required)})", tag("pre", text)))
    for attempt in run.attempts:
        if attempt.command:
            parts.append(
                folded(f"Command of attempt {attempt.number}", tag("pre", "\n".join(attempt.command)))
            )
        if attempt.drift:
            text = json.dumps(attempt.drift, indent=1, ensure_ascii=False)
            parts.append(folded(f"Changes to the tree in attempt {attempt.number}", tag("pre", text)))
    return joined(parts)


def _part(
    title: str, heads: Sequence[str], rows: Sequence[Sequence[str | Markup]], without: str = ""
) -> Markup:
    if not rows:
        return joined([tag("h3", title), tag("p", without, class_="soft")]) if without else Markup("")
    return joined(
        [
            tag("h3", f"{title} ({len(rows)})"),
            table(heads, rows, **({"class_": "pairs"} if len(heads) == 2 else {})),
        ]
    )


def _components(lock: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    components = lock.get("components")
    if isinstance(components, Mapping):
        for name, component in components.items():
            if isinstance(component, Mapping):
                yield plain_text(name), component


def _list(data: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    found = data.get(name)
    return [one for one in found if isinstance(one, Mapping)] if isinstance(found, list) else []


def plain_text(value: object) -> str:
    """Return a value of a record as text; "" for None."""
    return value if isinstance(value, str) else "" if value is None else str(value)
