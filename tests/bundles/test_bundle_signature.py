"""Signatures of bundles, by real keys and ssh-keygen."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from npu_rl.common.errors import BundleError
from npu_rl.stack.bundles.bundle_names import LIST, SIGNATURE
from npu_rl.stack.bundles.bundle_signature import sign, verify
from tests.bundles.made import MadeStack, Members, members_of, opened, sealed, tar_of
from tests.support import assert_told, ok, run_cli, run_program

pytestmark = pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="no ssh-keygen")


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the keys a and b, and with allowed_signers that names a."""
    folder = tmp_path_factory.mktemp("keys")
    for name in ("a", "b"):
        ok(run_program(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", folder / name]))
    (folder / "allowed_signers").write_text(f"maker@example.org {(folder / 'a.pub').read_text()}")
    return folder


@pytest.fixture
def signed(stack: MadeStack, keys: Path) -> Path:
    if not (keys / "signed.tar").exists():
        stack.bundle(keys / "signed.tar", key=keys / "a")
    return keys / "signed.tar"


def test_a_signed_bundle_has_the_same_id(stack: MadeStack, signed: Path, keys: Path) -> None:
    bundle = opened(signed, keys / "allowed_signers")
    assert (bundle.signer, bundle.is_signed) == ("maker@example.org", True)
    assert bundle.facts.id == stack.made.id
    assert opened(signed).signer is None
    shown = ok(
        run_cli(["bundle", "show", signed, "--verify-with", keys / "allowed_signers"], stack.world.env)
    )
    assert "by maker@example.org" in shown.stdout and "--verify-with" in shown.stdout.splitlines()[-1]


def test_who_is_not_allowed_is_refused(stack: MadeStack, signed: Path, keys: Path, tmp_path: Path) -> None:
    stack.bundle(tmp_path / "b.tar", key=keys / "b")
    with pytest.raises(BundleError, match="not signed by an allowed signer"):
        opened(tmp_path / "b.tar", keys / "allowed_signers")
    with pytest.raises(BundleError, match="is not signed"):
        opened(stack.file, keys / "allowed_signers")
    with pytest.raises(BundleError, match="Missing file of allowed signers"):
        opened(signed, tmp_path / "nobody")
    env = {**stack.world.env, "NPU_RL_STORE": str(tmp_path / "none")}
    words = ["setup", "-m", str(stack.manifest), "-w", f"{tmp_path}/ws", "--bundle", str(stack.file)]
    done = run_cli([*words, "--verify-with", f"{keys}/allowed_signers"], env, tmp_path)
    assert_told(done, "The bundle is not signed", "--sign KEY")
    assert not (tmp_path / "ws").exists()


def test_a_signature_is_of_this_list_alone(signed: Path, keys: Path, tmp_path: Path) -> None:
    members: Members = members_of(signed)
    other = {**members, LIST: members_of_sealed(members)[LIST]}
    (tmp_path / "x.tar").write_bytes(tar_of(other))
    with pytest.raises(BundleError, match="not signed by an allowed signer"):  # before the list is looked at
        opened(tmp_path / "x.tar", keys / "allowed_signers")
    for signature in (b"", b"-----BEGIN SSH SIGNATURE-----\nAAAA\n-----END SSH SIGNATURE-----\n"):
        with pytest.raises(BundleError):
            verify(members[LIST], signature, keys / "allowed_signers")
    assert verify(members[LIST], members[SIGNATURE], keys / "allowed_signers") == "maker@example.org"


def test_a_key_that_is_git_s_signer_first_is_found_in_a_later_line(
    signed: Path, keys: Path, tmp_path: Path
) -> None:
    """ssh-keygen finds a key's first line, whatever the namespace; git's own file of signers has such lines."""
    members, key = members_of(signed), (keys / "a.pub").read_text()
    signers = tmp_path / "signers"
    signers.write_text(f'maker@example.org namespaces="git" {key}other@example.org {key}')
    assert verify(members[LIST], members[SIGNATURE], signers) == "other@example.org"
    signers.write_text(f'maker@example.org namespaces="git" {key}other@example.org namespaces="file" {key}')
    with pytest.raises(BundleError, match="not signed by an allowed signer"):
        verify(members[LIST], members[SIGNATURE], signers)
    with pytest.raises(BundleError, match="not signed by an allowed signer"):
        verify(b"other", members[SIGNATURE], keys / "allowed_signers")


def members_of_sealed(members: Members) -> Members:
    """The members of a bundle with other content, not signed."""
    import io
    import tarfile

    with tarfile.open(fileobj=io.BytesIO(sealed({**members, "manifests/m/more": b"1"}))) as tar:
        return {entry.name: content.read() for entry in tar if (content := tar.extractfile(entry))}


def test_a_key_that_is_none(keys: Path, tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="can't be signed"):
        sign(b"x", tmp_path / "nowhere")
    with pytest.raises(BundleError, match="can't be signed"):
        sign(b"x", keys / "allowed_signers")
