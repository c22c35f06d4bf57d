"""What a message of git says went wrong, whether it is worth another try, and which line is shown."""

from __future__ import annotations

import pytest

from npu_rl.stack.git.messages import GitError
from npu_rl.stack.sources.transfer_errors import Fault, fault_of, is_retryable, main_message

WORDS = {
    "fatal: remote error: upload-pack: not our ref 123": Fault.REFUSED,
    "error: Server does not allow request for unadvertised object 1": Fault.REFUSED,
    "fatal: remote error: upload-pack: not our ref 1\nfatal: the remote end hung up unexpectedly": Fault.REFUSED,
    "fatal: couldn't find remote ref refs/pull/1/head": Fault.REFUSED,
    "fatal: unable to access 'https://h/': The requested URL returned error: 503": Fault.DOWN,
    "error: RPC failed; HTTP 504 curl 22 The requested URL returned error: 504": Fault.DOWN,
    "fatal: unable to access 'https://h/': Could not resolve host: h": Fault.DOWN,
    "fatal: unable to access 'https://h/': Failed to connect to h port 443: Couldn't connect to server": Fault.DOWN,
    "fatal: unable to connect to h:\nh[0: 127.0.0.1]: errno=Connection refused": Fault.DOWN,
    "ssh: connect to host h port 22: Connection timed out\nfatal: Could not read from remote repository.": Fault.DOWN,
    "fatal: unable to access 'https://h/': Operation too slow. Less than 1 bytes/sec": Fault.DOWN,
    "fatal: repository 'https://h/x/' not found": Fault.ABSENT,
    "fatal: Authentication failed for 'https://h/x/'": Fault.ABSENT,
    "fatal: could not read Username for 'https://h': terminal prompts disabled": Fault.ABSENT,
    "fatal: unable to access 'https://h/': The requested URL returned error: 403": Fault.ABSENT,
    "fatal: unable to access 'https://h/': SSL certificate problem: self-signed certificate": Fault.ABSENT,
    "fatal: unable to access 'https://h/': server certificate verification failed. CAfile: none": Fault.ABSENT,
    "fatal: unable to access 'https://h/': Received HTTP code 407 from proxy after CONNECT": Fault.ABSENT,
    "git@h: Permission denied (publickey).\nfatal: Could not read from remote repository.": Fault.ABSENT,
    "Host key verification failed.\nfatal: Could not read from remote repository.": Fault.ABSENT,
    "fatal: protocol error: bad line length character: <!DO": Fault.CUT,
    "fatal: transport 'ext' not allowed": Fault.ABSENT,
    "fatal: remote error: access denied or repository not exported: /x": Fault.ABSENT,
    "fatal: 'https://h/info/refs' not valid: is this a git repository?": Fault.ABSENT,
    "fatal: detected dubious ownership in repository at '/x'": Fault.ABSENT,
    "error: RPC failed; curl 18 transfer closed with outstanding read data remaining": Fault.CUT,
    "error: 512 bytes of body are still expected\nfetch-pack: unexpected disconnect": Fault.CUT,
    "fatal: early EOF\nfatal: fetch-pack: invalid index-pack output": Fault.CUT,
    "fatal: the remote end hung up unexpectedly": Fault.CUT,
    "fetch-pack: unexpected disconnect while reading sideband packet": Fault.CUT,
    "error: RPC failed; curl 92 HTTP/2 stream 5 was not closed cleanly: CANCEL (err 8)": Fault.CUT,
    "fatal: something new": Fault.OTHER,
}


@pytest.mark.parametrize(("words", "fault"), WORDS.items())
def test_faults(words: str, fault: Fault) -> None:
    error = GitError(["fetch"], 128, words)
    assert fault_of(error) is fault
    assert is_retryable(error) is (fault in (Fault.DOWN, Fault.CUT))


def test_the_line_that_says_most_is_shown() -> None:
    for words, line in {
        "git@h: Permission denied.\nfatal: Could not read from remote": "git@h: Permission denied.",
        "fatal: the remote end hung up\nfatal: remote error: not our ref 1": "fatal: remote error: not our ref 1",
        "warning: x\nfatal: something new\nand more": "fatal: something new",
        "no idea": "no idea",
    }.items():
        assert main_message(GitError(["fetch"], 128, words)) == line
    assert main_message(GitError(["fetch"], 128, "")) == "exit status 128"
