"""The message of a commit that becomes a patch: its subject, the fields of the header, and the name of its file."""

from __future__ import annotations

from collections.abc import Mapping

from npu_rl.stack.patches.patch_header import FIELDS, STATUS

TRAILER = "Patch"


def message_template(name: str, subject: str, fields: Mapping[str, str]) -> str:
    """Return a commit message with every field of a header; those without a value are left to fill in.

    Args:
        name: COMPONENT/slug.
        subject: One sentence; empty for one that is made of the slug.
    """
    slug = name.partition("/")[2]
    values = {STATUS: "pending", **{field: value for field, value in fields.items() if value}}
    lines = [f"{field}: {values.get(field, '')}".rstrip() for field in FIELDS]
    return "\n".join(
        [subject or slug.replace("-", " ").capitalize(), "", *lines, "", f"{TRAILER}: {name}", ""]
    )
