"""The division of a debug program that does not run, or that is not the shipping program, into several programs.

Logging a value can keep the compiler from merging it with its reader, and a program that logs all values can be too
large for the runtime. Each of several programs logs a part of the operators. A part whose program does not serve is
halved, until a single operator is left, which no program logs.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from numpy.typing import NDArray
from safetensors.numpy import load

from qnnsweep.tasks.comparison.evidence import device_outputs
from qnnsweep.tasks.numerics.ablation import error_energy
from qnnsweep.tasks.numerics.noise import decibels
from qnnsweep.tasks.numerics.samples import sample_noise
from qnnsweep.tasks.records import Capture, CapturedMethod, Division, LoweredMethod, LoweredProgram, Span, Unlogged
from qnnsweep.tasks.records.debugged import first_of_handles
from qnnsweep.tasks.storage.store import Store

_OWN_SHARE = 0.01
"""The share of the error's energy above which the debug program's own error makes its log another program's."""

_FLOAT_SERVES_DB = 35.0
"""A float program serves if its final outputs have at least this SNR against those of the shipping program: each
program rounds in other places, and to divide it into several changes that again."""

Tensors = Mapping[str, NDArray[Any]]


def next_divisions(
    lowered: LoweredProgram, capture: Capture, most: int, store: Store, *, is_float: bool = False
) -> tuple[Division | None, ...] | None:
    """Return how the debug programs of each method are to be divided; None if no method's programs are to be.

    `most`: the most debug programs of a method. `is_float`: whether the scheme has no grids.
    """
    pairs = zip(lowered.methods, capture.methods, strict=True)
    serves_db = _FLOAT_SERVES_DB if is_float else None
    divisions = tuple(_next_division(*pair, most, store, serves_db) for pair in pairs)
    return divisions if any(division is not None for division in divisions) else None


def _next_division(
    method: LoweredMethod, capture: CapturedMethod, most: int, store: Store, serves_db: float | None
) -> Division | None:
    """`serves_db`: the least SNR of a program that serves; None if only the share of the error's energy counts."""
    if most < 2 or not method.debug_programs:
        return None
    failing = dict(_failing(method, capture, store, serves_db))
    present = [debug.span or Span(first=0, end=len(method.operators)) for debug in method.debug_programs]
    room = most - len(present)
    spans, unlogged = list[Span](), [*method.unlogged]
    for number, span in enumerate(present):
        middle = _middle(method, span)
        if number in failing and middle is None:
            unlogged.append(Unlogged(span=span, reason=failing[number]))
        elif number in failing and middle is not None and room > 0:
            spans += [Span(first=span.first, end=middle), Span(first=middle, end=span.end)]
            room -= 1
        else:
            spans.append(span)
    return None if not spans or spans == present else Division(spans=tuple(spans), unlogged=tuple(unlogged))


def _middle(method: LoweredMethod, span: Span) -> int | None:
    """Return the operator at which a part is halved; None if a delegate logs less than two operators of the part.

    The outputs of one call, which share its debug handle, stay together.
    """
    logged = {
        row.debug_handle
        for row in method.operators
        if row.subgraph is not None and row.shape is not None and not (row.constant or row.unused)
    }
    calls = first_of_handles(method.operators)
    inside = sorted(calls[handle] for handle in logged - {None} if span.first <= calls[handle] < span.end)
    return inside[len(inside) // 2] if len(inside) > 1 else None


def _failing(
    method: LoweredMethod, capture: CapturedMethod, store: Store, serves_db: float | None
) -> Iterator[tuple[int, str]]:
    """Yield the number of each debug program that does not serve, from 0, and the reason."""
    shipping = device_outputs(method, capture.outputs, store)
    eager = load(store.read(method.exported.outputs_eager))
    for number, debug in enumerate(method.debug_programs):
        part = None if debug.span is None else number + 1
        logs = [device_outputs(method, files.outputs, store) for files in capture.debug if files.part == part]
        reason = debug.unavailable or capture.failures.get(part) or _difference(logs, shipping, eager, serves_db)
        if reason is not None:
            yield number, reason


def _difference(logs: Sequence[Tensors], shipping: Tensors, eager: Tensors, serves_db: float | None) -> str | None:
    """Return how the final outputs of a debug program differ from the shipping program's; None if they hardly do."""
    worst = 0.0
    for key, output in ((key, output) for outputs in logs for key, output in outputs.items()):
        own, error = error_energy(output, shipping[key]), error_energy(shipping[key], eager[key])
        if own > _OWN_SHARE * error:
            worst = max(worst, sample_noise([(output, shipping[key])]))
    if not worst or (serves_db is not None and decibels(worst) >= serves_db):
        return None
    return f"a program that logs it has other final outputs ({decibels(worst):.1f} dB)"
