"""The message of a commit that becomes a patch: its subject, the header fields, and the file name."""

from __future__ import annotations

import re

from npu_rl.common.errors import UsageError
from npu_rl.stack.patches.patch_header import FIELDS, STATUS

TRAILER = "Patch"
SLUG = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
_COMPONENT = re.compile(r"[\w.-]+")


def message_template(name: str) -> str:
    """Return a commit message with every field of a header, to be filled in.

    Args:
        name: COMPONENT/slug.

    Raises:
        UsageError: If the name is not COMPONENT/slug.
    """
    component, _, slug = name.partition("/")
    if not (_COMPONENT.fullmatch(component) and SLUG.fullmatch(slug)):
        raise UsageError(
            f"{name!r} is not COMPONENT/SLUG",
            hint="A slug has lower-case words and dashes: verl/keep-kv-cache",
        )
    lines = [f"{field}: {'pending' if field == STATUS else ''}".rstrip() for field in FIELDS]
    return "\n".join([slug.replace("-", " ").capitalize(), "", *lines, "", f"{TRAILER}: {name}", ""])
