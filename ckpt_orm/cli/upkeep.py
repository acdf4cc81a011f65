"""`sweep` and `verify`: what an operator runs every night, and when something looks wrong."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn

from ckpt_orm.cli.shared import Prefix, Schema, Url, database, err, fail, failures, out
from ckpt_orm.compression import compressed
from ckpt_orm.packing import Packed
from ckpt_orm.policies import SOURCES, Retention
from ckpt_orm.saver import SQLAlchemySaver
from ckpt_orm.sweeping import BATCH, Swept
from ckpt_orm.verifying import Report
from ckpt_orm.words import counted

#: What a duration's letter means.
UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}

DryRun = Annotated[bool, typer.Option("--dry-run", help="Only tell what would go.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def sweep(
    url: Url = None,
    schema: Schema = None,
    prefix: Prefix = "",
    keep_last: Annotated[
        int | None, typer.Option(min=1, help="Keep the newest ones of each namespace.")
    ] = None,
    max_age: Annotated[
        str | None, typer.Option(help="Keep those that are younger: 30d, 12h, 90m.")
    ] = None,
    every: Annotated[int | None, typer.Option(min=1, help="Keep those of every n-th step.")] = None,
    keep_source: Annotated[
        list[str] | None, typer.Option(help="Keep those made by input, loop, update or fork.")
    ] = None,
    keep_interrupted: Annotated[
        bool, typer.Option(help="Keep those that wait for the answer to an interrupt.")
    ] = True,
    idle_after: Annotated[
        str | None, typer.Option(help="Delete threads whole whose newest one is older: 90d.")
    ] = None,
    thread: Annotated[str | None, typer.Option(help="Only these threads: 'user-*'.")] = None,
    batch: Annotated[
        int, typer.Option(min=1, help="Checkpoints that a transaction deletes.")
    ] = BATCH,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Delete checkpoints that a retention policy does not keep, in small transactions."""
    if all(limit is None for limit in (keep_last, max_age, every, idle_after)):
        fail("this would delete nothing: pass --keep-last, --max-age, --every or --idle-after", 2)
    if not SOURCES.issuperset(keep_source or ()):
        fail(f"--keep-source takes one of {', '.join(sorted(SOURCES))}", 2)
    with failures():
        policy = Retention(
            keep_last=keep_last,
            max_age=_duration("--max-age", max_age),
            every=every,
            keep_sources=frozenset(keep_source or ()),
            keep_interrupted=keep_interrupted,
            idle_after=_duration("--idle-after", idle_after),
            thread_filter=thread,
        )
    with _progress("sweeping") as tell:
        options = {"policy": policy, "dry_run": dry_run, "batch": batch, "on_progress": tell}
        swept: Swept = _called(url, schema, prefix, "sweep", options)
    _print_swept(swept, dry_run=dry_run, as_json=as_json)


def _print_swept(swept: Swept, *, dry_run: bool, as_json: bool) -> None:
    if as_json:
        out.print(json.dumps(vars(swept)))
        return
    out.print(
        f"{'would delete' if dry_run else 'deleted'} {counted(swept.checkpoints, 'checkpoint')}, "
        f"{counted(swept.writes, 'write')} and {counted(swept.blobs, 'blob')} "
        f"of {counted(swept.threads, 'thread')}, "
        f"{swept.ended:,} of them whole: {counted(swept.bytes, 'byte')} of values"
    )
    if swept.skipped:
        _print_skipped(counted(swept.skipped, "thread"), swept.skipped, "sweep")


def _print_skipped(what: str, number: int, next_one: str) -> None:
    were, are = ("was", "is") if number == 1 else ("were", "are")
    out.print(f"{what} {were} in use and {are} left to the next {next_one}")


def verify(
    url: Url = None,
    schema: Schema = None,
    prefix: Prefix = "",
    payloads: Annotated[
        bool, typer.Option(help="Read every value, check its digest, and decode it.")
    ] = True,
    repair: Annotated[
        bool, typer.Option("--repair", help="Delete what no checkpoint needs.")
    ] = False,
    grace: Annotated[
        str, typer.Option(help="How long a thread must have been quiet for a repair.")
    ] = "1h",
    as_json: AsJson = False,
) -> None:
    """Check that all rows fit together and are readable: exit 0, else 1; 2 for unreachable."""
    with failures():
        quiet = _duration("--grace", grace)
    with _progress("verifying") as tell:
        options = {"payloads": payloads, "repair": repair, "grace": quiet, "on_progress": tell}
        report: Report = _called(url, schema, prefix, "verify", options)
    if as_json:
        out.print(json.dumps(report.as_dict()))
    else:
        _print_report(report)
    if not report.ok:
        raise typer.Exit(1)


