"""The times in a capture's logs, joined to the operators that they belong to."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tasks.errors import EvidenceError
from tasks.numerics.timing import EXECUTION, EventTimes, counted_in, event_times, warm_up_runs
from tasks.records import Blob, Capture, DelegatedNode, Instruction, Launch, LoweredProgram, Operator, ProfiledEvent
from tasks.storage.store import Store
from tasks.toolchain.backends.select import backend_of
from tasks.toolchain.readback.etdump import ETDump, read_etdump


def profiled_events(lowered: LoweredProgram, capture: Capture, *, store: Store) -> tuple[ProfiledEvent, ...]:
    """Return every timed event of the shipping program's log, then of the profile program's, without warm-ups.

    Raises EvidenceError for a log with another number of inferences than requested.
    """
    launches = {result.launch.name: result.launch for result in capture.execution.results}
    logs: dict[str, tuple[Blob, Blob | None]] = {"shipping": (capture.etdump, capture.outputs)}
    if capture.etdump_profile is not None:
        logs["profile"] = (capture.etdump_profile, capture.outputs_profile)
    return tuple(
        event
        for program, (log, outputs) in logs.items()
        for event in _ProgramLog(
            lowered, launches[program], read_etdump(store.read(log)), same_outputs=outputs == capture.outputs
        ).events()
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Origin:
    """What an event belongs to."""

    debug_handles: tuple[int, ...] = ()
    backend: str | None = None
    subgraph: int | None = None
    counted_in: tuple[str, ...] = ()


class _ProgramLog:
    """The log of one program, with the operators of its lowering."""

    def __init__(self, lowered: LoweredProgram, launch: Launch, log: ETDump, *, same_outputs: bool) -> None:
        self._launch = launch
        self._same_outputs = same_outputs
        self._inferences, warm_ups = _timed(launch, log)
        backend = backend_of(lowered.backend)
        self._events = event_times(
            log.events, without=warm_ups, clock=backend.clock, delegate_event=backend.delegate_event
        )
        self._instructions: Mapping[int, Instruction] = {
            instruction.id: instruction for instruction in lowered.instructions
        }
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
            operators = [operator for handle in origin.debug_handles for operator in self._operators.get(handle, [])]
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

    def _instruction(self, event: EventTimes) -> Instruction | None:
        return None if event.instruction is None else self._instructions.get(event.instruction)

    def _origin(self, event: EventTimes, counts: Mapping[int, Mapping[str, float]]) -> _Origin:
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
        return _Origin(debug_handles=handles, backend=instruction.backend, subgraph=subgraph, counted_in=counted)


def _timed(launch: Launch, log: ETDump) -> tuple[dict[int, int], set[int]]:
    """Return the log's runs that are timed inferences, numbered in their order, and the runs that are warm-ups."""
    executions = sorted({event.run for event in log.events if event.name == EXECUTION})
    warm_ups = warm_up_runs(executions, samples=launch.samples, warm_up=launch.warm_up, iterations=launch.iterations)
    if warm_ups is None:
        requested = launch.samples * (launch.warm_up + launch.iterations)
        raise EvidenceError(
            f"the {launch.name} program's etdump holds {len(executions)} inferences, {requested} were requested; "
            "measure again with reuse=programs"
        )
    timed = [run for run in executions if run not in warm_ups]
    return {run: inference for inference, run in enumerate(timed)}, warm_ups
