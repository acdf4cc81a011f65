"""`ckpt-orm demo`: one agent, two processes, a kill in between.

This process plays the outside world. It starts the processes that run the agent, watches the
database until the moment it wants, kills, answers, forks, and says what was stored where. At the
end it has every claim verified.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Annotated, cast
from uuid import uuid4

import typer
from langgraph.types import Command, PregelTask, StateSnapshot
from langsmith import tracing_context
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from sqlalchemy import Engine, func, make_url, select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from ckpt_orm import SQLAlchemySaver
from ckpt_orm.cli import demo_agent
from ckpt_orm.cli.demo_agent import APPROVED, REQUEST, URL, WAITING, Journal, build, config_of
from ckpt_orm.cli.demo_claims import Evidence, answers_stored, id_of, verify
from ckpt_orm.cli.shared import told
from ckpt_orm.engines import create, in_memory
from ckpt_orm.errors import CheckpointError
from ckpt_orm.models import Checkpoint, CheckpointWrite
from ckpt_orm.urls import parse

DEFAULT_URL = "sqlite:///ckpt_orm_demo.db"

CONTENTS = (
    "checkpoints          a row per superstep: ids, versions, small values",
    "checkpoint_blobs     a row per changed channel: the other values",
    "checkpoint_writes    a row per write of a task: results, questions, answers",
    "checkpoint_segments  what a value grew by, of those that grow",
)

#: The superstep after both searches, where the fork begins; and what it may spend.
AFTER_SEARCHES = 2
SMALL_BUDGET = 200

#: Seconds a process may take to reach the moment that is waited for.
PATIENCE = 60


class Stalled(RuntimeError):
    """A process ended, or took too long, before the moment that was waited for."""


def demo(
    url: Annotated[
        str,
        typer.Option(help="SQLite file or Postgres database; its tables are created if needed."),
    ] = DEFAULT_URL,
    keep: Annotated[
        bool, typer.Option(help="Keep the thread's rows for a look, or delete them at the end.")
    ] = True,
) -> None:
    """Run an agent, kill it with SIGKILL halfway, resume it in a second process, and check it all.

    The agent is a real LangGraph graph with a scripted model: no network, no key. It calls tools in
    parallel, asks a human, and buys a ticket in a subgraph. Each run is a new thread.
    """
    try:
        engine = engine_of(url)
        with disposing(engine), TemporaryDirectory() as folder, tracing_context(enabled=False):
            seen = evidence_on(engine, Path(folder) / "journal")
            held = Story(Console(highlight=False), seen, url).tell(keep)
    except (CheckpointError, SQLAlchemyError, ModuleNotFoundError, OSError, Stalled) as error:
        typer.echo(f"ckpt-orm demo: {told(error)}", err=True)
        raise typer.Exit(1 if isinstance(error, Stalled) else 2) from None
    if not held:
        raise typer.Exit(1)


@contextmanager
def disposing(engine: Engine) -> Iterator[None]:
    """Close an engine's connections at the end."""
    try:
        yield
    finally:
        engine.dispose()


def engine_of(url: str) -> Engine:
    """The engine of a database that two processes can share and both colours can use."""
    if in_memory(parse(url)):
        raise typer.BadParameter("two processes cannot share a database in memory: name a file")
    engine = create(url)
    if not isinstance(engine, Engine):
        raise typer.BadParameter("the demo calls both invoke and ainvoke: name a sync driver")
    return engine


def evidence_on(engine: Engine, journal: Path) -> Evidence:
    """A new thread in a database that is set up for it, and the agent to look at it with."""
    saver = SQLAlchemySaver(engine)
    saver.setup()
    log = Journal(journal, "fork")
    return Evidence(engine, build(saver, log), log, thread=f"demo-{uuid4().hex[:8]}")


