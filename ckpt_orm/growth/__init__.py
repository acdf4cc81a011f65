"""GROWTH: a value that grows costs what it grew.

A version of a channel may be stored as a log: its payload is then a sequence of pieces, each a span
of one chain (a string of bytes that later versions append to) or a literal in the manifest itself.
Nothing here knows a database or LangGraph; every function is pure, every object safe in threads.

    manifests    what a version's row holds, and the payload put together again
    likeness     what two payloads have in common, as a few runs of bytes
    units        where the parts of a payload end, so that moved ones are found
    planning     how a payload is to be stored, given what is known of earlier versions
    folding      many small rows of a chain become one
    memory       what this process knows of the versions it lately stored or read
"""

from ckpt_orm.growth.manifests import Manifest, Span, assemble
from ckpt_orm.growth.memory import Channel, Memory
from ckpt_orm.growth.planning import LARGE, THRESHOLD, End, Grown, Known, plan, renewed

__all__ = [
    "LARGE",
    "THRESHOLD",
    "Channel",
    "End",
    "Grown",
    "Known",
    "Manifest",
    "Memory",
    "Span",
    "assemble",
    "plan",
    "renewed",
]
