"""The tests that ported patches name in Verified-By, run on the ported tree by the user's interpreter."""

from __future__ import annotations

import os
import re
import shlex
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from npu_rl.common.bundled import data_root
from npu_rl.common.environment_variables import TREE
from npu_rl.common.errors import HostError
from npu_rl.common.process import run_quietly
from npu_rl.stack.patches.patch_header import VERIFIED_BY, Header, is_test_id
from npu_rl.stack.sources.progress import Notify

_HOUR = 3600.0
_SHOWN = 3  # failed tests of a patch, as pytest's summary has them
_PASSED = re.compile(r"\b[0-9]+ passed\b")
_NOT_RUN = re.compile(r"\b[0-9]+ (skipped|xfailed|xpassed|deselected)\b")
_NOT_RUN_BY_UNITTEST = re.compile(r"(?:OK \(.*(?:skipped|expected failures)=.*\)|NO TESTS RAN(?: \(.*\))?)")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")  # FORCE_COLOR, or a project's own addopts
GREEN, UNPROVEN = "green", "unproven"


@dataclass(frozen=True)
class PatchProof:
    """The outcome of a patch's tests; `command` is empty if there were no tests to run."""

    patch: str
    command: str
    outcome: str
    why: str = ""

    @property
    def is_green(self) -> bool:
        """Return whether the test ran and passed."""
        return self.outcome == GREEN


@dataclass(frozen=True)
class VerifiedBy:
    """A runner of the patches' tests.

    Attributes:
        python: The interpreter.
        tree: The ported tree.
        beside: The folder of the manifest, searched first for a user's own tests.
        edited: The files that ported patches change.
        changed: Returns the files in which the tree is not the ported one.
    """

    python: str
    tree: Path
    beside: Path
    edited: frozenset[str]
    changed: Callable[[], Sequence[str]]
    notify: Notify

    def run(self, headers: Mapping[str, Header]) -> list[PatchProof]:
        """Return the outcome of each patch's tests, in order; each is reported at once, since it may take minutes.

        After a test that changes the tree none is run: it would not run over the ported tree.
        """
        proofs: list[PatchProof] = []
        spoiled = ""
        for name, header in headers.items():
            proof = PatchProof(name, "", UNPROVEN, spoiled) if spoiled else self._proof(name, header)
            if not spoiled and (paths := self.changed()):
                spoiled = f"not run: a test of {name} has changed the tree"
                proof = replace(
                    proof, outcome=UNPROVEN, why=f"its test changed the tree: {', '.join(paths[:_SHOWN])}"
                )
            proofs.append(proof)
            self.notify(f"{name}: {proof.outcome}")
        return proofs

    def _proof(self, name: str, header: Header) -> PatchProof:
        value = " ".join(header.fields.get(VERIFIED_BY, "").split())
        if not value:
            return PatchProof(name, "", UNPROVEN, f"it has no {VERIFIED_BY}")
        if all(map(is_test_id, header.tests)):
            return self._tests(name, header.tests)
        return self._command(name, value)

    def _tests(self, name: str, tests: Sequence[str]) -> PatchProof:
        """Run the tests of a patch by one pytest, in the folder that has their files."""
        files = dict.fromkeys(test.partition("::")[0] for test in tests)
        roots = (self.beside, data_root())
        lacking = {root: [file for file in files if not (root / file).is_file()] for root in roots}
        root = next((root for root in roots if not lacking[root]), None)
        if root is None:
            fewest = min(lacking.values(), key=lambda absent: len(absent))
            absent = ", ".join(fewest)
            return PatchProof(name, "", UNPROVEN, f"its tests are not here: {absent}")
        words = [self.python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests]
        proof = self._ran(name, words, root)
        return self._with_edited(proof, list(files))

    def _with_edited(self, proof: PatchProof, files: Sequence[str]) -> PatchProof:
        """Return a proof with a note on test files, or folders with tests, that patches of this port change."""
        named = [file.partition("::")[0].removeprefix(f"{self.tree}/") for file in files]
        edited = [
            path
            for path in sorted(self.edited)
            if any(path == one or path.startswith(f"{one}/") for one in named)
        ]
        if edited:
            note = f"{', '.join(edited)} was edited by a patch of this port"
            return replace(proof, why=f"{proof.why}; {note}".removeprefix("; "))
        return proof

    def _command(self, name: str, value: str) -> PatchProof:
        try:
            words = shlex.split(value)
        except ValueError as error:
            return PatchProof(name, "", UNPROVEN, f"{VERIFIED_BY} is not a command: {error}")
        named = re.compile(rf"\$({TREE.name}\b|{{{TREE.name}}})")
        words = [named.sub(lambda _: str(self.tree), word) for word in words]
        if words[0] in ("python", "python3"):
            words[0] = self.python
        return self._with_edited(self._ran(name, words, self.beside), words[1:])

    def _ran(self, name: str, words: Sequence[str], folder: Path) -> PatchProof:
        shown = shlex.join(words)
        self.notify(f"{name}: {TREE.name}={shlex.quote(str(self.tree))} {shown}   # in {folder}")
        with tempfile.TemporaryDirectory(prefix="npu-rl-port-") as byte_code:
            env = {**os.environ, TREE.name: str(self.tree), "PYTHONPYCACHEPREFIX": byte_code}
            if os.sep in self.python:  # so that a command's `python` is this one
                env["PATH"] = os.pathsep.join([str(Path(self.python).parent), env.get("PATH", "")])
            try:
                done = run_quietly(list(words), env, folder, _HOUR)
            except HostError as error:
                return PatchProof(name, shown, UNPROVEN, error.why or error.what)
        is_pytest = any(Path(word).name in ("pytest", "py.test") for word in words)
        return PatchProof(name, shown, *_outcome(done.code, done.stdout, done.stderr, is_pytest))


def _outcome(code: int, stdout: str, stderr: str, is_pytest: bool) -> tuple[str, str]:
    stdout, stderr = (_COLOUR.sub("", text) for text in (stdout, stderr))
    last = next((line.strip() for line in reversed(stdout.splitlines()) if line.strip()), "")
    reported = next((line.strip() for line in reversed(stderr.splitlines()) if line.strip()), "")
    if _NOT_RUN_BY_UNITTEST.fullmatch(reported):  # exit status 5 since Python 3.12 where nothing ran
        return UNPROVEN, f"not all of it ran: {reported}"
    if code:
        failed = [line for line in stdout.splitlines() if line.startswith(("FAILED ", "ERROR "))]
        said = [last, *failed[:_SHOWN]] if is_pytest and last else [reported or last]
        return UNPROVEN, f"exit status {code}: {'; '.join(said)}"
    if is_pytest and (not _PASSED.search(last) or _NOT_RUN.search(last)):
        return UNPROVEN, f"not all of it ran: {last}"
    return GREEN, ""
