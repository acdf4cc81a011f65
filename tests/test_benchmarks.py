"""The benchmarks run: every case, on both databases, tiny. What they would say of speed is not."""

from __future__ import annotations

import copy
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import pytest
from langchain_core.messages import AIMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from sqlalchemy import URL, text
from typer.testing import CliRunner
from typing_extensions import TypedDict

from benchmarks import compression, report
from benchmarks.__main__ import app
from benchmarks.contestants import Arena, accepted, check_durability
from benchmarks.conversation import NODES, Conversation
from benchmarks.floor import SqliteFloor
from benchmarks.proxy import link
from benchmarks.results import Results, Row, counts, times
from benchmarks.sampling import FLOOR, OFFICIAL, OURS, Rounds
from benchmarks.targets import TARGETS, verdict
from ckpt_orm import SQLAlchemySaver

ROOT = Path(__file__).parent.parent
CASES = {f"W{number}" for number in range(1, 9)}


@pytest.fixture(scope="module")
def smoke(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a smoke run of everything."""
    folder = tmp_path_factory.mktemp("results")
    command = [sys.executable, "-m", "benchmarks", "run", "--smoke", "--out", str(folder)]
    done = subprocess.run(
        [*command, "--ours", "no_such_argument=1"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "no_such_argument" in done.stdout
    return folder


def test_every_case_is_measured_on_both_databases(smoke: Path) -> None:
    rows = Results.read(smoke / "results.json").rows
    assert {row.case for row in rows if row.database == "postgres"} == CASES
    assert {row.case for row in rows if row.database == "sqlite"} == CASES - {"W8"}
    assert {row.colour for row in rows if row.case in ("W5", "W6", "W8")} == {"sync", "async"}


def test_every_row_has_both_contestants_and_positive_numbers(smoke: Path) -> None:
    for row in Results.read(smoke / "results.json").rows:
        assert {OURS, OFFICIAL} <= row.figures.keys(), row
        assert row.figures[OFFICIAL].median > 0, row
        for figure in row.figures.values():
            assert figure.median <= figure.p95, row
            assert figure.count >= 1
        # A few small changes may fit into a page that there was.
        if row.unit != "% of the value":
            assert row.ratio > 0, row
            assert all(figure.median > 0 for figure in row.figures.values()), row


def test_there_is_a_floor_below_put_put_writes_and_get_tuple(smoke: Path) -> None:
    rows = Results.read(smoke / "results.json").rows
    with_floor = {row.what for row in rows if FLOOR in row.figures}
    assert {"put, 6 messages", "put_writes(3)", "get_tuple, small"} <= with_floor


def test_every_target_is_about_something_that_a_full_run_measures(smoke: Path) -> None:
    # A smoke run has other lengths and fewer callers; its rows are otherwise named as a full run's.
    longer = [("12 to 24 steps", "500 to 2,000 steps"), ("12 steps", "500 steps"), ("4 c", "16 c")]
    rows = Results.read(smoke / "results.json").rows
    for tiny, full in longer:
        rows = [replace(row, what=row.what.replace(tiny, full)) for row in rows]
    for target in TARGETS:
        assert any(target.is_for(row) for row in rows), target


def test_the_results_become_a_section_of_a_page(smoke: Path, tmp_path: Path) -> None:
    page = tmp_path / "speed.md"
    page.write_text(f"before\n\n{report.BEGIN}\nold\n{report.END}\n\nafter\n")
    for _ in range(2):  # and what was generated is replaced, not added to
        done = CliRunner().invoke(app, ["report", f"{smoke}/results.json", "--page", str(page)])
        assert done.exit_code == 0, done.output
    written = page.read_text()
    assert written.startswith("before\n\n")
    assert written.endswith("\n\nafter\n")
    assert "old" not in written
    assert written.count("### Postgres") == written.count("### SQLite") == 1
    assert {path.name for path in (tmp_path / "speed").iterdir()} == {
        "put.svg",
        "bytes.svg",
        "ratios.svg",
    }
    for plot in ("put", "bytes", "ratios"):
        assert f"(speed/{plot}.svg)" in written


def test_a_page_without_the_marks_is_left_alone(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("by hand")
    with pytest.raises(ValueError, match="measured: begin"):
        report.into_page(page, Results({}, []))
    assert page.read_text() == "by hand"


def test_our_page_has_the_marks() -> None:
    written = (ROOT / "docs" / "performance.md").read_text()
    assert written.index(report.BEGIN) < written.index(report.END)


def test_a_case_that_cannot_run_is_a_failure_and_the_others_still_run() -> None:
    arguments = ["--database", "sqlite", "--cases", "W2,W7", "--ours", "serde=none"]
    done = CliRunner().invoke(app, ["run", "--smoke", *arguments])
    assert done.exit_code == 1
    assert "W2 on sqlite failed" in done.output
    assert "W7 on sqlite failed" in done.output


def test_ours_may_compress(tmp_path: Path) -> None:
    arguments = ["--database", "sqlite", "--cases", "W2,W7", "--ours", "serde=zstd"]
    done = CliRunner().invoke(app, ["run", "--smoke", *arguments, "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert Results.read(tmp_path / "results.json").about["ours"] == {"serde": "zstd"}


def test_compression_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--steps", "10", "--sizes", "9000", "--rounds", "4", "--databases", "sqlite"]
    compression.main(given)
    told = [line.split(" | ") for line in capsys.readouterr().out.splitlines() if "KB" in line]
    sizes = {(what.strip("| "), way): float(size.split()[0]) for what, way, size, *_ in told}
    assert sizes["records, 9 KB, all new", "whole, zstd"] < sizes["records, 9 KB, all new", "whole"]
    assert len(sizes) == 2 * len(compression.VALUES)


@pytest.mark.parametrize(
    ("what", "database", "found", "said"),
    [
        ("put, 6 messages", "sqlite", [1.0, 1.0], "≤ 1 reached"),
        ("put, 6 messages", "postgres", [1.1, 1.0], "≤ 1 missed"),
        ("put, 7 messages", "postgres", [1.0, 1.0], "None"),
    ],
)
def test_a_target_is_reached_or_missed(
    what: str, database: str, found: list[float], said: str
) -> None:
    samples = {OURS: found[:1] * 3, OFFICIAL: found[1:] * 3}
    assert str(verdict(times("W1", what, database, samples))) == said


def test_more_calls_a_second_are_better_and_round_trips_are_ours_alone() -> None:
    found = {OURS: 10.0, OFFICIAL: 5.0}
    crowd = counts("W6", "16 callers at once", "sqlite", "calls/s", found)
    assert str(verdict(crowd)) == "≥ 1.4 reached"
    turns = counts("W8", "put, round trips", "postgres", "", {OURS: 2.0, OFFICIAL: 4.0})
    assert str(verdict(turns)) == "≤ 1 of ours missed"


def test_results_are_read_as_they_were_written(tmp_path: Path) -> None:
    samples = {OURS: [0.1, 0.2, 0.3, 0.4, 0.5], OFFICIAL: [0.2] * 5}
    curves = {OURS: [(1, 2.0)], OFFICIAL: [(1, 3.0)]}
    row = times("W1", "put, 9 steps", "sqlite", samples, curves=curves)
    Results({"note": "a"}, [row, _other(row)]).write(tmp_path / "a.json")
    again = times("W1", "put, 9 steps", "sqlite", {OURS: [1.0], OFFICIAL: [1.0]})
    Results({"note": "b"}, [again]).write(tmp_path / "b.json")
    read = Results.read(tmp_path / "a.json").rows[0]
    assert (read.figures, read.ratio, read.spread) == (row.figures, row.ratio, row.spread)
    both = Results.read(tmp_path / "a.json", tmp_path / "b.json")
    assert both.rows == [again, _other(read)]


def _other(row: Row) -> Row:
    return replace(row, database="postgres")


def test_the_same_seed_gives_the_same_order() -> None:
    def order(seed: int) -> list[str]:
        called: list[str] = []
        calls = {name: lambda name=name: called.append(name) or 1.0 for name in "abc"}
        samples = Rounds(seed).take(calls, rounds=5, warm_up=2)
        assert all(len(taken) == 5 for taken in samples.values())
        return called

    assert order(1) == order(1) != order(2)


def test_arguments_for_our_saver_are_those_it_knows() -> None:
    known, unknown = accepted(["table_prefix=a_", "pool_size=3", "growing_up=whole"])
    assert known == {"table_prefix": "a_", "pool_size": 3}
    assert unknown == ["growing_up"]


def test_unequal_durability_stops_a_run(tmp_path: Path) -> None:
    with (
        SQLAlchemySaver.from_url(f"sqlite:///{tmp_path}/ours.db") as ours,
        SqliteFloor(f"{tmp_path}/floor.db") as floor,
    ):
        ours.setup()
        official: Any = type("Official", (), {"conn": floor.connection})
        check_durability({OURS: ours, OFFICIAL: official})
        floor.connection.execute("PRAGMA synchronous=OFF")
        with pytest.raises(RuntimeError, match="synchronous differs"):
            check_durability({OURS: ours, OFFICIAL: official})


def test_the_text_is_the_same_each_time() -> None:
    with SqliteFloor(":memory:") as floor:
        first, second = Conversation("a", floor), Conversation("a", floor, messages_per_step=2)
        one, two = first.advance()[0], second.advance()[0]
    assert [len(one["channel_values"]["messages"]), len(two["channel_values"]["messages"])] == [
        1,
        2,
    ]
    assert one["channel_values"]["messages"][0] == two["channel_values"]["messages"][0]


class State(TypedDict):
    messages: Annotated[list[Any], add_messages]
    turn: int
    summary: str
    user: str
    language: str
    flags: dict[str, bool]
    score: float


class Noted(InMemorySaver):
    """Keeps what the engine gave to `put`."""

    def __init__(self) -> None:
        super().__init__()
        self.puts: list[tuple[Any, Any, Any]] = []

    def put(self, config: Any, checkpoint: Any, metadata: Any, new_versions: Any) -> Any:
        self.puts.append((copy.deepcopy(checkpoint), metadata, new_versions))
        return super().put(config, checkpoint, metadata, new_versions)


def test_a_conversation_is_saved_as_the_engine_saves_it() -> None:
    """But for when its small channels were first given, and values."""

    def node(state: Any) -> dict[str, Any]:
        return {"messages": [AIMessage("said")], "turn": state["turn"] + 1, "summary": "short"}

    builder = StateGraph(State)
    for name in NODES:
        builder.add_node(name, node)
    builder.add_edge(START, NODES[0])
    for name, then in (NODES, NODES[::-1]):
        builder.add_conditional_edges(
            name, lambda state, then=then: END if state["turn"] == 8 else then, [END, then]
        )
    saver = Noted()
    begin = {"messages": [], "turn": 0, "user": "u-1", "language": "en", "score": 0.5}
    builder.compile(checkpointer=saver).invoke(
        {**begin, "flags": {"beta": True}}, {"configurable": {"thread_id": "t"}}
    )

    def numbers(versions: dict[str, str]) -> dict[str, int]:
        return {channel: int(version.split(".")[0]) for channel, version in versions.items()}

    steps = [given for given in saver.puts if 1 < given[1]["step"] < 8]
    assert len(steps) == 6
    line = Conversation("t", saver)
    line.advance()
    small = {"user", "language", "flags", "score"}
    for checkpoint, metadata, new in steps:
        made, about, made_new = line.advance()
        assert about == metadata
        assert made.keys() == checkpoint.keys()
        assert numbers(made_new) == numbers(new)
        for part in ("channel_values", "updated_channels"):
            assert set(made[part]) == set(checkpoint[part])
        found, expected = (numbers(one["channel_versions"]) for one in (made, checkpoint))
        assert found.keys() == expected.keys()
        assert {name: found[name] for name in found.keys() - small} == {
            name: expected[name] for name in expected.keys() - small
        }
        seen, expected_seen = (one["versions_seen"] for one in (made, checkpoint))
        assert {name: numbers(of) for name, of in seen.items()} == {
            name: numbers(of) for name, of in expected_seen.items()
        }


def test_round_trips_are_counted_and_take_their_time(postgres: URL) -> None:
    import psycopg

    with link(postgres, 0.02) as far:
        url = far.url(postgres).set(drivername="postgresql")
        dsn = url.render_as_string(hide_password=False)
        with psycopg.connect(dsn, autocommit=True) as connection:
            for statements, turns in ((1, 1), (3, 3)):
                before = far.turns
                for _ in range(statements):
                    connection.execute("SELECT 1")
                assert far.turns - before == turns
            before = far.turns
            with connection.pipeline():
                for _ in range(3):
                    connection.execute("SELECT 1")
            assert far.turns - before == 1


def test_a_contestants_database_is_gone_afterwards(postgres: URL) -> None:
    from sqlalchemy import create_engine
    from sqlalchemy.pool import NullPool

    with Arena("postgres", postgres).contestants() as contestants:
        assert contestants.keys() == {OURS, OFFICIAL}
        assert all(contestant.bytes_stored() > 0 for contestant in contestants.values())
    with create_engine(postgres, poolclass=NullPool).connect() as connection:
        found = connection.scalars(text("SELECT datname FROM pg_database")).all()
    assert not [name for name in found if name.startswith("bench_")]
