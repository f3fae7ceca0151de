"""What must be computed again when one thing changes: the specification of every cache key, input by input.

`test_cache_keys.py` holds the real keys to it, and to every field of `conf.schema.Request` having its line.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

from conf.names import CACHED_STAGES as STAGES
from conf.schema import (
    BackendKind,
    DeviceConfig,
    FloorConfig,
    OperatorTolerance,
    PerformanceMode,
    Precision,
    Reuse,
    RunnerKind,
)
from tasks.records import Toolchain

ALL = frozenset(STAGES)
"""Measurements are looked up only with `reuse=capture`, which the table asks for."""
NONE: frozenset[str] = frozenset()
QUANTIZE_ON = ALL - {"export"}
LOWER_ON = QUANTIZE_ON - {"quantize"}
BUNDLE_ON = LOWER_ON - {"lower"}
MEASURE_ON = BUNDLE_ON - {"bundle"}
COMPARE = frozenset({"compare"})
EXPORT = frozenset({"export"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """One thing that changes, and the stages that compute again for it, quantized and in float."""

    what: str
    """A field of `Request` (`model.inputs.shape`), or what else a result is made of."""
    to: Any
    """Its new value, or a function of the old one. Of what is no field: see `World`."""
    quantized: frozenset[str]
    floats: frozenset[str] | None
    """The same where it differs for a scheme without integers; None where the change makes no sense in one."""
    why: str


def same(what: str, to: Any, stages: frozenset[str], why: str) -> Change:
    return Change(what=what, to=to, quantized=stages, floats=stages, why=why)


def own(what: str, to: Any, quantized: frozenset[str], floats: frozenset[str] | None, why: str) -> Change:
    return Change(what=what, to=to, quantized=quantized, floats=floats, why=why)


_LABEL = "a label: no byte of a result depends on it"
_WAIT = "how long to wait for a device, or how to get in, not what it answers"
_PASSED = "a float program has nothing of it"
_SWEEP = "how a sweep goes, not what it finds"
_NIGHTS = "held against earlier nights when the rows are there"

REQUEST = (
    same("model.name", "another", NONE, _LABEL),
    same("model.factory", "own_net:wider", ALL, "the module itself"),
    same("model.arguments", {"width": 4, "weights": "weights.bin"}, ALL, "the module itself"),
    same("model.inputs.name", lambda old: f"{old}s", ALL, "the traced program's signature"),
    same("model.inputs.shape", [2, 1, 8, 8], ALL, "the traced program's signature"),
    same("model.inputs.dtype", "int32", ALL, "the traced program's signature"),
    own("model.calibration.source", "own_data:others", ALL, EXPORT, f"what observers see; {_PASSED}"),
    own("model.calibration.arguments", {"seed": 2}, ALL, EXPORT, f"what observers see; {_PASSED}"),
    own("model.calibration.count", 16, ALL, EXPORT, f"what observers see; {_PASSED}"),
    same("model.evaluation.source", "own_samples:others", ALL, "every rung's answers are to these samples"),
    same("model.evaluation.arguments", {"seed": 2}, ALL, "every rung's answers are to these samples"),
    same("model.evaluation.count", 4, ALL, "every rung's answers are to these samples"),
    same("model.classifier", True, COMPARE, "what an output means, not how it is made"),
    same("scheme.name", "another", COMPARE, "tolerances are found by it; quantizer and compiler never see it"),
    own("scheme.precision", None, QUANTIZE_ON, LOWER_ON, "no float precision is quantized for, both are compiled for"),
    own("scheme.quant_dtype", "16a8w", QUANTIZE_ON, None, "the grids, and the compiler's precision flag"),
    own("scheme.per_channel_conv", False, QUANTIZE_ON, NONE, f"the quantizer's; {_PASSED}"),
    own("scheme.per_channel_linear", False, QUANTIZE_ON, NONE, f"the quantizer's; {_PASSED}"),
    own("scheme.per_channel_embedding", True, QUANTIZE_ON, NONE, f"the quantizer's; {_PASSED}"),
    own("scheme.observer", "HistogramObserver", QUANTIZE_ON, NONE, f"the quantizer's; {_PASSED}"),
    own("scheme.activation_symmetric", True, QUANTIZE_ON, NONE, f"the quantizer's; {_PASSED}"),
    own("scheme.calibration_samples", 4, QUANTIZE_ON, NONE, f"the quantizer's; {_PASSED}"),
    own("scheme.block_size", {"conv2d": [1, 8, 1, 1]}, QUANTIZE_ON, NONE, f"the quantizer's; {_PASSED}"),
    same("soc.name", "SM8550", LOWER_ON, "what is compiled for; a quantizer asks for none"),
    same("soc.arch", 73, LOWER_ON, "a program is read back and held against it"),
    same("soc.vtcm_mib", 4, LOWER_ON, "a program is read back and held against it"),
    same("backend.name", "another", NONE, _LABEL),
    own("backend.kind", BackendKind.xnnpack, QUANTIZE_ON, LOWER_ON, "whose quantizer, and whose compiler"),
    same("device.name", "another", MEASURE_ON, "the device: its answers are its own"),
    same("device.transport", None, MEASURE_ON, "the way to the device"),
    same("device.address", "a-serial", MEASURE_ON, "the way to the device"),
    same("device.adb_server", "localhost:5555", MEASURE_ON, "the way to the device"),
    same("device.ssh.jump", "gate", MEASURE_ON, "behind another gate an address is another host"),
    same("device.ssh.host_keys", None, NONE, _WAIT),
    same("device.ssh.known_hosts", "hosts", NONE, _WAIT),
    same("device.ssh.key_file", "key", NONE, _WAIT),
    same("device.ssh.agent", False, NONE, _WAIT),
    same("device.ssh.password_variable", "PASSWORD", NONE, _WAIT),
    same("device.ssh.keep_alive_s", 30, NONE, _WAIT),
    same("device.soc", "SM8650", MEASURE_ON, "a simulator host is another device than that SoC's own"),
    same("device.runner", RunnerKind.native, MEASURE_ON, "what runs the program"),
    same("device.work_folder", "elsewhere", NONE, "where files lie on the device"),
    same("device.python", "another", MEASURE_ON, "what runs the program"),
    same("device.native_folder", "another", NONE, "not the Python runner's; the native one's files count"),
    same("device.environment", {"A": "b"}, MEASURE_ON, "what the runner sees"),
    same("device.tags", ["desk"], NONE, _LABEL),
    same("device.deadline_s", 1.0, NONE, _WAIT),
    same("device.below_celsius", 40.0, MEASURE_ON, "latencies of a hot device are others"),
    same("device.cool_down_s", 1.0, NONE, _WAIT),
    same("device.keep_days", 1.0, NONE, _WAIT),
    same("device.least_free_mib", 1, NONE, _WAIT),
    same("farm.name", "another", NONE, _LABEL),
    same("farm.devices", ["another"], NONE, "their names: the devices themselves are `pool`"),
    same("pool", [DeviceConfig(name="other"), DeviceConfig(name="local")], MEASURE_ON, "which devices may answer"),
    same("tolerance.name", "another", NONE, _LABEL),
    same("tolerance.final_snr_db", {"8a8w": 90.0, "fp16": 90.0}, NONE, "judged after the comparison, by its numbers"),
    same("tolerance.top1_agreement", {"8a8w": 1.0, "fp16": 1.0}, NONE, "judged after the comparison, by its numbers"),
    same("tolerance.operators.snr_db", 50.0, COMPARE, "an operator's verdict"),
    same("tolerance.operators.steps", 1.0, COMPARE, "an operator's verdict"),
    same("tolerance.introduced_operators", 0, NONE, "judged after the comparison, by its numbers"),
    same("measure.performance_mode", PerformanceMode.burst, BUNDLE_ON, "how the runner is started"),
    same("measure.warm_up", 2, BUNDLE_ON, "how the runner is started"),
    same("measure.iterations", 2, BUNDLE_ON, "how the runner is started"),
    same("measure.debug_buffer_bytes", 1, BUNDLE_ON, "how the runner is started"),
    same("measure.operator_samples", 2, LOWER_ON, "the reference's values are kept for so many samples"),
    same("measure.dump_operators", False, LOWER_ON, "there is a debug program or there is none"),
    same("measure.profile_level", 2, LOWER_ON, "there is a profile program or there is none"),
    same("measure.references", ["edge", "exported"], LOWER_ON, "their values are kept at lowering"),
    same("measure.replay", False, COMPARE, "whether operators run again"),
    same("measure.metrics", ["l1"], COMPARE, "what is counted"),
    same("reuse", Reuse.programs, NONE, "what is looked for, not what is kept"),
    same("limits.parallel", 1, NONE, _SWEEP),
    same("limits.memory_gib", 1.0, NONE, _SWEEP),
    same("limits.shard_attempts", 1, NONE, _SWEEP),
    same("limits.silence_s", 60.0, NONE, _SWEEP),
    same("limits.child_deadline_s", 1.0, NONE, _SWEEP),
    same("limits.child_memory_gib", 1.0, NONE, _SWEEP),
    same("schedule.cron", "0 0 * * *", NONE, _SWEEP),
    same("schedule.timezone", "Europe/Berlin", NONE, _SWEEP),
    same("retention.keep_runs", 1, NONE, _SWEEP),
    same("retention.keep_days", 1.0, NONE, _SWEEP),
    same("retention.max_gib", 1.0, NONE, _SWEEP),
    same("cache_folder", "elsewhere", NONE, "copies of what is kept"),
    same("trend.nights", 10, NONE, _NIGHTS),
    same("trend.least_nights", 5, NONE, _NIGHTS),
    same("trend.sigmas", 3.0, NONE, _NIGHTS),
    *(same(f"trend.floors.{each.name}", 0.5, NONE, _NIGHTS) for each in fields(FloorConfig)),
    same("trend.fail", True, NONE, _NIGHTS),
    same("trend.notify", ["custom-webhook/team"], NONE, _NIGHTS),
    same("artifacts", "elsewhere", NONE, "what is kept lies there; its keys are the same everywhere"),
)

_FILE = "the code or the bytes behind a model's functions: which function reads which file, nobody knows beforehand"

BESIDES = (
    same("file own_net.py", "WIDTH = 4\n", ALL, _FILE),
    same("file weights.bin", "1", ALL, _FILE),
    own("file own_data.py", "SEED = 4\n", ALL, EXPORT, f"{_FILE}; {_PASSED}"),
    same("file own_samples.py", "SEED = 4\n", ALL, "every rung's answers are to these samples"),
    same("file own_metric.py", "BASE = 4\n", COMPARE, "a user's own metric"),
    same("file runner.py", "# another runner\n", BUNDLE_ON, "it is one of a bundle's files"),
    same("operators of another scheme", OperatorTolerance(snr_db=1.0), NONE, "not what this cell is judged by"),
    *(
        same(f"toolchain {each.name}", "another", ALL, "the same call may compute something else")
        for each in fields(Toolchain)
    ),
    *(
        same(f"version {stage}", None, frozenset(STAGES[number:]), "it computes something else, and so all after it")
        for number, stage in enumerate(STAGES)
    ),
)


def with_field(value: Any, path: str, to: Any) -> Any:
    """The value with its field at `path` changed, in every item where the way leads through a list or a mapping."""
    name, _, rest = path.partition(".")
    old = getattr(value, name)
    if not rest:
        return replace(value, **{name: _changed(name, to, old)})
    if isinstance(old, list):
        return replace(value, **{name: [with_field(each, rest, to) for each in old]})
    if isinstance(old, dict):
        return replace(value, **{name: {key: with_field(each, rest, to) for key, each in old.items()}})
    return replace(value, **{name: with_field(old, rest, to)})


def _changed(name: str, to: Any, old: Any) -> Any:
    if name == "precision":  # another float one, of a float one
        return Precision.float32 if old is Precision.float16 else Precision.float16
    if to is None:  # another member of the enum
        return next(each for each in type(old) if each is not old)
    return to(old) if isinstance(to, Callable) else to


def as_markdown() -> str:
    """The table as docs/cache.md has it."""
    lines = ["| change | quantized | float | because |", "| --- | --- | --- | --- |"]
    for each in (*REQUEST, *BESIDES):
        floats = "–" if each.floats is None else _stages(each.floats)
        lines.append(f"| `{each.what}` | {_stages(each.quantized)} | {floats} | {each.why} |")
    return "\n".join(lines) + "\n"


def _stages(named: frozenset[str]) -> str:
    """`lower …` is lower and all after it."""
    first = next((number for number, stage in enumerate(STAGES) if stage in named), None)
    if first is None:
        return "nothing"
    return f"{STAGES[first]} …" if named == set(STAGES[first:]) and len(named) > 1 else ", ".join(sorted(named))
