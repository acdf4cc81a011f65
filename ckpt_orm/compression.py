"""SMALLER: large payloads become zstandard frames, and their tags say so: `msgpack+zstd`.

`compressed(serde)` is a serde around another one. A payload of at least a threshold is compressed
if that saves enough of it; any other one stays what it was, tag and all. So both are read, whatever
was stored when. Encrypted bytes cannot be compressed, so that is done before; and compressed ones
share nothing with others, so the codec does it after it is known that they are no log.

A frame is not believed: it is read only if it says how large its content is, if so many bytes can
come from it at all, and if that is what comes, by a checksum. No more memory is taken than that.

zstandard is an extra, and is imported when it is first needed.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from functools import cache
from threading import local
from typing import Any, TypeGuard

from langgraph.checkpoint.serde.base import CipherProtocol, SerializerProtocol
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from ckpt_orm.errors import MissingExtra

#: What follows the serde's own tag where the payload is compressed.
ZSTD = "+zstd"

#: What precedes the name of the cipher where it was compressed before.
_ZSTD_BEFORE = "zstd+"

#: In bytes. A smaller payload costs more time than its bytes would.
THRESHOLD = 4 * 1024

#: What part of a payload has to be saved. Text loses half and more, random numbers a tenth.
GAIN = 0.2

#: Of 0.9 MB of messages 3 leaves a quarter less than 1, for a millisecond of thirty.
LEVEL = 3

#: In bytes. A column holds no more, so nothing larger is compressed, or taken out of a frame.
LARGEST = 1 << 30

#: A block of a frame has 4 bytes at least, and 128 KiB of content at most.
_MOST_OF_A_BYTE = 1 << 15


class DamagedFrame(ValueError):
    """A payload that is tagged as compressed, and of which nothing can be read."""


class Compressor:
    """Makes frames of payloads that are worth it; safe in threads.

    Args:
        threshold: how many bytes a payload has at least; None compresses nothing.
        gain: what part of its bytes has to be saved, from 0 to 1.
        level: zstandard's, from the fastest to the smallest.

    Raises:
        MissingExtra: where zstandard is not installed, and something is to be compressed.
        ValueError: for a threshold, gain or level that is none.
    """

    def __init__(
        self, threshold: int | None = THRESHOLD, gain: float = GAIN, level: int = LEVEL
    ) -> None:
        if threshold is not None:
            _check(threshold, gain, level)
        self.threshold, self.gain, self.level = threshold, gain, level

    def frame(self, payload: bytes) -> bytes | None:
        """A payload as a frame; None where it stays what it is."""
        size = len(payload)
        if self.threshold is None or not self.threshold <= size <= LARGEST:
            return None
        # A compressor must not be shared by threads, and keeps megabytes; making one takes 20 µs.
        made = _zstandard().ZstdCompressor(level=self.level, write_checksum=True)
        frame: bytes = made.compress(payload)
        return frame if len(frame) <= size * (1 - self.gain) else None


def _check(threshold: int, gain: float, level: int) -> None:
    most = _zstandard().MAX_COMPRESSION_LEVEL
    if threshold < 1 or not 0 <= gain < 1 or not -most <= level <= most:
        raise ValueError(
            f"threshold={threshold}, gain={gain}, level={level}: the threshold is a number of "
            f"bytes, the gain a part of them below 1, and the level from {-most} to {most}"
        )


def content(frame: bytes) -> bytes:
    """What a frame was made of.

    Raises:
        DamagedFrame: where it is not what was made.
        MissingExtra: where zstandard is not installed.
    """
    zstd = _zstandard()
    try:
        size = zstd.frame_content_size(frame)
        if not 0 < size <= min(LARGEST, len(frame) * _MOST_OF_A_BYTE):
            raise DamagedFrame(f"it is compressed, and its frame of {len(frame)} bytes is damaged")
        made: bytes = _kept().decompressor.decompress(frame, allow_extra_data=False)
    except (zstd.ZstdError, MemoryError) as error:
        raise DamagedFrame("it is compressed, and its frame cannot be read") from error
    return made


class _Kept(local):
    """What each thread keeps: a decompressor, which must not be shared, and takes 100 KB."""

    def __init__(self) -> None:
        self.decompressor = _zstandard().ZstdDecompressor()


@cache
def _kept() -> _Kept:
    return _Kept()


def _zstandard() -> Any:
    try:
        import zstandard
    except ImportError:
        raise MissingExtra("zstd", "zstandard") from None
    return zstandard


def compressed(
    serde: SerializerProtocol | None = None,
    *,
    threshold: int | None = THRESHOLD,
    gain: float = GAIN,
    level: int = LEVEL,
) -> SerializerProtocol:
    """A serde that compresses what another one makes of large values.

        SQLAlchemySaver(engine, serde=compressed())
        SQLAlchemySaver(engine, serde=compressed(EncryptedSerializer.from_pycryptodome_aes()))

    It reads what was stored without it, too. What it has stored is read by no other serde: to
    switch it off, give it a threshold of None.

    Args:
        serde: the other one, `JsonPlusSerializer` by default. An `EncryptedSerializer` encrypts
            what was compressed; any other serde that encrypts must be given a `ZstdSerializer`
            to encrypt what that makes, and tell the end of its tag from the rest.
        threshold: how many bytes a payload has at least; None compresses nothing.
        gain: what part of its bytes has to be saved, from 0 to 1.
        level: zstandard's, from the fastest to the smallest.

    Raises:
        MissingExtra: an ImportError, where zstandard is not installed and needed.
        ValueError: for a threshold, gain or level that is none.
    """
    if not isinstance(serde, EncryptedSerializer):
        return ZstdSerializer(serde, threshold=threshold, gain=gain, level=level)
    check_order(serde)
    copied = copy.copy(serde)
    copied.cipher = ZstdCipher(serde.cipher, threshold=threshold, gain=gain, level=level)
    return copied


class ZstdSerializer(SerializerProtocol):
    """Compresses what another serde makes; see `compressed`."""

    def __init__(
        self,
        serde: SerializerProtocol | None = None,
        *,
        threshold: int | None = THRESHOLD,
        gain: float = GAIN,
        level: int = LEVEL,
    ) -> None:
        if isinstance(serde, EncryptedSerializer):
            raise ValueError(_ORDER)
        self.serde = JsonPlusSerializer() if serde is None else serde
        self._compressor = Compressor(threshold, gain, level)

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        """The tag and payload of a value, compressed where it is worth it."""
        return self.smaller(*self.serde.dumps_typed(obj))

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        """The value of a tag and payload, whether it is compressed or not."""
        return self.serde.loads_typed(self.larger(*data))

    def smaller(self, tag: str, payload: bytes) -> tuple[str, bytes]:
        """A tag and payload of the serde inside, compressed where it is worth it."""
        frame = self._compressor.frame(payload)
        return (tag, payload) if frame is None else (tag + ZSTD, frame)

    def larger(self, tag: str, payload: bytes) -> tuple[str, bytes]:
        """A tag and payload as the serde inside has made them."""
        if not tag.endswith(ZSTD):
            return tag, payload
        return tag.removesuffix(ZSTD), content(payload)

    def around(self, serde: SerializerProtocol) -> ZstdSerializer:
        """The same around another serde."""
        copied = copy.copy(self)
        copied.serde = serde
        return copied

    def with_msgpack_allowlist(
        self, extra_allowlist: Iterable[tuple[str, ...] | type]
    ) -> ZstdSerializer:
        """The same around a serde that makes some more types; itself where that changes nothing.

        Raises:
            AttributeError: where the serde inside knows no such list.
        """
        allowed: Any = self.serde
        serde = allowed.with_msgpack_allowlist(extra_allowlist)
        return self if serde is allowed else self.around(serde)


class ZstdCipher(CipherProtocol):
    """Compresses before another cipher encrypts; see `compressed`.

    An `EncryptedSerializer` takes all that follows the first "+" of a tag for the cipher's name, so
    it is the cipher that has to know: the tag is `msgpack+zstd+aes`.
    """

    def __init__(
        self,
        cipher: CipherProtocol,
        *,
        threshold: int | None = THRESHOLD,
        gain: float = GAIN,
        level: int = LEVEL,
    ) -> None:
        self.cipher = cipher
        self._compressor = Compressor(threshold, gain, level)

    def encrypt(self, plaintext: bytes) -> tuple[str, bytes]:
        """The cipher's name and the ciphertext, of what is compressed where it is worth it."""
        frame = self._compressor.frame(plaintext)
        if frame is None:
            return self.cipher.encrypt(plaintext)
        name, ciphertext = self.cipher.encrypt(frame)
        return _ZSTD_BEFORE + name, ciphertext

    def decrypt(self, ciphername: str, ciphertext: bytes) -> bytes:
        """The plaintext, whether it was compressed or not."""
        if not ciphername.startswith(_ZSTD_BEFORE):
            return self.cipher.decrypt(ciphername, ciphertext)
        return content(self.cipher.decrypt(ciphername.removeprefix(_ZSTD_BEFORE), ciphertext))


_ORDER = (
    "what is encrypted cannot be compressed, and an EncryptedSerializer cannot read what a "
    "ZstdSerializer inside it has compressed: write compressed(EncryptedSerializer(…)), which "
    "compresses before it encrypts"
)


def check_order(serde: SerializerProtocol) -> None:
    """Refuse what could be written and not be read.

    Raises:
        ValueError: for a `ZstdSerializer` inside an `EncryptedSerializer`.
    """
    if isinstance(serde, EncryptedSerializer) and isinstance(serde.serde, ZstdSerializer):
        raise ValueError(_ORDER)


def only_compresses(serde: SerializerProtocol) -> TypeGuard[ZstdSerializer]:
    """Whether a serde leaves all but compressing to the one inside."""
    kind = type(serde)
    if kind is JsonPlusSerializer:  # to be an instance of a protocol takes longer to find out
        return False
    return isinstance(serde, ZstdSerializer) and (
        kind.dumps_typed is ZstdSerializer.dumps_typed
        and kind.loads_typed is ZstdSerializer.loads_typed
    )


def innermost(serde: SerializerProtocol) -> SerializerProtocol:
    """The serde that makes the payloads, inside those that do no more than compress them."""
    while only_compresses(serde):
        serde = serde.serde
    return serde
