"""The committed list of imports that are known to fail: a YAML file, cause -> modules."""

from __future__ import annotations

from typing import TYPE_CHECKING

from npu_rl.errors import NpuRlError

if TYPE_CHECKING:
    from npu_rl.rehearsal.level_imports import ImportReport


def dump_expected(report: ImportReport) -> str:
    """The list of a report as YAML: causes sorted, modules sorted. Comments are the caller's."""
    import yaml

    causes = {cause: list(modules) for cause, modules in report.causes.items()}
    return yaml.safe_dump(causes, sort_keys=True, width=1000, allow_unicode=True, default_flow_style=False)


def read_expected(text: str, where: str) -> dict[str, tuple[str, ...]]:
    """Parse such a list. `where` names the file in errors. Raises NpuRlError."""
    import yaml

    try:
        data = yaml.safe_load(text)
    except yaml.YAMLError as problem:
        raise NpuRlError(
            "A list of expected imports can't be read", where=where, why=str(problem)
        ) from problem
    data = {} if data is None else data
    if not isinstance(data, dict):
        raise NpuRlError("A list of expected imports is a mapping, cause: [modules]", where=where)
    expected: dict[str, tuple[str, ...]] = {}
    causes: dict[str, str] = {}
    for cause, modules in data.items():
        if not isinstance(modules, list) or not all(isinstance(module, str) for module in modules):
            raise NpuRlError(f"The modules of cause {cause!r} must be a list of names", where=where)
        for module in modules:
            if module in causes:
                why = f"{causes[module]!r} and {cause!r}"
                raise NpuRlError(f"{module} is listed under two causes", where=where, why=why)
            causes[module] = str(cause)
        expected[str(cause)] = tuple(modules)
    return expected
