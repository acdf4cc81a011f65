"""WHICH database a connection is on, in words that an error may show.

Told by the database itself where it can be, since a URL may leave it to the driver or to a path
that depends on the working directory. Neither a user nor a password is among the words, and nothing
of a URL's query, where a password may be as well.
"""

from __future__ import annotations

from sqlalchemy import Connection, text

from ckpt_orm.migrations.place import Place, quoted


def database_of(connection: Connection, place: Place) -> str:
    """The database that tables of a place are looked for in, and its driver."""
    driver = f"{connection.dialect.name}+{connection.dialect.driver}"
    if connection.dialect.name == "sqlite":
        file = _file_of(connection, place)
        return f"the file {file!r} ({driver})" if file else f"a database in memory ({driver})"
    name = connection.scalar(text("SELECT current_database()"))
    return f"the database {name!r}{_server_of(connection)} ({driver})"


def is_blank(connection: Connection, place: Place) -> bool:
    """Whether it is a SQLite file that holds nothing, as SQLite makes of any name."""
    if connection.dialect.name != "sqlite" or not _file_of(connection, place):
        return False
    version = connection.exec_driver_sql(f"PRAGMA {quoted(_schema(place))}.schema_version")
    return version.scalar() == 0


def _file_of(connection: Connection, place: Place) -> str:
    """The path of a SQLite schema's file, as SQLite has opened it; "" in memory."""
    rows = connection.exec_driver_sql("PRAGMA database_list").all()
    return next((row[2] or "" for row in rows if row[1].lower() == _schema(place).lower()), "")


def _schema(place: Place) -> str:
    return place.schema or "main"


def _server_of(connection: Connection) -> str:
    """The host and port as the URL has them; "" where it leaves them to the driver."""
    url = connection.engine.url
    port = f":{url.port}" if url.port else ""
    return f" on {url.host}{port}" if url.host else ""
