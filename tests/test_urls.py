"""A URL that is wrong: what is wrong with it and what to write, and never a part of it."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import URL, NullPool, QueuePool, create_engine, make_url
from typer.testing import CliRunner

from ckpt_orm import InvalidConfig, SQLAlchemySaver, UnsupportedDialect, WrongEngine
from ckpt_orm.cli.commands import app
from ckpt_orm.errors import BadURL
from ckpt_orm.urls import DRIVERS, parse

SECRET = "s3cret"

UNREADABLE = [
    "foo",
    "/srv/foo.db",
    "sqlite:foo.db",
    " sqlite://",
    f"host=h password={SECRET}",
    f"postgresql:/u:{SECRET}@h/d",
]
BAD_PORTS = [
    f"postgresql://u:{SECRET}@h:bad/d",
    f"postgresql://u:{SECRET}@h:/d",
    f"postgresql://u:pa@{SECRET}:1@h/d",
    f"postgresql://u:pa@ss:{SECRET}@h/d",
]

CUT = [
    f"postgresql://u:pa@{SECRET}/ss@h/d",
    f"postgresql://u:pa@{SECRET}?ss@h/d",
    f"postgresql://u:pa@{SECRET}?s=s@h/d",
    f"postgresql://u:pa@{SECRET}/s?s@h/d",
    f"postgresql+asyncpg://u:p/a\n@{SECRET}/ss@h:5432/d?a=b",
]
UNSENDABLE = [
    f"postgresql://u:{SECRET}\ud800@h/d",
    f"postgresql://u:{SECRET}%00@h/d",
    f"postgresql://u:{SECRET}@h\x00/d",
    f"postgresql://u:{SECRET}@h/d?application_name=\udce4",
    f"postgresql://u:{SECRET}@h/d?host=a&host=b\x00",
    "sqlite:///a\x00.db",
]


@pytest.mark.parametrize(
    ("url", "says"),
    [
        (None, "is not set"),
        ("", "is not set"),
        (b"sqlite://", "is of type bytes"),
        (Path("a.db"), "is of type PosixPath"),
        *((url, "cannot be read") for url in UNREADABLE),
        ("sqlite://app.db", "names a host"),
        (f"sqlite+aiosqlite://u:{SECRET}@/app.db", "names a host"),
        (f"sqlite:///joe:{SECRET}@h/app", "names a user and a password, which a file has not"),
        (f"sqlite:////joe:{SECRET}@h/app", "names a user and a password, which a file has not"),
        *((url, r"has a port that is no number .* write @ as %40") for url in BAD_PORTS),
        *((url, r"has an @ behind its host .* write @ as %40") for url in CUT),
        *((url, "contains a NUL or a lone surrogate") for url in UNSENDABLE),
        (f"postgresql://u:{SECRET}@h:99999/d", "has a port that is not one of 1 to 65535"),
        (
            URL.create("postgresql", "u", SECRET, "h", 0, "d"),
            "has a port that is not one of 1 to 65535",
        ),
    ],
)
def test_a_url_that_cannot_be_read(url: Any, says: str) -> None:
    with pytest.raises(BadURL, match=f"the database's URL {says}.* sqlite:///file.db") as caught:
        SQLAlchemySaver.from_url(url)
    assert isinstance(caught.value, InvalidConfig)
    assert SECRET not in "".join(traceback.format_exception(caught.value))


def test_an_engine_is_no_url() -> None:
    engine = create_engine("sqlite://")
    with pytest.raises(BadURL, match=r"of type Engine.* SQLAlchemySaver\(engine\)"):
        SQLAlchemySaver.from_url(engine)  # type: ignore[arg-type]


@pytest.mark.parametrize("url", [f"mysql://u:{SECRET}@h/d", f"http+nothing://u:{SECRET}@h/d"])
def test_another_database(url: str) -> None:
    with pytest.raises(UnsupportedDialect, match="an engine or a URL") as caught:
        SQLAlchemySaver.from_url(url)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("name", DRIVERS)
def test_an_unknown_driver(name: str) -> None:
    known = rf"no driver 'psycopgg' for {name}: write {name}:// or .*{DRIVERS[name][1]}"
    with pytest.raises(WrongEngine, match=known) as caught:
        SQLAlchemySaver.from_url(f"{name}+psycopgg://u:{SECRET}@h/d")
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    ("dialect", "meant"),
    [("posgresql", "postgresql"), ("postgressql", "postgresql"), ("sqllite", "sqlite")],
)
def test_a_dialect_that_is_mistyped(dialect: str, meant: str) -> None:
    with pytest.raises(UnsupportedDialect, match=rf"not '{dialect}' \(did you mean '{meant}'\?\)"):
        parse(f"{dialect}://u:{SECRET}@h/d")
    with pytest.raises(UnsupportedDialect, match="not 'mysql': pass"):
        parse("mysql://h/d")


@pytest.mark.parametrize("name", ["postgres", "postgresql"])
def test_known_drivers(name: str) -> None:
    for driver in DRIVERS["postgresql"]:
        url = f"{name}+{driver}://u:{SECRET}@h:5432/d"
        assert parse(url) == URL.create(f"postgresql+{driver}", "u", SECRET, "h", 5432, "d")
        assert SECRET not in repr(SQLAlchemySaver.from_url(url))


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u@realm:pw@h/d",
        "postgresql://u:p/w@h/d",
        "postgresql://u:p?w@h/d",
        "postgresql://u:p%40w@h/d?application_name=me@x",
        "postgresql:///d?user=me@x&host=/tmp",
        "postgresql://h/d@x",
        "sqlite:////srv/a:b@c/d@e.db",
        "sqlite:///C:/a@b/d.db",
        "sqlite:///file:a@b.db?uri=true",
        "sqlite:///caf\udce9.db",
    ],
)
def test_an_at_elsewhere(url: str) -> None:
    assert parse(url) == make_url(url)


@pytest.mark.parametrize("url", ["sqlite:///{}", "sqlite+aiosqlite:///{}", "postgresql://h/d"])
@pytest.mark.parametrize("pool", ["QueuePool", QueuePool, object(), create_engine("sqlite://")])
def test_a_pool_that_is_none(url: str, pool: Any, tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match=r"pool is a .* in sqlalchemy\.pool"):
        SQLAlchemySaver.from_url(url.format(tmp_path / "a.db"), pool=pool)


def test_a_pool_and_arguments_that_are_none(sqlite_url: URL) -> None:
    made: list[Any] = []

    def connect() -> Any:
        import sqlite3

        made.append(sqlite3.connect(str(sqlite_url.database), check_same_thread=False))
        return made[-1]

    nothing: dict[str, Any] = {"connect_args": None, "execution_options": None}
    with SQLAlchemySaver.from_url(sqlite_url, pool=NullPool(connect), **nothing) as saver:
        saver.setup()
        assert saver.count() == 0
    assert made


@pytest.mark.parametrize(
    "command", [["check"], ["verify"], ["sweep", "--keep-last", "1"], ["demo"]]
)
@pytest.mark.parametrize(
    "url", [*UNREADABLE, *BAD_PORTS, *CUT, *UNSENDABLE[:-1], f"mysql://u:{SECRET}@h/d"]
)
def test_the_commands(command: list[str], url: str) -> None:
    done = CliRunner().invoke(app, [*command, "--url", url])
    assert done.exit_code == 2, done.output
    assert done.stderr.startswith("ckpt-orm")
    assert "postgresql" in done.stderr
    assert "Traceback" not in done.output
    assert "SQLAlchemySaver" not in done.output
    assert SECRET not in done.output
