"""The cells of a past run as data, with which they can be compared again, and the overrides that this can change.

A store is data: the names of code and of folders come from the command line that compares again, and never from a run.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from enum import Enum
from typing import Any

from qnnsweep.conf.devices import DeviceConfig, FarmConfig
from qnnsweep.conf.errors import RequestError, printable
from qnnsweep.conf.models import ModelConfig
from qnnsweep.conf.names import METRICS, SHIPPED_BACKENDS
from qnnsweep.conf.plan import Plan, PlannedCell
from qnnsweep.conf.schema import BackendConfig, MeasureConfig, Request, SocConfig
from qnnsweep.conf.schemes import SchemeConfig
from qnnsweep.conf.syntax import key_of
from qnnsweep.conf.tolerances import ToleranceConfig
from qnnsweep.conf.toolchains import ToolchainConfig

_CHANGEABLE = ("tolerance", "measure.replay", "measure.metrics", "measure.references", "limits")
"""The keys whose values may differ from those of the past run, because no capture depends on them."""
_NAMED_AGAIN = ("backend", "backend.kind")
"""The keys that can name the code of another vendor's backend again."""
KINDS: Mapping[str, Any] = {
    "model": ModelConfig,
    "scheme": SchemeConfig,
    "soc": SocConfig,
    "backend": BackendConfig,
    "device": DeviceConfig,
    "farm": FarmConfig,
    "tolerance": ToleranceConfig,
    "measure": MeasureConfig,
}
"""The groups of which a run keeps values. Of models, devices and farms it keeps what names no code and no place."""
KEPT = {"model": ("name", "classifier"), "device": ("name", "runner"), "farm": ("name",)}


def check_changeable(overrides: Sequence[str]) -> None:
    """Raise RequestError for an override of a key on which captures depend."""
    for override in overrides:
        key = key_of(override)
        changeable = any(key == known or key.startswith(f"{known}.") for known in _CHANGEABLE)
        if not changeable and key not in _NAMED_AGAIN:
            hint = "" if "=" in override else f"; to name a run, write --run={override}"
            raise RequestError(f"{override}: to compare a past run again, override only {', '.join(_CHANGEABLE)}{hint}")


def recorded(plan: Plan) -> dict[str, Any]:
    """Return the cells of a plan as plain values for JSON: lists of different values, and their numbers per cell."""
    values: dict[str, dict[str, int]] = {}
    texts: dict[int, str] = {}  # most cells share their values

    def number(group: str, value: object) -> int:
        known = values.setdefault(group, {})
        return known.setdefault(texts.get(id(value)) or texts.setdefault(id(value), _text(group, value)), len(known))

    cells: list[dict[str, Any]] = []
    for cell in plan.cells:
        request = cell.request
        numbers = {group: number(group, getattr(request, group)) for group in KINDS if group != "device"}
        devices = [number("device", device) for device in request.devices]
        others = {"toolchain": request.toolchain.name, "impossible": cell.impossible, "words": request.program_words}
        cells.append(numbers | {"devices": devices} | others)
    return {"values": {group: [json.loads(text) for text in known] for group, known in values.items()}, "cells": cells}


def _text(group: str, value: Any) -> str:
    plain = asdict(value)
    return json.dumps({name: plain[name] for name in KEPT.get(group, plain)}, default=_name)


def _name(value: Enum) -> str:
    return value.name


def restored(
    run: Mapping[str, Any],
    now: Request,
    value_of: Callable[[str, Any], Any],
    toolchain_of: Callable[[str], ToolchainConfig],
) -> tuple[PlannedCell, ...]:
    """Return the cells of which `recorded` returned the values, with what this command line says.

    `now`: the request of this command line alone, which has the limits, and names the code. `value_of`: returns the
    value of a group, changed by the overrides, and raises ValueError for anything but values. `toolchain_of`: returns
    the toolchain of that name on this machine. Raises RequestError for code that this command line does not name, and
    for a record that has more than values.
    """
    try:
        groups = {group: [value_of(group, value) for value in run["values"].get(group, ())] for group in KINDS}
        cells = [_cell(cell, groups, now, toolchain_of) for cell in run["cells"]]
    except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
        raise RequestError(f"its cells cannot be read: {printable(error)}; make the run again") from None
    for kind in {cell.request.backend.kind for cell in cells} - {*SHIPPED_BACKENDS, now.backend.kind}:
        raise _not_named("backend", kind, f"backend.kind={printable(kind)}")
    for name in {name for cell in cells for name in cell.request.measure.metrics} - {*METRICS, *now.measure.metrics}:
        otherwise = "; or leave it out, measure.metrics=[]"
        raise _not_named("metric", name, f"measure.metrics=[{printable(name)}]", otherwise)
    return tuple(cells)


def _cell(
    cell: Mapping[str, Any],
    groups: Mapping[str, Sequence[Any]],
    now: Request,
    toolchain_of: Callable[[str], ToolchainConfig],
) -> PlannedCell:
    values = {group: groups[group][cell[group]] for group in KINDS if group != "device"}
    devices = [groups["device"][number] for number in cell["devices"]]
    request = Request(
        **values,
        device=devices[0],
        pool=devices if values["farm"].name else [],
        toolchain=toolchain_of(str(cell["toolchain"])),
        program_words=[*map(str, cell["words"])],
        limits=now.limits,
    )
    return PlannedCell(request=request, impossible=None if cell["impossible"] is None else str(cell["impossible"]))


def _not_named(what: str, name: str, words: str, otherwise: str = "") -> RequestError:
    return RequestError(
        f"it used the {what} {printable(name)}, which is code of its user: a store cannot choose code; name it again, "
        f"with {words} --config-dir=FOLDER{otherwise}"
    )
