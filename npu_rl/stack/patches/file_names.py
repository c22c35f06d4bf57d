"""The names that a patch has for one file, and the single path that they must agree on."""

from __future__ import annotations

import re

from npu_rl.common.errors import PatchError
from npu_rl.stack.patches import patch_paths
from npu_rl.stack.patches.scan_hunks import RawFile, malformed

_EPOCH = re.compile(rb"\t(?:1970-01-01|1969-12-31) \d\d:\d\d:\d\d")


class FileNames:
    """The names of one file, as the patch has them.

    Attributes:
        pair: The names in the `diff --git` line.
        old: The name in the `---` line.
        new: The name in the `+++` line.
    """

    def __init__(self, raw: RawFile, strip: int, directory: str, where: str) -> None:
        self.raw, self.strip, self.directory, self.where = raw, strip, directory, where
        self.pair = None if raw.names is None else patch_paths.git_names(raw.names, strip, where)
        self.old = None if raw.old is None else patch_paths.read_name(raw.old, where)
        self.new = None if raw.new is None else patch_paths.read_name(raw.new, where)
        names = (*(self.pair or ()), self.old, self.new)
        self._named = [name for name in names if name is not None and name != patch_paths.DEV_NULL]

    def is_new(self) -> bool:
        """Return whether the patch creates the file."""
        if self.raw.names is not None:
            return b"new file mode " in self.raw.extended
        return self.old == patch_paths.DEV_NULL or self._is_absent(self.raw.old, self.raw.hunks[0].old_count)

    def is_deleted(self) -> bool:
        """Return whether the patch deletes the file."""
        if self.raw.names is not None:
            return b"deleted file mode " in self.raw.extended
        return self.new == patch_paths.DEV_NULL or self._is_absent(self.raw.new, self.raw.hunks[0].new_count)

    def _is_absent(self, rest: bytes | None, count: int) -> bool:
        """Return whether a side is absent: GNU `diff -N` names an absent file and dates it at the epoch."""
        return not count and rest is not None and _EPOCH.search(rest) is not None

    def path(self) -> str:
        """Return the target path. Raises PatchError unless all names agree on one, and it is safe."""
        if not self._named:
            raise malformed("Both sides are /dev/null", self.where)
        targets = {
            patch_paths.target(name, strip=self.strip, directory=self.directory, where=self.where)
            for name in self._named
        }
        if len(targets) > 1 or (self.raw.names is not None and self.pair is None):
            raise self._disagree()
        return targets.pop()

    def _disagree(self) -> PatchError:
        written = [n for n in (self.raw.names, self.raw.old, self.raw.new) if n is not None]
        return PatchError(
            "The names of a file differ",
            where=self.where,
            why="\n".join(n.decode("utf-8", "replace") for n in written)
            + f"\nname no single file after `strip: {self.strip}`.",
            hint="Set `strip` of the patch entry (1 drops a/ and b/, 0 is for `git diff --no-prefix`). "
            "Write a rename as a deletion and a new file (`git diff --no-renames`).",
        )
