"""Changes that the new version has in part, or in another form: carried over, they would be there twice."""

from __future__ import annotations

import pytest

from npu_rl.stack.patches.parse_patch import parse_patch
from npu_rl.stack.port.port_patch import port_patch
from tests.port.judging import NAMES, MadeVersion, judged, only

OLD = """\
class Replica:
    def __init__(self, config):
        self.config = config
        self.length = config.length
        self.is_ready = True

    def start(self):
        launch(
            self.config,
            self.length,
            self.is_ready,
        )
        self.count_servers()

    def abort(self):
        for server in self.servers:
            server.abort()

    def close(self):
        self.is_ready = False
        self.servers.clear()
"""
RESUME = "    def resume(self):\n        for server in self.servers:\n            server.resume()\n\n"
CLOSE = "    def close(self):\n"


@pytest.mark.parametrize(
    ("added", "below", "came", "why"),
    [
        # Upstream has one of two methods, and calls it something else inside.
        (
            RESUME + RESUME.replace("resume", "resume_all"),
            CLOSE,
            RESUME.replace("server.resume()", "server.resume(now=True)"),
            "has Replica.resume of its own",
        ),
        # Upstream has the method with other parameters.
        (RESUME, CLOSE, RESUME.replace("(self)", "(self, now)"), "has Replica.resume of its own"),
        # Upstream has the addition under a condition.
        (
            "        self.mask = make_mask(config)\n",
            "        self.is_ready = True\n",
            "        if config.mask:\n            self.mask = make_mask(config)\n",
            "has a part of what it adds: `self.mask = make_mask(config)`",
        ),
        # Upstream assigns the same from something else.
        (
            "        self.mask = make_mask(config)\n",
            "        self.is_ready = True\n",
            "        self.mask: Mask = new_mask(config, device)\n",
            "assigns `self.mask =` there, too",
        ),
        # Upstream has one more argument, and a comma below it.
        (
            "            timeout_of_servers\n",
            "        )\n",
            "            timeout_of_servers,\n            retries,\n",
            "has a part of what it adds: `timeout_of_servers`",
        ),
    ],
)  # fmt: skip
def test_what_came_in_part_or_in_another_form_is_a_conflict(
    added: str, below: str, came: str, why: str
) -> None:
    new = OLD.replace(below, came + below)
    ported = judged(OLD, OLD.replace(below, added + below), new)
    hunk = only(ported)
    assert hunk.state == "conflict" and hunk.why.endswith(why), hunk
    assert not ported.is_clean


def test_a_method_that_came_elsewhere_in_its_class_is_a_conflict() -> None:
    """Its old lines stand as before."""
    other = RESUME.replace("for server in self.servers", "for server in list(self.servers)")
    new = OLD.replace("    def __init__", other + "    def __init__")
    hunk = only(judged(OLD, OLD.replace(CLOSE, RESUME + CLOSE), new))
    assert hunk.state == "conflict" and hunk.why.endswith("has Replica.resume of its own")


def test_a_change_that_changes_nothing_is_a_conflict() -> None:
    """Imports that upstream has put in that order, too, between lines that changed."""
    old = "import os\nimport json\nimport sys\n\nVALUE = 1\n"
    patched = "import os\nimport sys\nimport json\n\nVALUE = 1\n"
    new = "import os\nimport re\nimport sys\nimport json\nfrom a import b\n\nVALUE = 1\n"
    assert only(judged(old, patched, new)).state == "conflict"


def test_equal_lines_of_other_functions_are_no_part_of_it() -> None:
    new = OLD.replace("self.servers.clear()", "self.servers.clear()\n        self.length = 0")
    new = new.replace("        self.config = config\n", "        self.config = dict(config)\n")
    patched = OLD.replace(
        "            server.abort()\n", "            server.abort()\n        self.length = 0\n"
    )
    assert only(judged(OLD, patched, new)).state in ("exact", "moved", "merged")


def test_a_line_at_the_end_of_a_function_that_another_one_follows_now() -> None:
    """The blank line below what it adds stands in the class, what it adds in `__init__`."""
    end = "        self.is_ready = True\n\n"
    patched = OLD.replace(end, end + "        self.mask = None\n\n")
    new = OLD.replace("    def abort", "    def update(self):\n        self.length = 1\n\n    def abort")
    new = new.replace("self.is_ready = True", "self.is_ready = 1")
    ported = judged(OLD, patched, new)
    hunk = only(ported)
    after = (ported.files[0].after or b"").decode()
    assert hunk.inside == "Replica.__init__"
    assert hunk.state == "conflict" or after.index("self.mask") < after.index("def update")


def test_an_empty_file() -> None:
    """It has no hunk, and is judged all the same."""
    text = "diff --git a/p/__init__.py b/p/__init__.py\nnew file mode 100644\nindex 0000000..e69de29\n"
    patch = parse_patch(text.encode(), name="0001-mine.patch")
    for contents, state in (({}, "exact"), ({"p/__init__.py": b""}, "already upstream")):
        ported = port_patch(patch, lambda _: None, MadeVersion(contents), None, NAMES)
        assert (only(ported).state, only(ported).number) == (state, 0)
        assert ported.is_upstream == (state == "already upstream")
    ported = port_patch(patch, lambda _: None, MadeVersion({"p/__init__.py": b"x = 1\n"}), None, NAMES)
    assert not ported.is_clean and only(ported).state == "conflict"