class Story:
    """The steps of the demo, and what is said about each."""

    def __init__(self, console: Console, seen: Evidence, url: str) -> None:
        self.console, self.seen, self.url = console, seen, url
        self.counts = seen.counts()
        self.told = 0

    def tell(self, keep: bool) -> bool:
        """Every step in order; returns whether every claim held."""
        self.opening()
        self.first_process()
        self.second_process()
        self.fork()
        self.history()
        held = self.verdict()
        return self.farewell(keep) and held

    # The steps

    def opening(self) -> None:
        """Say where everything goes."""
        url = make_url(self.url).set(query={})
        self.title("Setup")
        self.say("database", url.render_as_string(hide_password=True))
        for label, line in zip(("tables", "", "", ""), CONTENTS, strict=True):
            self.say(label, line)
        self.say("thread", self.seen.thread)

    def first_process(self) -> None:
        """Start the agent, answer its question, and kill it between two tasks of a superstep."""
        self.title(f"Process 1: agent.invoke({REQUEST!r})")
        with self.process("first") as first:
            state = self.until(first, self.is_asking)
            self.say_ran()
            self.say("asks", state.interrupts[0].value)
            self.say_writes(state.tasks[0])
            self.say_stored()
            self.title("The human approves; SIGKILL while two tools run in parallel")
            answer(first, APPROVED)
            state = self.until(first, self.is_between)
            first.kill()
        self.seen.exit_code = first.wait()
        self.say("killed", f"process {first.pid}, exit code {self.seen.exit_code}")
        self.say_ran()
        charge, ticket = state.tasks
        self.say_writes(charge)
        inner = cast(StateSnapshot, ticket.state)
        self.say("kept", f"{ticket.name} in checkpoints: step {step_of(inner)} of the subgraph")
        self.say_stored()

    def second_process(self) -> None:
        """Resume the thread in a process that knows nothing but its id."""
        self.title("Process 2: await agent.ainvoke(None), with the same thread_id")
        with self.process("second") as second:
            answer(second, "seat confirmed")
            try:
                code = second.wait(timeout=PATIENCE)
            except subprocess.TimeoutExpired:
                raise Stalled(f"process 2 did not end in {PATIENCE} seconds") from None
        if code:
            raise Stalled(f"process 2 failed with exit code {code}")
        self.seen.booked = self.seen.agent.get_state(config_of(self.seen.thread))
        self.say_ran()
        self.say_answer()
        self.say_stored()

    def fork(self) -> None:
        """Go back to an old checkpoint, change the budget, and let the agent run on from there."""
        self.title("Time travel: fork an earlier checkpoint with a smaller budget")
        agent, config = self.seen.agent, config_of(self.seen.thread, "fork")
        old = next(s for s in agent.get_state_history(config) if step_of(s) == AFTER_SEARCHES)
        self.seen.fork_point = id_of(old)
        new = agent.update_state(
            {**config, **old.config}, {"budget": SMALL_BUDGET}, as_node="search_rooms"
        )
        self.say("from", f"step {step_of(old)}, checkpoint {id_of(old)}")
        self.say("update", f"budget {old.values['budget']} becomes {SMALL_BUDGET}")
        agent.invoke(None, {**config, **new})
        self.say("asks", agent.get_state(config).interrupts[0].value + "  The human refuses.")
        agent.invoke(Command(resume="refuse"), config)
        self.say_ran()
        self.say_answer()
        self.say_stored()

    def history(self) -> None:
        """Show every checkpoint of the thread, both branches and the subgraph, oldest first."""
        self.title("History: every row of the table checkpoints")
        headers = ("#", "parent", "graph", "step", "source", "by", "next")
        table = Table(*headers, box=None, padding=(0, 0, 0, 2), header_style="dim")
        numbers: dict[str | None, int] = {}
        for state in self.states():
            numbers[id_of(state)] = len(numbers) + 1
            table.add_row(*(escape(cell) for cell in cells(state, numbers)))
        self.console.print(table)

    def verdict(self) -> bool:
        """Verify the claims and say of each whether it held."""
        self.title("Claims, checked against the database and the journal of side effects")
        ascii_only = self.console.options.ascii_only
        yes, no = ("ok", "FAILED") if ascii_only else ("\N{CHECK MARK}", "\N{BALLOT X}")
        verdicts = verify(self.seen)
        for words, held in verdicts:
            self.console.print(f"  [green]{yes}[/]" if held else f"  [bold red]{no}[/]", words)
        return all(held for _, held in verdicts)

    def farewell(self, keep: bool) -> bool:
        """Leave the thread's rows, or delete them; returns whether that was done."""
        self.console.print()
        if keep:
            self.say("left", "the thread's rows, for a look (--no-keep deletes them)")
            return True
        cast(SQLAlchemySaver, self.seen.agent.checkpointer).delete_thread(self.seen.thread)
        self.say_stored()
        return not any(self.counts.values())

    # What is done in them

    @contextmanager
    def process(self, worker: str) -> Iterator[subprocess.Popen[str]]:
        """A process that runs the agent; it does not outlive this block."""
        command = [sys.executable, "-m", demo_agent.__name__]
        arguments = [worker, self.seen.thread, str(self.seen.journal.path)]
        with subprocess.Popen(
            command + arguments,
            env={**os.environ, URL: self.url},
            stdin=subprocess.PIPE,
            text=True,
        ) as process:
            try:
                yield process
            finally:
                process.kill()

    def until(
        self, process: subprocess.Popen[str], reached: Callable[[StateSnapshot], bool]
    ) -> StateSnapshot:
        """The thread's state in the database, as soon as it is what was waited for."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            state = self.seen.agent.get_state(config_of(self.seen.thread), subgraphs=True)
            if reached(state):
                return state
            if process.poll() is not None:
                raise Stalled(f"process 1 ended with exit code {process.returncode} too early")
            time.sleep(0.02)
        raise Stalled(f"process 1 did not get there in {PATIENCE} seconds")

    def is_asking(self, state: StateSnapshot) -> bool:
        """Whether the question is stored, and the first process has nothing left to do."""
        return bool(state.interrupts) and bool(self.seen.workers(WAITING, "began"))

    def is_between(self, state: StateSnapshot) -> bool:
        """Whether one parallel tool is stored as finished while the other waits for the airline."""
        tasks = {task.name: task for task in state.tasks}
        if not {"charge_card", "issue_ticket"} <= tasks.keys():
            return False
        inner = tasks["issue_ticket"].state
        return (
            tasks["charge_card"].result is not None
            and isinstance(inner, StateSnapshot)
            and inner.next == ("confirm_seat",)
            and bool(self.seen.workers("confirm_seat", "began"))
            # LangGraph stores the writes of a task in the background, while the next one runs.
            and answers_stored(self.seen)
        )

    def states(self) -> list[StateSnapshot]:
        """Every checkpoint of the thread, of the root graph and its subgraphs, by id."""
        of_thread = Checkpoint.thread_id == self.seen.thread
        namespaces = select(Checkpoint.checkpoint_ns).where(of_thread)
        with Session(self.seen.engine) as session:
            found = session.scalars(namespaces.distinct()).all()
        configurable = [{"thread_id": self.seen.thread, "checkpoint_ns": ns} for ns in found]
        histories = (
            self.seen.agent.get_state_history({"configurable": each}) for each in configurable
        )
        return sorted((state for history in histories for state in history), key=id_of)

    # What is said

    def title(self, words: str) -> None:
        """A heading."""
        self.console.print()
        self.console.print(f"[bold cyan]{escape(words)}[/]")

    def say(self, label: str, words: str) -> None:
        """One line, with a label."""
        self.console.print(f"  [dim]{label:<9}[/] {escape(words)}", soft_wrap=True)

    def say_ran(self) -> None:
        """The tasks that the journal has gained since the last time."""
        entries = self.seen.journal.read()
        news, self.told = entries[self.told :], len(entries)
        done = [entry.task for entry in news if entry.event == "done"]
        begun = dict.fromkeys(entry.task for entry in news if entry.task not in done)
        self.say("finished", ", ".join(done))
        if begun:
            self.say("begun", ", ".join(begun))

    def say_answer(self) -> None:
        """The last thing the agent said."""
        state = self.seen.agent.get_state(config_of(self.seen.thread))
        self.say("answers", str(state.values["messages"][-1].content))

    def say_writes(self, task: PregelTask) -> None:
        """What the database keeps of a task that is not yet part of a checkpoint."""
        kept = select(CheckpointWrite.channel, func.length(CheckpointWrite.blob)).where(
            CheckpointWrite.thread_id == self.seen.thread, CheckpointWrite.task_id == task.id
        )
        with Session(self.seen.engine) as session:
            writes = [f"{channel} ({size} bytes)" for channel, size in session.execute(kept)]
        self.say("kept", f"{task.name} in checkpoint_writes: {', '.join(writes)}")

    def say_stored(self) -> None:
        """The rows of the thread in each table, and what they gained since the last time."""
        now = self.seen.counts()
        parts = [f"{table} {n} ({n - self.counts[table]:+d})" for table, n in now.items()]
        self.counts = now
        self.say("stored", "  ".join(parts))


def answer(process: subprocess.Popen[str], words: str) -> None:
    """Tell a process something."""
    stdin = cast(IO[str], process.stdin)
    stdin.write(words + "\n")
    stdin.flush()


def step_of(state: StateSnapshot) -> int | None:
    """The superstep after which a checkpoint was stored; -1 for the input."""
    return state.metadata["step"] if state.metadata else None


def cells(state: StateSnapshot, numbers: dict[str | None, int]) -> list[str]:
    """A checkpoint as a row of the history; `numbers` are those of the checkpoints above it."""
    metadata = dict(state.metadata or {})
    parent = (state.parent_config or {}).get("configurable", {}).get("checkpoint_id")
    graph = state.config["configurable"]["checkpoint_ns"].partition(":")[0] or "agent"
    shown = [metadata["step"], metadata["source"], metadata["worker"], ", ".join(state.next)]
    return [str(cell) for cell in (numbers[id_of(state)], numbers.get(parent, ""), graph, *shown)]
