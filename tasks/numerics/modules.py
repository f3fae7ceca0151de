"""Time and cycles of each module of the model's hierarchy, from the events of its operators."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace

from qnnsweep.tasks.numerics.timing import spread
from qnnsweep.tasks.records import ModuleTime, ProfiledEvent
from qnnsweep.tasks.records.vocabulary import ProgramName

Path = tuple[str, ...]


def module_times(events: Iterable[ProfiledEvent]) -> tuple[ModuleTime, ...]:
    """Return one row per method, program, unit and module, the root module first.

    Times in µs are those of kernels and delegate calls. Amounts in other units, such as cycles, are those of operators.
    Operators in one call of a delegate, or fused by the delegate's compiler, share one time. This time belongs to the
    innermost module that contains all of these operators.
    """
    grouped: dict[tuple[str | None, ProgramName, str], list[ProfiledEvent]] = defaultdict(list)
    for event in events:
        timed = event.kind in ("kernel", "delegate_call") if event.unit == "us" else event.kind == "operator"
        if timed and event.inferences:
            grouped[event.method, event.program, event.unit].append(event)
    return tuple(
        replace(row, method=method)
        for (method, program, unit), group in grouped.items()
        for row in _modules(program, unit, group)
    )


def _modules(program: ProgramName, unit: str, events: Sequence[ProfiledEvent]) -> list[ModuleTime]:
    inferences = sorted({inference for event in events for inference in event.inferences})
    totals: dict[Path, dict[int, float]] = defaultdict(lambda: dict.fromkeys(inferences, 0.0))
    own_totals: dict[Path, float] = defaultdict(float)
    operators: dict[Path, dict[str, None]] = defaultdict(dict)
    fused = _fused(events)
    for event in events:
        for operator in event.operators:
            for outer in _outwards(_path(operator.module_path)):
                operators[outer][operator.name] = None
        if len(event.counted_in) == 1:
            continue
        path = _innermost([*_modules_of(event), *fused.get((event.subgraph, event.node), ())])
        own_totals[path] += sum(event.raw)
        for outer in _outwards(path):
            for inference, amount in zip(event.inferences, event.raw, strict=True):
                totals[outer][inference] += amount
    root_total = sum(totals[()].values())

    def row(path: Path) -> ModuleTime:
        amounts = totals.get(path)
        around = next(outer for outer in _outwards(path) if outer in totals)
        return ModuleTime(
            program=program,
            unit=unit,
            module_path=".".join(path),
            depth=len(path),
            operators=tuple(operators[path]),
            spread=None if amounts is None else spread(list(amounts.values())),
            own_mean=None if amounts is None else own_totals[path] / len(inferences),
            share=sum(amounts.values()) / root_total if amounts is not None and root_total else None,
            counted_in=".".join(around) if amounts is None else None,
        )

    return [row(path) for path in sorted({*totals, *operators})]


def _fused(events: Sequence[ProfiledEvent]) -> dict[tuple[int | None, str | None], list[str]]:
    """Return, per node (subgraph and name), the modules of the operators that are counted only in this node."""
    fused: dict[tuple[int | None, str | None], list[str]] = defaultdict(list)
    for event in events:
        if len(event.counted_in) == 1:
            fused[event.subgraph, event.counted_in[0]] += _modules_of(event)
    return fused


def _modules_of(event: ProfiledEvent) -> list[str]:
    return [operator.module_path for operator in event.operators]


def _path(module: str) -> Path:
    return tuple(module.split(".")) if module else ()


def _outwards(path: Path) -> list[Path]:
    """Return the module and all modules around it, the innermost first."""
    return [path[:depth] for depth in range(len(path), -1, -1)]


def _innermost(modules: Sequence[str]) -> Path:
    """Return the innermost module that contains all of these modules."""
    paths = [_path(module) for module in modules] or [()]
    return next(outer for outer in _outwards(paths[0]) if all(path[: len(outer)] == outer for path in paths))