def _print_report(report: Report) -> None:
    for fault in report.faults:
        mark = "repaired: " if fault.repaired else ""
        out.print(f"{mark}{fault.kind}: {fault.table} {fault.key}: {fault.problem}")
    if report.early:
        out.print(_early(report.early, report.removed))
    found = ", ".join(f"{kind} ({n:,})" for kind, n in sorted(report.left.items())) or "no fault"
    repaired = f", {report.repaired:,} repaired" if report.repaired else ""
    out.print(
        f"{counted(report.threads, 'thread')}, {counted(report.checkpoints, 'checkpoint')}, "
        f"{counted(report.payloads, 'value')}: {found}{repaired}"
    )


def _early(number: int, removed: int) -> str:
    """What is said of writes whose checkpoint was not stored."""
    whose = f"{counted(number, 'write')} of checkpoints that were not stored"
    if removed == number:
        return f"deleted {whose}, as a run that failed leaves them"
    deleted = f", {removed:,} of them deleted" if removed else ""
    return (
        f"{whose}{deleted}: no fault, a run under way has them, and one that failed leaves them to "
        "`--repair`"
    )


def pack(
    url: Url = None, schema: Schema = None, prefix: Prefix = "", as_json: AsJson = False
) -> None:
    """Let the versions of values that grow share their bytes, in place, while savers go on."""
    _convert("pack", url, schema, prefix, as_json=as_json)


def unpack(
    url: Url = None, schema: Schema = None, prefix: Prefix = "", as_json: AsJson = False
) -> None:
    """Store all values whole again, as the official saver reads them."""
    _convert("unpack", url, schema, prefix, as_json=as_json)


def _convert(
    method: str, url: str | None, schema: str | None, prefix: str, *, as_json: bool
) -> None:
    with _progress(f"{method}ing") as tell:
        found: Packed = _called(url, schema, prefix, method, {"on_progress": tell})
    if as_json:
        out.print(json.dumps(vars(found)))
    else:
        _print_packed(method, found)


def _print_packed(method: str, found: Packed) -> None:
    values, threads = counted(found.values, "value"), counted(found.threads, "thread")
    out.print(f"{method}ed {values} of {threads}")
    if found.skipped:
        _print_skipped(f"{found.skipped:,}", found.skipped, "run")


def _called(
    url: str | None,
    schema: str | None,
    prefix: str,
    method: str,
    options: Mapping[str, Any],
) -> Any:
    """A method of a saver on the database, in the colour of the driver that is installed."""
    with failures():
        made = database(url)
        reading = compressed(threshold=None)  # which reads either kind
        saver = SQLAlchemySaver.from_url(made, serde=reading, schema=schema, table_prefix=prefix)
        if made.get_dialect().is_async:
            return asyncio.run(getattr(saver, f"a{method}")(**options))
        with saver:
            return getattr(saver, method)(**options)


@contextmanager
def _progress(what: str) -> Iterator[Callable[[Any], object] | None]:
    """Something to tell progress to: a bar on a terminal, nothing where there is none."""
    if not err.is_terminal:
        yield None
        return
    columns = (SpinnerColumn(), TextColumn(what), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=err, transient=True) as bar:
        task = bar.add_task(what, total=None)

        def tell(found: Any) -> None:
            seen = getattr(found, "seen", None)
            if seen is None:
                bar.update(task, completed=getattr(found, "checkpoints", found.threads))
            else:
                bar.update(task, completed=seen, total=found.total)

        yield tell


def _duration(option: str, text: str | None) -> timedelta | None:
    """A time as it is written on a command line: a number and a unit."""
    if text is None:
        return None
    found = re.fullmatch(r"(\d+)([smhdw])", text)
    if found is None:
        fail(f"{option} {text!r} is no duration: write 90m, 12h, 30d or 8w", 2)
    try:
        return timedelta(**{UNITS[found[2]]: int(found[1])})
    except OverflowError:
        fail(f"{option} {text[:40]!r} is longer than time can be counted: write a shorter one", 2)
