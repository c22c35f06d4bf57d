from __future__ import annotations

from tests.config.read_once import _yaml_is_parsed_once

__all__ = ["_yaml_is_parsed_once"]
