"""Classification of failed transfers by git's messages: retry, use another request, or use the next mirror."""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import Enum

from npu_rl.common.errors import SourceError
from npu_rl.stack.git.messages import GitError


class Fault(Enum):
    """The kind of a transfer's failure, which decides what to try next."""

    REFUSED = "the server does not serve what was requested"  # use another request
    ABSENT = "this mirror has no such repository, or not for us"  # use the next mirror
    DOWN = "this mirror can't be reached now"  # try again, then the next mirror
    CUT = "the response broke off"  # try again, then in another way: some servers just hang up
    OTHER = "git gave up"  # use another request
    LACKING = "the server was reached, and does not have what is locked"  # use the next mirror


class NotDelivered(SourceError):
    """Failure of one mirror; `asked` has its URL after rewriting, without credentials."""

    def __init__(self, component: str, asked: str, why: str, fault: Fault) -> None:
        super().__init__(f"{component}: {asked}", why=why)
        self.asked = asked
        self.fault = fault

    def reason(self, source: str) -> str:
        """Return one line with the mirror and the reason; `source` is the URL in the manifest."""
        rewritten = "" if source == self.asked else f" (rewritten from {source})"
        return f"{self.asked}{rewritten}: {self.why}"


_ADVICE = {
    Fault.LACKING: "The server was reached, but does not have these objects.\n"
    "Update that mirror, or point the URLs at another one: --rewrite FROM=TO\n"
    "If a pull request was force-pushed, its old commits may be gone: review what changed, then run "
    "npu-rl lock --manifest M --update NAME",
    Fault.ABSENT: "Check the URL and your access to it, or point the URLs at another mirror: --rewrite FROM=TO",
}
_NETWORK = "Check the network, or point the URLs at a mirror: --rewrite FROM=TO"


def advice(faults: Iterable[Fault]) -> str:
    """Return hints for these faults, each once."""
    return "\n".join(dict.fromkeys(_ADVICE.get(fault, _NETWORK) for fault in faults))


# The first match counts: a refusal is often followed by "the remote end hung up". One pattern per line and theme.
_PATTERNS = {
    Fault.REFUSED: (
        r"not our ref|unadvertised object|does not allow request|(no such|couldn't find) remote ref"
        r"|not a commit|bad object"
        r"|filtering not recognized|does not support (shallow|filter|--depth)"
    ),
    Fault.DOWN: (
        r"(HTTP|returned error:) (429|5\d\d)\b"
        r"|(Failed|Couldn't|unable|could not) (to )?connect|Connection (refused|timed out)"
        r"|Could(n't| not) resolve (host|proxy)|unable to look up|Temporary failure"
        r"|Operation (timed out|too slow)|Network is unreachable|No route to host"
    ),
    Fault.ABSENT: (
        r"not found|does(n't| not) exist|(appear to be|not|is this) a git|not exported|repository .* not "
        r"|access denied|Authentication failed|could not read (Username|Password)|Permission denied"
        r"|(HTTP|returned error:) 4\d\d\b|CONNECT tunnel failed|from proxy after CONNECT"
        r"|Host key verification failed|SSL certificate|certificate verif|server certificate"
        r"|transport .* not allowed|unable to find remote helper|dubious ownership"
    ),
    Fault.CUT: (
        r"early EOF|premature|unexpected (disconnect|eof)|hung up|Empty reply|transfer closed"
        r"|Connection (reset|closed)|closed the connection|(Recv|Send) failure|GnuTLS recv|SSL_read"
        r"|packet write failed|RPC failed|index-pack (failed|died)|invalid index-pack|fetch-pack: invalid"
        r"|\bcurl (16|18|52|55|56|92)\b|protocol error: bad line|bad pack header|Could not read from remote"
    ),
}


def fault_of(error: GitError) -> Fault:
    """Classify a failed transfer."""
    return _read(error)[0]


def _read(error: GitError) -> tuple[Fault, str | None]:
    """Classify a failed transfer; return the line that decided, if any."""
    if error.stalled is not None:
        return Fault.DOWN, error.why
    lines = (error.stderr or error.why or "").splitlines()
    for fault, pattern in _PATTERNS.items():
        for line in lines:
            if re.search(pattern, line, re.IGNORECASE):
                return fault, line
    return Fault.OTHER, None


def is_retryable(error: GitError) -> bool:
    """Return whether a retry may succeed.

    A remote that never sent any data is not retried: it has already used up the stall timeout once.
    """
    if error.stalled is not None:
        return error.received_data
    return fault_of(error) in (Fault.DOWN, Fault.CUT)


def main_message(error: GitError) -> str:
    """Return the most informative line of git's messages."""
    matched = _read(error)[1]
    if matched is not None:
        return matched
    lines = [line for line in (error.why or error.what).splitlines() if line.strip()]
    important = [line for line in lines if line.startswith(("fatal:", "error:", "remote:"))]
    return (important or lines or [error.what])[0]
