"""Many small rows of a chain become one, where reading many is slow.

What is folded is taken from the payload at hand, never read back: possible as far from the chain's
end as the payload covers every byte of it, which for appends is all the way.
"""

from __future__ import annotations

from ckpt_orm.growth.manifests import Piece, Span, size_of


def covered_end(pieces: tuple[Piece, ...], payload: bytes, stop: int) -> tuple[int, bytes]:
    """The last bytes of a chain that ends at `stop`, as far as the pieces cover it without a gap.

    Where they start in the chain, and the bytes.
    """
    placed: list[tuple[int, int, int]] = []
    at = 0
    for piece in pieces:
        if isinstance(piece, Span):
            placed.append((piece.stop, piece.start, at))
        at += size_of(piece)
    start, view, parts = stop, memoryview(payload), []
    for ends, begins, at in sorted(placed, reverse=True):
        if ends < start:
            break
        if begins < start:
            parts.append(view[at : at + start - begins])
            start = begins
    return start, b"".join(reversed(parts))


def in_use(pieces: tuple[Piece, ...]) -> int:
    """How many bytes of the chain the pieces cover; what two of them share counts once."""
    total = reached = 0
    for start, stop in sorted(piece for piece in pieces if isinstance(piece, Span)):
        total += max(0, stop - max(start, reached))
        reached = max(reached, stop)
    return total
