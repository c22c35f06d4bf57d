"""The errors that npu-rl raises, and the exit codes they map to.

Every message answers four questions: what failed, where, why, and what to do next.
"""

from __future__ import annotations

from npu_rl.common.printable import one_line, printable


class NpuRlError(Exception):
    """Base of every error a person may see. `str()` is the whole message, ready to print: secrets are masked.

    Attributes:
        what: One sentence without a final full stop.
        where: file:line, component, patch or hunk.
        why: The cause, as far as it is known.
        hint: What to do next.
    """

    exit_code = 1

    def __init__(
        self, what: str, *, where: str | None = None, why: str | None = None, hint: str | None = None
    ) -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.why = why
        self.hint = hint

    def __str__(self) -> str:
        lines = [one_line(self.what)]
        where = one_line(self.where) if self.where else None
        for label, text in (("where", where), ("why", self.why), ("next", self.hint)):
            if text:
                first, *rest = printable(text).split("\n")
                lines.append(f"  {label + ':':<7}{first}")
                lines.extend(f"         {line}" for line in rest)
        from npu_rl.common.masking import masked_text  # few commands end in an error

        return masked_text("\n".join(lines))


def error_texts(error: Exception) -> dict[str, str]:
    """Return the four answers of an error for a record, unmasked; "" for an unknown one."""
    shown = error if isinstance(error, NpuRlError) else NpuRlError(f"{type(error).__name__}: {error}")
    return {name: getattr(shown, name) or "" for name in ("what", "where", "why", "hint")}


class UsageError(NpuRlError):
    """The command line, or a variable or file that belongs to it, is invalid."""

    exit_code = 2


class ManifestError(NpuRlError):
    """A manifest, or a file it names, is not valid."""


class RecipeError(NpuRlError):
    """A recipe, or a file it names, is not valid."""


class LockError(NpuRlError):
    """A lock is missing, damaged, or of an unsupported version."""


class DriftError(NpuRlError):
    """A merge would bring commits that do not belong to the pull request."""


class WeightsError(NpuRlError):
    """A checkpoint, or one of its files or tensors, can't be used."""


class BundleError(NpuRlError):
    """A bundle is damaged, not signed as required, or made for another lock."""


class SourceError(NpuRlError):
    """No source delivered what a manifest or lock names."""


class PatchError(NpuRlError):
    """A patch is malformed, forbidden, or does not apply."""


class ComposeError(NpuRlError):
    """Trees can't be composed into one."""


class HostError(NpuRlError):
    """The machine lacks something: git, disk, a permission."""

    exit_code = 3


class DataError(NpuRlError):
    """A dataset, or one of its files, is invalid."""


class WorkspaceError(NpuRlError):
    """The workspace is missing, damaged, or differs from its lock."""

    exit_code = 3
