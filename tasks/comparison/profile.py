"""The times in a capture's logs, joined with the operators to which the times belong."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from qnnsweep.tasks.errors import EvidenceError
from qnnsweep.tasks.numerics.timing import EXECUTION, EventTimes, counted_in, event_times, warm_up_runs
from qnnsweep.tasks.records import (
    Blob,
    CapturedMethod,
    DelegatedNode,
    Instruction,
    Launch,
    LoweredMethod,
    Operator,
    ProfiledEvent,
)
from qnnsweep.tasks.storage.store import Store
from qnnsweep.tasks.toolchain.backends.backend import Backend
from qnnsweep.tasks.toolchain.readback.etdump import ETDump, read_etdump


def profiled_events(
    lowered: LoweredMethod, capture: CapturedMethod, backend: Backend, store: Store
) -> tuple[ProfiledEvent, ...]:
    """Return the timed events of the shipping program, then those of the profile program. Warm-ups are left out.

    Raises EvidenceError if the number of inferences in a log is not the requested number.
    """
    launches = {result.launch.name: result.launch for result in capture.results}
    logs: dict[str, tuple[Blob, Blob | None]] = {"shipping": (capture.etdump, capture.outputs)}
    if capture.etdump_profile is not None:
        logs["profile"] = (capture.etdump_profile, capture.outputs_profile)
    return tuple(
        event
        for program, (log, outputs) in logs.items()
        for event in _ProgramLog(
            lowered, launches[program], read_etdump(store.read(log)), backend, same_outputs=outputs == capture.outputs
        ).events()
    )


class _ProgramLog:
    """The log of one program, with the operators of its method."""

    def __init__(
        self, lowered: LoweredMethod, launch: Launch, log: ETDump, backend: Backend, *, same_outputs: bool
    ) -> None:
        self._launch = launch
        self._same_outputs = same_outputs
        self._inferences, warm_ups = _timed(launch, log)
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
        self._nodes: dict[tuple[int | None, str | None], DelegatedNode] = {}
        self._users: dict[int, dict[str, Sequence[str]]] = defaultdict(dict)
        for node in lowered.profile.nodes if lowered.profile else ():
            if node.subgraph is not None:
                self._nodes[node.subgraph, node.name] = node
                self._users[node.subgraph][node.name] = node.users
        self._counts: dict[int, dict[str, float]] = defaultdict(dict)
        for event in self._events:
            instruction = self._instruction(event)
            if event.node is not None and instruction is not None and instruction.subgraph is not None:
                self._counts[instruction.subgraph][event.node] = max(event.raw)

    def events(self) -> Iterator[ProfiledEvent]:
        for event in self._events:
            instruction = self._instruction(event)
            subgraph = instruction.subgraph if instruction else None
            handles, counted = instruction.debug_handles if instruction else (), ()
            if instruction is not None and event.kind in ("operator", "accelerator"):
                handles, counted = self._operator(event, subgraph)
            operators = [operator for handle in handles for operator in self._operators.get(handle, [])]
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
                debug_handles=handles,
                backend=instruction.backend if instruction else None,
                subgraph=subgraph,
                counted_in=counted,
            )

    def _instruction(self, event: EventTimes) -> Instruction | None:
        return None if event.instruction is None else self._instructions.get(event.instruction)

    def _operator(self, event: EventTimes, subgraph: int | None) -> tuple[tuple[int, ...], tuple[str, ...]]:
        """Return the debug handle of the event's operator, and the nodes whose cycles include the operator's work."""
        node = self._nodes.get((subgraph, event.node))
        handles = () if node is None or node.debug_handle is None else (node.debug_handle,)
        if node is None or subgraph is None or max(event.raw):
            return handles, ()
        return handles, counted_in(node.name, self._users[subgraph], self._counts[subgraph])


def _timed(launch: Launch, log: ETDump) -> tuple[dict[int, int], set[int]]:
    """Return a map from each timed run in the log to the index of its inference, and the set of the warm-up runs."""
    executions = sorted({event.run for event in log.events if event.name == EXECUTION})
    warm_ups = warm_up_runs(executions, samples=launch.samples, warm_up=launch.warm_up, iterations=launch.iterations)
    if warm_ups is None:
        requested = launch.samples * (launch.warm_up + launch.iterations)
        raise EvidenceError(
            f"the {launch.name} program's etdump holds {len(executions)} inferences, but {requested} were requested; "
            "measure again with reuse=programs"
        )
    timed = [run for run in executions if run not in warm_ups]
    return {run: inference for inference, run in enumerate(timed)}, warm_ups
