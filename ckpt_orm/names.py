"""What a schema and a prefix may be, so that every name which follows from them can be told apart.

Postgres cuts a name that is too long, and then finds another table under it, or the same one twice.
"""

from __future__ import annotations

from ckpt_orm.documents import fits_text
from ckpt_orm.errors import InvalidConfig

#: How many bytes a name may have, by dialect.
LONGEST = {"postgresql": 63}

#: The longest of the names that begin with the prefix: the key of the version table.
LONGEST_NAME = "ckpt_orm_alembic_version_pkc"


def check_names(schema: str | None, prefix: str, dialect: str = "") -> None:
    """Refuse a schema or prefix that no database can hold, or not the one of a dialect.

    Raises:
        InvalidConfig: for a NUL, a lone surrogate, or too many bytes.
    """
    for what, name in (("schema", schema or ""), ("table prefix", prefix)):
        if not fits_text(name):
            raise InvalidConfig(
                f"the {what} {name[:100]!r} contains a NUL or a lone surrogate, which no name can "
                "hold: remove it"
            )
    if dialect in LONGEST:
        most = LONGEST[dialect]
        _check_length("schema", schema or "", most)
        _check_length("table prefix", prefix, most - len(LONGEST_NAME))


def _check_length(what: str, name: str, most: int) -> None:
    size = len(name.encode())
    if size > most:
        raise InvalidConfig(
            f"the {what} {name[:100]!r} has {size} bytes, with which names would have more than "
            f"the {LONGEST['postgresql']} that Postgres keeps: use one of at most {most}"
        )
