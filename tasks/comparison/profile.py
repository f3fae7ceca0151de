"""The times of a capture's programs, joined to the operators whose times they are."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tasks.errors import EvidenceError
from tasks.numerics.timing import EXECUTION, Measured, counted_in, measured, warm_up_runs
from tasks.records import Blob, Capture, DelegatedNode, Instruction, Launch, LoweredProgram, Operator, ProfiledEvent
from tasks.storage.store import Store
from tasks.toolchain.backends.select import backend_of
from tasks.toolchain.readback.etdump import ETDump, read_etdump


def profiled(lowered: LoweredProgram, capture: Capture, *, store: Store) -> tuple[ProfiledEvent, ...]:
    """Every timed event of the shipping program's log, then of the profile program's, warm-ups left out.

    Raises EvidenceError for a log that does not hold the inferences that were asked for.
    """
    launches = {result.launch.name: result.launch for result in capture.execution.results}
    logs: dict[str, tuple[Blob, Blob | None]] = {"shipping": (capture.etdump, capture.outputs)}
    if capture.etdump_profile is not None:
        logs["profile"] = (capture.etdump_profile, capture.outputs_profile)
    return tuple(
        event
        for program, (log, outputs) in logs.items()
        for event in _Program(
            lowered, launches[program], read_etdump(store.read(log)), same_outputs=outputs == capture.outputs
        ).events()
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Origin:
    """What an event was the time of."""

    debug_handles: tuple[int, ...] = ()
    backend: str | None = None
    subgraph: int | None = None
    counted_in: tuple[str, ...] = ()


class _Program:
    def __init__(self, lowered: LoweredProgram, launch: Launch, log: ETDump, *, same_outputs: bool) -> None:
        self._launch = launch
        self._same_outputs = same_outputs
        self._inferences, warm_ups = _timed(launch, log)
        backend = backend_of(lowered.backend)
        self._events = measured(
            log.events, without=warm_ups, clock=backend.clock, delegate_event=backend.delegate_event
        )
        self._instructions: Mapping[int, Instruction] = {each.id: each for each in lowered.instructions}
        self._operators: dict[int, list[Operator]] = defaultdict(list)
        for operator in lowered.operators:
            if operator.debug_handle is not None:
                self._operators[operator.debug_handle].append(operator)
        self._nodes: dict[tuple[int, str], DelegatedNode] = {}
        self._users: dict[int, dict[str, Sequence[str]]] = defaultdict(dict)
        for node in lowered.profile.nodes if lowered.profile else ():
            if node.subgraph is not None:
                self._nodes[node.subgraph, node.name] = node
                self._users[node.subgraph][node.name] = node.users

    def events(self) -> Iterator[ProfiledEvent]:
        counts: dict[int, dict[str, float]] = defaultdict(dict)
        for event in self._events:
            instruction = self._instruction(event)
            if event.node is not None and instruction is not None and instruction.subgraph is not None:
                counts[instruction.subgraph][event.node] = max(event.raw)
        for event in self._events:
            origin = self._origin(event, counts)
            operators = [each for handle in origin.debug_handles for each in self._operators.get(handle, [])]
            inferences = tuple(self._inferences[run] for run in event.runs if run in self._inferences)
            yield ProfiledEvent(
                program=self._launch.name,
                same_outputs=self._same_outputs,
                event_block=event.event_block,
                name=event.name,
                kind=event.kind,
                node=event.node,
                instruction=event.instruction,
                unit=event.unit,
                raw=event.raw,
                inferences=inferences,
                samples=tuple(inference // self._launch.iterations for inference in inferences),
                operators=tuple(operators),
                debug_handles=origin.debug_handles,
                backend=origin.backend,
                subgraph=origin.subgraph,
                counted_in=origin.counted_in,
            )

    def _instruction(self, event: Measured) -> Instruction | None:
        return None if event.instruction is None else self._instructions.get(event.instruction)

    def _origin(self, event: Measured, counts: Mapping[int, Mapping[str, float]]) -> _Origin:
        instruction = self._instruction(event)
        if instruction is None:
            return _Origin()
        subgraph, inside = instruction.subgraph, event.kind in ("operator", "accelerator")
        handles, counted = instruction.debug_handles, ()
        if inside:
            node = self._nodes.get((subgraph, event.node)) if subgraph is not None and event.node is not None else None
            handles = () if node is None or node.debug_handle is None else (node.debug_handle,)
            if node is not None and subgraph is not None and not max(event.raw):
                counted = counted_in(node.name, self._users[subgraph], counts[subgraph])
        return _Origin(
            debug_handles=handles,
            backend=instruction.backend,
            subgraph=subgraph,
            counted_in=counted,
        )


def _timed(launch: Launch, log: ETDump) -> tuple[dict[int, int], set[int]]:
    """The log's runs that are timed inferences, numbered in their order, and those that are warm-ups."""
    executions = sorted({event.run for event in log.events if event.name == EXECUTION})
    warm_ups = warm_up_runs(executions, samples=launch.samples, warm_up=launch.warm_up, iterations=launch.iterations)
    if warm_ups is None:
        turns = launch.samples * (launch.warm_up + launch.iterations)
        raise EvidenceError(
            f"the {launch.name} program's etdump holds {len(executions)} inferences, {turns} were asked for"
        )
    timed = [run for run in executions if run not in warm_ups]
    return {run: inference for inference, run in enumerate(timed)}, warm_ups
