"""The demo as its users run it, and its claims on evidence that was falsified."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import cast

import pytest
import typer
from rich.console import Console
from sqlalchemy import URL, create_engine, delete, func, select, update
from sqlalchemy.orm import Session

from ckpt_orm import SQLAlchemySaver
from ckpt_orm.cli.demo import Story, demo, engine_of, evidence_on
from ckpt_orm.cli.demo_agent import Entry, Journal, best, config_of
from ckpt_orm.cli.demo_claims import CLAIMS, Evidence, verify
from ckpt_orm.engines import create
from ckpt_orm.models import Checkpoint, CheckpointBlob, CheckpointWrite


def run(*arguments: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", "ckpt_orm", "demo", *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONUTF8": "1", "LANGSMITH_TRACING": "true", **env},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


# As a command


def test_every_claim_holds_on_both_dialects_and_again_in_the_same_database(
    database_url: URL, tmp_path: Path
) -> None:
    url = database_url.render_as_string(hide_password=False)
    threads = set()
    for _ in range(2):
        done = run("--url", url, cwd=tmp_path)
        assert (done.returncode, done.stderr) == (0, "")
        for words, _ in CLAIMS:
            assert f"  \N{CHECK MARK} {words}\n" in done.stdout
        assert "\N{BALLOT X}" not in done.stdout
        assert 60 <= len(done.stdout.splitlines()) <= 100
        threads |= set(re.findall(r"demo-\w{8}", done.stdout))
    engine = create_engine(database_url)
    with Session(engine) as session:
        assert set(session.scalars(select(Checkpoint.thread_id))) == threads
    engine.dispose()
    assert len(threads) == 2


def test_what_is_said_to_be_stored_is_what_is_stored(tmp_path: Path) -> None:
    done = run(cwd=tmp_path)
    said = re.findall(r"stored +(.*)", done.stdout)[-1]
    engine = create_engine(f"sqlite:///{tmp_path / 'ckpt_orm_demo.db'}")
    with Session(engine) as session:
        for model in (Checkpoint, CheckpointBlob, CheckpointWrite):
            rows = session.scalar(select(func.count()).select_from(model))
            assert f"{model.__tablename__} {rows} (" in said
        history = re.findall(r"^  \d+ .*\b(?:first|second|fork)\b", done.stdout, re.MULTILINE)
        assert len(history) == session.scalar(select(func.count()).select_from(Checkpoint))
    engine.dispose()


def test_no_keep_leaves_nothing_and_ascii_terminals_are_served(tmp_path: Path) -> None:
    done = run("--no-keep", cwd=tmp_path, PYTHONUTF8="0", PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("  ok ") == len(CLAIMS)
    assert "checkpoints 0 (-" in done.stdout
    engine = create_engine(f"sqlite:///{tmp_path / 'ckpt_orm_demo.db'}")
    with Session(engine) as session:
        for model in (Checkpoint, CheckpointBlob, CheckpointWrite):
            assert session.scalar(select(func.count()).select_from(model)) == 0
    engine.dispose()


def test_an_unreachable_server_is_one_line_without_the_password(tmp_path: Path) -> None:
    url = "postgresql://someone:s3cret@127.0.0.1:1/nowhere"
    done = run("--url", url, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("ckpt-orm demo: ")
    assert "Traceback" not in done.stderr
    assert "s3cret" not in done.stdout + done.stderr


@pytest.mark.parametrize("url", ["sqlite://", "sqlite+aiosqlite:///x.db"])
def test_databases_that_cannot_show_it_are_refused(url: str) -> None:
    with pytest.raises(typer.BadParameter, match="name a"):
        engine_of(url)


# In this process


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    """A run whose evidence is left for a look."""
    folder = tmp_path_factory.mktemp("demo")
    url = f"sqlite:///{folder / 'demo.db'}"
    engine = engine_of(url)
    story = Story(Console(file=StringIO()), evidence_on(engine, folder / "journal"), url)
    assert story.tell(keep=True)
    yield story
    engine.dispose()


@pytest.fixture
def seen(told: Story, tmp_path: Path) -> Iterator[Evidence]:
    """A copy of that evidence, to falsify."""
    with told.seen.engine.connect() as connection:
        connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
    shutil.copy(str(told.seen.engine.url.database), tmp_path / "copy.db")
    shutil.copy(told.seen.journal.path, tmp_path / "journal")
    engine = create(f"sqlite:///{tmp_path / 'copy.db'}")
    copy = evidence_on(engine, tmp_path / "journal")
    yield replace(told.seen, engine=copy.engine, agent=copy.agent, journal=copy.journal)
    engine.dispose()


def failed(seen: Evidence) -> set[str]:
    held = dict(verify(seen))
    return {claim.__name__ for words, claim in CLAIMS if not held[words]}


def rewrite(journal: Journal, entries: list[Entry]) -> None:
    journal.path.write_text("".join(json.dumps(vars(entry)) + "\n" for entry in entries))


def as_worker(seen: Evidence, worker: str, task: str) -> None:
    with Journal(seen.journal.path, worker).task(task):
        pass


def test_the_copy_itself_holds(seen: Evidence) -> None:
    assert failed(seen) == set()


def charge_again(seen: Evidence) -> None:
    as_worker(seen, "second", "charge_card")


def hold_again(seen: Evidence) -> None:
    as_worker(seen, "second", "hold_seat")


def search_again(seen: Evidence) -> None:
    as_worker(seen, "second", "search_rooms")


def charge_in_the_fork(seen: Evidence) -> None:
    as_worker(seen, "fork", "charge_card")


def charge_before_asking(seen: Evidence) -> None:
    entries = seen.journal.read()
    entries.sort(key=lambda entry: entry.task != "charge_card")
    rewrite(seen.journal, entries)


def other_receipt(seen: Evidence) -> None:
    entries = seen.journal.read()
    rewrite(seen.journal, [replace(e, receipt=e.receipt and "00000000") for e in entries])


def never_finished(seen: Evidence) -> None:
    entries = seen.journal.read()
    rewrite(seen.journal, [e for e in entries if (e.task, e.event) != ("quote", "done")])


def nothing_in_flight(seen: Evidence) -> None:
    rewrite(
        seen.journal,
        [
            replace(e, worker="second") if e.task == "confirm_seat" else e
            for e in seen.journal.read()
        ],
    )


def empty_journal(seen: Evidence) -> None:
    rewrite(seen.journal, [])


def ended_by_itself(seen: Evidence) -> None:
    seen.exit_code = 0


def never_booked(seen: Evidence) -> None:
    states = seen.agent.get_state_history(config_of(seen.thread))
    seen.booked = next(state for state in states if "approval" in state.next)


def other_fork_point(seen: Evidence) -> None:
    seen.fork_point = "1f000000-0000-6000-8000-000000000000"


def executes(statement: Callable[[Evidence], object]) -> Callable[[Evidence], None]:
    def falsify(seen: Evidence) -> None:
        with seen.engine.begin() as connection:
            rows = connection.execute(statement(seen)).rowcount  # type: ignore[call-overload]
        assert rows

    return falsify


def head(seen: Evidence) -> str:
    assert seen.booked is not None
    return str(seen.booked.config["configurable"]["checkpoint_id"])


no_answer_stored = executes(
    lambda seen: delete(CheckpointWrite).where(CheckpointWrite.channel == "__resume__")
)
chain_cut = executes(
    lambda seen: (
        update(Checkpoint)
        .where(Checkpoint.checkpoint_id == head(seen))
        .values(parent_checkpoint_id=None)
    )
)
head_lost = executes(lambda seen: delete(Checkpoint).where(Checkpoint.checkpoint_id == head(seen)))
fork_not_from_there = executes(
    lambda seen: (
        update(Checkpoint)
        .where(Checkpoint.parent_checkpoint_id == seen.fork_point)
        .values(parent_checkpoint_id=None)
    )
)
subgraph_lost = executes(lambda seen: delete(Checkpoint).where(Checkpoint.checkpoint_ns != ""))
messages_corrupt = executes(
    lambda seen: (
        update(CheckpointBlob).where(CheckpointBlob.channel == "messages").values(blob=b"\x90")
    )
)


@pytest.mark.parametrize(
    ("falsify", "claims"),
    [
        (charge_again, {"nothing_twice", "charged_once"}),
        (hold_again, {"nothing_twice", "subgraph_went_on"}),
        (search_again, {"nothing_twice"}),
        (charge_in_the_fork, {"forked"}),
        (charge_before_asking, {"asked_first"}),
        (other_receipt, {"charged_once"}),
        (never_finished, {"nothing_twice"}),
        (nothing_in_flight, {"killed_in_flight", "subgraph_went_on"}),
        (
            empty_journal,
            {
                "asked_first",
                "killed_in_flight",
                "nothing_twice",
                "charged_once",
                "subgraph_went_on",
            },
        ),
        (ended_by_itself, {"killed_in_flight"}),
        (never_booked, {"charged_once", "one_chain", "each_call_answered"}),
        (other_fork_point, {"forked"}),
        (no_answer_stored, {"asked_first"}),
        (chain_cut, {"one_chain", "first_branch_unchanged"}),
        (head_lost, {"one_chain", "each_call_answered", "first_branch_unchanged"}),
        (fork_not_from_there, {"one_chain", "forked"}),
        (subgraph_lost, {"subgraph_went_on"}),
        (
            messages_corrupt,
            {"each_call_answered", "forked", "first_branch_unchanged", "both_colours_agree"},
        ),
    ],
    ids=lambda value: "-".join(sorted(value)) if isinstance(value, set) else None,
)
def test_a_claim_that_is_not_true_is_found_out(
    seen: Evidence, falsify: Callable[[Evidence], None], claims: set[str]
) -> None:
    falsify(seen)
    assert failed(seen) == claims


def test_a_checkpoint_that_list_leaves_out_is_found_out(
    seen: Evidence, monkeypatch: pytest.MonkeyPatch
) -> None:
    everything = SQLAlchemySaver.list

    def all_but_one(saver: SQLAlchemySaver, *args: object, **kwargs: object) -> object:
        return list(everything(saver, *args, **kwargs))[1:]  # type: ignore[arg-type]

    monkeypatch.setattr(SQLAlchemySaver, "list", all_but_one)
    assert failed(seen) == {"both_colours_agree"}


def test_the_verdict_counts_each_claim(told: Story, seen: Evidence) -> None:
    assert Story(Console(file=StringIO()), seen, told.url).verdict()
    charge_again(seen)
    shown = StringIO()
    assert not Story(Console(file=shown), seen, told.url).verdict()
    assert shown.getvalue().count("\N{BALLOT X}") == 2
    assert shown.getvalue().count("\N{CHECK MARK}") == len(CLAIMS) - 2


def test_a_claim_that_fails_is_an_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fork = Story.fork

    def fork_and_charge(story: Story) -> None:
        fork(story)
        charge_in_the_fork(story.seen)

    monkeypatch.setattr(Story, "fork", fork_and_charge)
    with pytest.raises(typer.Exit) as ended:
        demo(f"sqlite:///{tmp_path / 'demo.db'}", keep=True)
    assert ended.value.exit_code == 1
    assert "FAILED" in capsys.readouterr().out.replace("\N{BALLOT X}", "FAILED")


def test_a_process_that_dies_too_early_ends_the_demo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "executable", shutil.which("false"))
    with pytest.raises(typer.Exit) as ended:
        demo(f"sqlite:///{tmp_path / 'demo.db'}", keep=True)
    assert ended.value.exit_code == 1
    assert "process 1 ended with exit code 1 too early" in capsys.readouterr().err


def test_no_password_is_in_the_list_of_processes(
    told: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[object] = []

    class Recorded(subprocess.Popen[str]):
        def __init__(self, command: list[str], **kwargs: object) -> None:
            commands.append(command)
            super().__init__(["true"], **kwargs)  # type: ignore[call-overload]

    monkeypatch.setattr(subprocess, "Popen", Recorded)
    story = Story(Console(file=StringIO()), told.seen, "postgresql://someone:s3cret@host/db")
    with story.process("first"):
        pass
    story.opening()
    assert "s3cret" not in repr(commands) + cast(StringIO, story.console.file).getvalue()


def test_the_script_chooses_within_the_budget() -> None:
    fares, rooms = json.dumps({"a": 10, "b": 50}), json.dumps({"x": 5, "y": 40})
    assert best(fares, rooms, 1000) == ("b", "y")
    assert best(fares, rooms, 54) == ("a", "y")
