"""What this process knows of the versions it lately stored or read.

Never trusted: an append says what it expects the chain to be, and the database decides.
"""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock
from typing import Any, NamedTuple

from ckpt_orm.growth.planning import THRESHOLD, WORTHWHILE, Known


class Channel(NamedTuple):
    """Whose versions are meant."""

    thread_id: str
    checkpoint_ns: str
    channel: str
    tenant: Any = None


class Memory:
    """The latest versions of channels, the least lately used forgotten first.

    `payload_bytes` is how many bytes of payloads are kept, one payload for each channel; of the
    others it is only known what they were, for `channels` channels and `versions` of each.
    """

    def __init__(
        self, payload_bytes: int = 64 * 1024 * 1024, channels: int = 4096, versions: int = 3
    ) -> None:
        self._payload_bytes = payload_bytes
        self._channels = channels
        self._versions = versions
        self._lock = Lock()
        self._known: OrderedDict[Channel, tuple[Known, ...]] = OrderedDict()
        #: The channels whose first version has its payload, with its size.
        self._kept: OrderedDict[Channel, int] = OrderedDict()
        self._kept_bytes = 0

    @property
    def payload_bytes(self) -> int:
        """How many bytes of payloads are kept now."""
        return self._kept_bytes

    def recall(self, channel: Channel, version: str | None = None) -> tuple[Known, ...]:
        """What is known of a channel: `version` first, then the newest."""
        with self._lock:
            found = self._known.get(channel, ())
            if found:
                self._known.move_to_end(channel)
            if channel in self._kept:
                self._kept.move_to_end(channel)
        if version is None:
            return found
        return tuple(sorted(found, key=lambda known: known.version != version))

    def remember(self, channel: Channel, known: Known) -> None:
        """A version was committed or read, and is the newest of its channel from now on.

        One too small to be shared with is not kept.
        """
        if WORTHWHILE * known.size < THRESHOLD:
            return
        with self._lock:
            others = [
                other.without_payload()
                for other in self._known.get(channel, ())
                if other.version != known.version
            ]
            self._drop_payload(channel)
            self._known[channel] = (known, *others[: self._versions - 1])
            self._known.move_to_end(channel)
            if known.payload is not None:
                self._kept[channel] = known.size
                self._kept_bytes += known.size
            self._keep_within_bounds()

    def forget(self, thread_id: str) -> None:
        """A thread is gone, or was changed by other means than storing versions."""
        with self._lock:
            for channel in [channel for channel in self._known if channel.thread_id == thread_id]:
                self._drop_payload(channel)
                del self._known[channel]

    def _drop_payload(self, channel: Channel) -> None:
        self._kept_bytes -= self._kept.pop(channel, 0)

    def _keep_within_bounds(self) -> None:
        while self._kept_bytes > self._payload_bytes:
            channel = next(iter(self._kept))
            self._drop_payload(channel)
            self._known[channel] = tuple(known.without_payload() for known in self._known[channel])
        while len(self._known) > self._channels:
            channel, _ = self._known.popitem(last=False)
            self._drop_payload(channel)
