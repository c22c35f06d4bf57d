"""One file of a Hydra configuration, as plain data with the line of every key.

Scalars are typed as OmegaConf 2.3 types them (`omegaconf/_utils.py`, get_yaml_loader): YAML 1.1, but `1e-6` is a
number and a date is text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from npu_rl.common.bounded import UnboundedYaml, read_file, require_bounded_yaml
from npu_rl.recipes.trainer_code.config_tree import ConfigFault

_FLOAT = re.compile(
    r"""^(?:[-+]?[0-9]+(?:_[0-9]+)*\.[0-9_]*(?:[eE][-+]?[0-9]+)?
    |[-+]?[0-9]+(?:_[0-9]+)*[eE][-+]?[0-9]+
    |\.[0-9]+(?:_[0-9]+)*(?:[eE][-+][0-9]+)?
    |[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$""",
    re.X,
)
_PACKAGE = re.compile(r"#\s*@package\s+(\S*)\s*$")
_LARGEST = 1 << 20  # bytes; the largest of the pinned trees has 19 kB
_TAG = "tag:yaml.org,2002:"


@dataclass(frozen=True)
class ConfigValue:
    """A value other than a mapping: None, bool, int, float, text or a list."""

    value: Any
    file: str
    line: int


@dataclass
class ConfigSection:
    """A mapping."""

    file: str
    line: int
    items: dict[str, ConfigValue | ConfigSection] = field(default_factory=dict)


ConfigNode = ConfigValue | ConfigSection


@dataclass(frozen=True)
class ConfigFile:
    """One file of the configuration.

    Attributes:
        name: The file as messages show it.
        body: Its content, without the defaults list.
        defaults: The items of the defaults list; None if there is none.
        defaults_line: The line of the defaults list, from 1.
        package: The package of a `# @package` line; None without one.
    """

    name: str
    body: ConfigSection
    defaults: list[Any] | None
    defaults_line: int
    package: str | None


def read_config(path: Path, name: str) -> ConfigFile:
    """Read one file.

    Raises:
        ConfigFault: If it is not a YAML mapping, or too large or too deep.
        OSError: If it can't be read.
    """
    try:
        text = read_file(path, _LARGEST).decode("utf-8", errors="replace")
        require_bounded_yaml(text, _Loader)
        root = yaml.compose(text, Loader=_Loader)
        body = ConfigSection(name, 1) if root is None else _node(root, name)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{name}:{mark.line + 1 if mark else 1}"
        raise ConfigFault(f"it is not valid YAML ({error.problem})", where) from None
    except yaml.YAMLError:
        raise ConfigFault("it has characters that YAML does not allow", f"{name}:1") from None
    except UnboundedYaml as error:
        raise ConfigFault(str(error), f"{name}:{error.line}") from None
    except RecursionError:
        raise ConfigFault("it is nested too deeply", f"{name}:1") from None
    except (ValueError, TypeError, KeyError, AttributeError, IndexError, OverflowError) as error:
        # of PyYAML's constructors: `!!bool x`, `!!int ''`, a list as a key
        why = f"it has a value that can't be read ({type(error).__name__}: {error})"
        raise ConfigFault(why[:200], f"{name}:1") from None
    if not isinstance(body, ConfigSection):
        raise ConfigFault("it holds no mapping", f"{name}:1")
    defaults = body.items.pop("defaults", None)
    if defaults is not None and not (isinstance(defaults, ConfigValue) and isinstance(defaults.value, list)):
        raise ConfigFault("its defaults are not a list", f"{name}:{defaults.line}")
    if defaults is None:
        return ConfigFile(name, body, None, 1, _package(text))
    return ConfigFile(name, body, defaults.value, defaults.line, _package(text))


def _package(text: str) -> str | None:
    """Return the package set by comments at the start of the file, or None."""
    for line in text.splitlines():
        if line.strip() and not line.startswith("#"):
            return None
        if match := _PACKAGE.match(line.strip()):
            return match[1]
    return None


_Loader: Any = type("_Loader", (getattr(yaml, "CSafeLoader", yaml.SafeLoader),), {})
_Loader.add_implicit_resolver(f"{_TAG}float", _FLOAT, list("-+0123456789."))
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != f"{_TAG}timestamp"]
    for first, resolvers in _Loader.yaml_implicit_resolvers.items()
}


def _node(node: yaml.Node, file: str) -> ConfigNode:
    line = node.start_mark.line + 1
    if not isinstance(node, yaml.MappingNode):
        return ConfigValue(_plain(node), file, line)
    branch = ConfigSection(file, line)
    for key, value in _pairs(node):
        child = _node(value, file)
        if isinstance(child, ConfigSection):
            child.line = key.start_mark.line + 1  # not that of its first entry
        branch.items[str(_plain(key))] = child
    return branch


def _pairs(node: yaml.MappingNode) -> Iterator[tuple[yaml.Node, yaml.Node]]:
    """Yield the entries of a mapping. Those of `<<:` come first, since explicit entries replace them."""
    for key, value in node.value:
        if key.tag == f"{_TAG}merge":
            for source in value.value if isinstance(value, yaml.SequenceNode) else [value]:
                yield from _pairs(source)
    for key, value in node.value:
        if key.tag != f"{_TAG}merge":
            yield key, value


def _plain(node: yaml.Node) -> Any:
    if isinstance(node, yaml.MappingNode):
        return {_plain(key): _plain(value) for key, value in _pairs(node)}
    if isinstance(node, yaml.SequenceNode):
        return [_plain(item) for item in node.value]
    if not node.tag.startswith(_TAG):
        return node.value  # a tag of Python; nothing here constructs its object
    return yaml.constructor.SafeConstructor().construct_object(node)
