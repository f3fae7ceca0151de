"""What `qnnsweep plan` prints about the operators of its models: those that are expected not to run on the device."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType
from rich.text import Text

if TYPE_CHECKING:
    from qnnsweep.flows.forecasts.operator_forecast import OperatorForecast
    from qnnsweep.tasks.results.usability import CallForecast

Cells = Sequence[Mapping[str, Any]]
_WORDS = {
    "wrong": "known to be wrong",
    "cpu": "will stay on the CPU",
    "refused": "will be refused",
    "unknown": "not in the atlas",
}
_MOST = 20
"""The largest number of lines. `--json` has all operators."""


def operators_json(forecasts: "Sequence[OperatorForecast] | None") -> list[dict[str, Any]] | None:
    """Return the forecasts of a cell for `--json`."""
    if forecasts is None:
        return None
    return [
        {
            "call": item.call.text,
            "count": item.call.count,
            "module_path": item.call.module_path,
            "forecast": item.forecast.usability,
            "likeness": item.forecast.likeness,
            "case": item.forecast.evidence.case if item.forecast.evidence else None,
            "case_call": item.forecast.evidence.call if item.forecast.evidence else None,
            "measured_on": _place(item.forecast) if item.forecast.evidence else None,
            "why": item.forecast.evidence.why if item.forecast.evidence else None,
        }
        for item in forecasts
    ]


def operator_lines(cells: Cells, forecasts: "Sequence[Sequence[OperatorForecast] | None]") -> Iterator[RenderableType]:
    """Yield a summary of the forecasts, and what is expected not to run on the device.

    `cells`: the names of the cells by axis.
    """
    known = [(cell, operators) for cell, operators in zip(cells, forecasts, strict=True) if operators is not None]
    unexported = {
        cell["model"]
        for cell, operators in zip(cells, forecasts, strict=True)
        if operators is None and cell["impossible"] is None
    }
    if unexported:
        names = ", ".join(sorted(unexported))
        yield Text(f" operators of {names}: not known before the first export; --check exports and compiles nothing")
    if not known:
        return
    counts = Counter(item.forecast.usability for _, operators in known for item in operators)
    good = counts.pop("delegated", 0)
    others = ", ".join(f"{counts[state]} {words}" for state, words in _WORDS.items() if counts[state])
    yield Text(f" operator calls, by the atlas: {good} will run on the device" + (f", {others}" if others else ""))
    lines = [*_lines(known)]
    for line in lines[:_MOST]:
        yield Text(f"   {line}")
    if len(lines) > _MOST:
        yield Text(f"   and {len(lines) - _MOST} more; --json has all")


def _lines(known: "Sequence[tuple[Mapping[str, Any], Sequence[OperatorForecast]]]") -> Iterator[str]:
    """Yield one line per call and forecast that is not `delegated`, with the schemes and SoCs that it holds for."""
    holds_for: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for cell, operators in known:
        for item in operators:
            if item.forecast.usability != "delegated":
                times = f" ×{item.call.count}" if item.call.count > 1 else ""
                module = f" in {item.call.module_path}" if item.call.module_path else ""
                what = f"{cell['model']}: {item.call.text}{times}{module}"
                key = (what, _WORDS[item.forecast.usability], _evidence(item.forecast))
                holds_for[key].append(f"{cell['scheme']} {cell['soc']}")
    for (what, words, evidence), where in holds_for.items():
        yield f"{what} {words} in {', '.join(dict.fromkeys(where))}{evidence}"


def _evidence(forecast: "CallForecast") -> str:
    evidence = forecast.evidence
    if evidence is None:
        return ""
    call = "" if forecast.likeness == "same call" else f", {evidence.call}"
    why = f": {evidence.why}" if evidence.why else ""
    return f" (case {evidence.case}, {forecast.likeness}{call}, {_place(forecast)}{why})"


def _place(forecast: "CallForecast") -> str:
    assert forecast.evidence is not None
    where = forecast.evidence.where
    toolchain = "" if where.toolchain == "default" else f" {where.toolchain}"
    return f"{where.scheme} {forecast.evidence.soc}{toolchain}"
