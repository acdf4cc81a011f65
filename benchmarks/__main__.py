"""`python -m benchmarks`: measure ours and the official savers, and say what was reached."""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from servers import postgres_server

from benchmarks import agents, crowds, lines, links, report, shapes
from benchmarks.contestants import Arena, accepted
from benchmarks.results import Results, Row, about
from benchmarks.scale import SMOKE, Scale

CASES = ("W1", "W2", "W3", "W4", "W5", "W6", "W7", "W8")
DATABASES = ("postgres", "sqlite")

#: What measures which cases.
BENCHES: list[tuple[tuple[str, ...], Callable[[Arena, Scale, list[str]], Iterator[Row]]]] = [
    (("W1", "W2", "W3", "W4"), lines.measure),
    (("W5",), lambda arena, scale, _: agents.measure(arena, scale)),
    (("W6",), lambda arena, scale, _: crowds.measure(arena, scale)),
    (("W7",), lambda arena, scale, _: shapes.measure(arena, scale)),
    (("W8",), lambda arena, scale, _: links.measure(arena, scale)),
]

app = typer.Typer(help=__doc__, pretty_exceptions_enable=False)
out = Console(highlight=False, soft_wrap=True)


@app.callback(invoke_without_command=True)
def everything(context: typer.Context) -> None:
    """Without a command: run all cases on both databases."""
    if context.invoked_subcommand is None:
        run()


@app.command()
def run(
    cases: Annotated[str, typer.Option(help="Such as W1,W3.")] = ",".join(CASES),
    database: Annotated[str, typer.Option(help="postgres, sqlite or both.")] = ",".join(DATABASES),
    steps: Annotated[
        str | None, typer.Option(help="Lengths of the conversations, such as 50,200,500,2000.")
    ] = None,
    messages_per_step: Annotated[
        int, typer.Option(min=1, help="Messages a step appends; with 2, 500 steps make 0.8 MB.")
    ] = 1,
    ours: Annotated[
        list[str] | None,
        typer.Option(help="A keyword argument for our saver, as key=value; may be repeated."),
    ] = None,
    async_driver: Annotated[
        str, typer.Option(help="Of our async calls: psycopg_async, asyncpg, or psycopg in threads.")
    ] = "psycopg_async",
    seed: Annotated[int, typer.Option(help="Of the order in which contestants take turns.")] = 7,
    note: Annotated[str, typer.Option(help="A sentence that the report begins with.")] = "",
    smoke: Annotated[
        bool, typer.Option("--smoke", help="As little as shows that everything runs.")
    ] = False,
    out_folder: Annotated[
        Path | None, typer.Option("--out", help="Write results.json, results.md and plots here.")
    ] = None,
) -> None:
    """Measure; exit with 1 if a case could not be run, whatever the numbers are."""
    scale = replace(SMOKE if smoke else Scale(), messages_per_step=messages_per_step, seed=seed)
    if steps:
        scale = replace(scale, steps=tuple(sorted(int(number) for number in steps.split(","))))
    wanted = _among(CASES, cases)
    databases = _among(DATABASES, "postgres,sqlite" if database == "both" else database)
    arguments, unknown = accepted(ours or [])
    if unknown:
        out.print(f"left out, since this release does not know them: {', '.join(unknown)}")
    options = {"ours": arguments, "left_out": unknown, "async_driver": async_driver, "note": note}
    results, failed = Results(about(**options, scale=vars(scale)), []), False
    out.print("case, ratio, its quartiles, ours, official, target", style="dim")
    # A smoke run says nothing about speed, so it need not wait for the disk.
    serving: Any = postgres_server(fsync=not smoke) if "postgres" in databases else nullcontext()
    with serving as server:
        for name in databases:
            arena = Arena(name, server, arguments, async_driver)
            for row in _measured(arena, scale, wanted):
                failed |= row is None
                if row is not None:
                    results.rows.append(row)
                    out.print(_told(row))
    good, judged = report.reached(results)
    out.print("all ran" if smoke and not failed else f"{good} of {judged} targets reached")
    if out_folder:
        _write(results, out_folder)
    if failed:
        raise typer.Exit(1)


@app.command("report")
def render(
    files: Annotated[list[Path], typer.Argument(help="One or several results.json.")],
    page: Annotated[Path, typer.Option(help="The page with the two marks.")] = Path(
        "docs/performance.md"
    ),
) -> None:
    """Put results into the generated section of a page, and its plots beside it."""
    try:
        report.into_page(page, Results.read(*files))
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


def _among(known: tuple[str, ...], written: str) -> list[str]:
    wanted = written.split(",")
    if strange := set(wanted) - set(known):
        raise typer.BadParameter(f"{', '.join(sorted(strange))}: choose from {', '.join(known)}")
    return [name for name in known if name in wanted]


def _measured(arena: Arena, scale: Scale, cases: list[str]) -> Iterator[Row | None]:
    """The rows of the cases; None for each that fails, of which the others are not told."""
    for names, bench in BENCHES:
        chosen = [name for name in names if name in cases]
        if not chosen:
            continue
        begin = time.perf_counter()
        try:
            yield from bench(arena, scale, chosen)
        except Exception:
            traceback.print_exc()
            out.print(f"{'/'.join(chosen)} on {arena.database} failed")
            yield None
        took = time.perf_counter() - begin
        out.print(f"  {'/'.join(chosen)} on {arena.database}: {took:.0f} s", style="dim")


def _told(row: Row) -> str:
    case, what, colour, ours, official, _, ratio, quartiles, found = report.cells(row)
    return (
        f"{case} {row.database:8} {colour:5} {what:42} {ratio:>6} {quartiles:9}  "
        f"{ours:28} {official:28} {found}"
    )


def _write(results: Results, folder: Path) -> None:
    from benchmarks.plots import draw  # matplotlib takes a second, and a run without --out no plot

    folder.mkdir(parents=True, exist_ok=True)
    results.write(folder / "results.json")
    plots = [(title, path.name) for title, path in draw(results, folder)]
    (folder / "results.md").write_text(report.markdown(results, plots))


if __name__ == "__main__":
    app(prog_name="python -m benchmarks")
