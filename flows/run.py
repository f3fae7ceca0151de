"""The identity of one run: its id, its start, its command line and the facts that its report states."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from conf.names import COMPILE_STAGES
from flows.resources import Resources
from flows.runs import results
from tasks.records import RunFacts, Toolchain
from tasks.storage.store import Store


@dataclass(frozen=True, kw_only=True, slots=True)
class RunStart:
    """The id and the start of a run."""

    run_id: str
    started: datetime
    clock_s: float

    @classmethod
    def now(cls, run_id: str | None = None) -> RunStart:
        started = datetime.now(UTC)
        return cls(run_id=run_id or new_run_id(started), started=started, clock_s=time.monotonic())

    def ended(self, resources: Resources, reused: int, command: tuple[str, ...]) -> RunFacts:
        """The facts of a run whose cells were all computed with these resources."""
        calls = sum(count for stage, count in resources.children.calls.items() if stage in COMPILE_STAGES)
        return self.facts(
            resources.store, command, toolchain_calls=calls, reused=reused, toolchain=resources.children.identity
        )

    def facts(
        self, store: Store, command: tuple[str, ...], *, toolchain_calls: int, reused: int, toolchain: Toolchain | None
    ) -> RunFacts:
        return RunFacts(
            run_id=self.run_id,
            started=self.started.isoformat(timespec="seconds"),
            seconds=time.monotonic() - self.clock_s,
            command=command,
            toolchain_calls=toolchain_calls,
            reused=reused,
            toolchain=toolchain,
            tables=store.shown("tables"),
            report=store.shown(results.report_name(self.run_id)),
        )


def command(overrides: Sequence[str], folders: Sequence[Path], *options: str) -> tuple[str, ...]:
    """What a person would type to have the same run."""
    return ("qnnsweep", "run", *options, *(f"--config-dir={folder}" for folder in folders), *overrides)


def new_run_id(started: datetime) -> str:
    """Run ids sort by start time."""
    return f"{started:%Y%m%dT%H%M%SZ}-{secrets.token_hex(2)}"
