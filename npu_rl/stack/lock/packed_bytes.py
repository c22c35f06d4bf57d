"""Encoding of bytes as text of a lock (zlib, base64), with limits on the unpacked size."""

from __future__ import annotations

import base64
import zlib

MiB = 1024 * 1024


class Allowance:
    """Limit on a lock's unpacked size in bytes: 32 MB of text can contain 24 GB of zeros.

    each: of one text. total: of all texts that are unpacked under one allowance.
    """

    def __init__(self, *, each: int, total: int) -> None:
        self._each, self._total, self._left = each, total, total

    def unpack(self, text: str) -> bytes:
        """Unpack the text of `pack_bytes`. Raises ValueError for invalid text, or beyond the allowance."""
        unpacking = zlib.decompressobj()
        try:
            data = unpacking.decompress(base64.b64decode(text), self._each)
        except zlib.error as error:
            raise ValueError(str(error)) from error
        if not unpacking.eof:
            raise ValueError(f"it unpacks to more than {self._each} bytes" if data else "it is truncated")
        self._left -= len(data)
        if self._left < 0:
            raise ValueError(f"the lock unpacks to more than {self._total} bytes")
        return data


def pack_bytes(data: bytes) -> str:
    """Return bytes as text for a lock."""
    return base64.b64encode(zlib.compress(data, 9)).decode()
