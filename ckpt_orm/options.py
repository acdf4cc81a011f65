"""The options of a URL, which is what stands behind its `?`: whether its driver takes them.

Told before anything is connected, each by its name and never with its value, which may be a
password. What a driver does not know is refused by some as a TypeError at the first call, and by
others passed over in silence: a file opened to be written that was to be read only, a connection
without a time limit.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from difflib import get_close_matches
from importlib import import_module
from typing import Any

from sqlalchemy import URL

from ckpt_orm.errors import BadURL
from ckpt_orm.urls import QUOTED


def _names(text: str) -> list[str]:
    return text.split()


#: What libpq takes, to tell what was meant; whether it takes an option is asked of libpq itself.
LIBPQ = _names(
    "application_name channel_binding client_encoding connect_timeout dbname "
    "fallback_application_name gssdelegation gssencmode gsslib host hostaddr keepalives "
    "keepalives_count keepalives_idle keepalives_interval krbsrvname load_balance_hosts "
    "max_protocol_version min_protocol_version options passfile password port replication "
    "require_auth requirepeer service sslcert sslcertmode sslcompression sslcrl sslcrldir sslkey "
    "sslmode sslnegotiation sslpassword sslrootcert sslsni ssl_max_protocol_version "
    "ssl_min_protocol_version target_session_attrs tcp_user_timeout user"
)

#: What the other drivers take as the text that it is in a URL.
TEXTS = {
    "asyncpg": _names(
        "command_timeout database direct_tls gsslib host krbsrvname passfile password port "
        "prepared_statement_cache_size service servicefile ssl target_session_attrs user"
    ),
    "pg8000": _names("application_name database host password port replication unix_sock user"),
    "sqlite": _names(
        "cached_statements check_same_thread detect_types isolation_level timeout uri"
    ),
}

#: What is known by another name, or not as text, and what to do instead.
INSTEAD = {
    "asyncpg": {
        "sslmode": "write 'ssl'",
        "dbname": "write 'database'",
        "connect_timeout": "pass connect_args={'timeout': …}",
        "timeout": "pass connect_args={'timeout': …}",
        "statement_cache_size": "pass connect_args={'statement_cache_size': …}",
        "application_name": "pass connect_args={'server_settings': {'application_name': …}}",
        "options": "pass connect_args={'server_settings': {…}}",
        "sslrootcert": "pass connect_args={'ssl': …} with an ssl.SSLContext",
        "sslcert": "pass connect_args={'ssl': …} with an ssl.SSLContext",
        "sslkey": "pass connect_args={'ssl': …} with an ssl.SSLContext",
    },
    "pg8000": {
        "dbname": "write 'database'",
        "sslmode": "pass connect_args={'ssl_context': …}",
        "ssl_context": "pass connect_args={'ssl_context': …}",
        "connect_timeout": "pass connect_args={'timeout': …}",
        "timeout": "pass connect_args={'timeout': …}",
    },
    "libpq": {
        "database": "write 'dbname'",
        "ssl": "write 'sslmode'",
        "timeout": "write 'connect_timeout'",
    },
    "sqlite": dict.fromkeys(
        ("mode", "cache", "immutable", "nolock", "psow", "vfs"),
        "it is SQLite's own, which is read of sqlite:///file:PATH?…&uri=true only",
    ),
}

_MODES = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")
_SESSIONS = ("any", "primary", "standby", "read-write", "read-only", "prefer-standby")
#: A number, and what SQLAlchemy understands as a flag.
_NUMBER = re.compile(r"\s*-?\d+(\.\d*)?\s*", re.ASCII)
_TRUE = _names("true yes on y t 1")
_FLAG = [*_TRUE, *_names("false no off n f 0")]

#: What the text of a value has to be.
VALUES: dict[str, Collection[str] | re.Pattern[str]] = {
    "sslmode": _MODES,
    "ssl": _MODES,
    "target_session_attrs": _SESSIONS,
    "channel_binding": ("disable", "prefer", "require"),
    "gssencmode": ("disable", "prefer", "require"),
    "isolation_level": ("deferred", "immediate", "exclusive"),
    **dict.fromkeys(("connect_timeout", "keepalives", "keepalives_idle"), _NUMBER),
    **dict.fromkeys(("keepalives_interval", "keepalives_count", "tcp_user_timeout"), _NUMBER),
    **dict.fromkeys(("command_timeout", "prepared_statement_cache_size"), _NUMBER),
    **dict.fromkeys(("timeout", "cached_statements", "detect_types"), _NUMBER),
    **dict.fromkeys(("uri", "check_same_thread"), _FLAG),
}


#: An option's name that may be shown.
_NAME = re.compile(r"[A-Za-z]\w{0,39}", re.ASCII)


def check_options(url: URL) -> None:
    """Return where the driver takes all options of a URL; it must be installed.

    Raises:
        BadURL: where it does not.
    """
    family = _family(url)
    if family is None or "plugin" in url.query:  # a plugin may take options of its own
        return
    if _is_uri(url) and not str(url.database).startswith("file:"):
        raise BadURL(
            "has uri=true and a name that is no URI", "write sqlite:///file:PATH?…&uri=true"
        )
    for name, value in url.query.items():
        if (found := _problem(url, family, name, value)) is None:
            continue
        if any("@" in str(text) for text in url.query.values()):
            # Its name may be a part of a password that was cut at an @ of its own.
            raise BadURL(f"has an @ behind its host ({QUOTED})")
        raise BadURL(*found)


def takes_options(url: URL) -> bool:
    """Whether the driver takes all options of a URL."""
    try:
        check_options(url)
    except BadURL:
        return False
    return True


def _family(url: URL) -> str | None:
    """Whose options a driver takes; None where that is not known."""
    driver = url.get_driver_name()
    if driver in ("psycopg", "psycopg_async", "psycopg2"):
        return "libpq"
    if driver in ("pysqlite", "aiosqlite"):
        return "sqlite"
    return driver if driver in TEXTS else None


def _problem(url: URL, family: str, name: str, value: Any) -> tuple[str, str] | None:
    """What is wrong with an option, and what to do."""
    option = f"has an option {name!r}" if _NAME.fullmatch(name) else "has an option"
    if not _takes(url, family, name):
        return f"{option} that {url.get_driver_name()} does not take", _instead(family, name)
    if not isinstance(value, str):
        return None if name == "host" else (f"{option} more than once", "write it once")
    wanted = VALUES.get(name)
    if isinstance(wanted, re.Pattern):
        is_right = wanted.fullmatch(value) is not None
        return None if is_right else (f"{option} whose value is no number", "write one")
    if wanted is None or value.strip().lower() in wanted:
        return None
    return f"{option} whose value is unknown", f"write one of {', '.join(wanted)}"


def _takes(url: URL, family: str, name: str) -> bool:
    """Whether a driver takes an option; what has a URI, SQLite itself reads."""
    if family == "libpq":
        return name in LIBPQ or _libpq_takes(url.get_driver_name(), name)
    return name in TEXTS[family] or _is_uri(url)


def _is_uri(url: URL) -> bool:
    asked = str(url.query.get("uri", "")).strip().lower()
    return url.get_backend_name() == "sqlite" and asked in _TRUE


def _libpq_takes(driver: str, name: str) -> bool:
    """Whether an option that is not listed here is one of the libpq that is there."""
    if driver != "psycopg2":
        defaults = import_module("psycopg").pq.Conninfo.get_defaults()
        return name.encode() in {option.keyword for option in defaults}
    extensions = import_module("psycopg2.extensions")
    try:
        return _NAME.fullmatch(name) is not None and bool(extensions.parse_dsn(f"{name}=''"))
    except import_module("psycopg2").ProgrammingError:
        return False


def _instead(family: str, name: str) -> str:
    """What to do about an option that is not taken."""
    if name in INSTEAD[family]:
        return INSTEAD[family][name]
    known = LIBPQ if family == "libpq" else TEXTS[family]
    near = get_close_matches(name.lower(), known, 1)
    if near:
        return f"write {near[0]!r}"
    if family == "libpq":
        return "leave it out, or correct its name to that of a connection parameter of libpq"
    return f"leave it out, or write one of {', '.join(known)}"
