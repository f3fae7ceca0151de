"""The specification of every cache key: which stages are computed again when one input changes.

`test_cache_keys.py` tests the real keys against it, and that every field of `qnnsweep.conf.schema.Request` has a line.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

from qnnsweep.conf.devices import DeviceConfig, RunnerKind
from qnnsweep.conf.models import MethodConfig, StateConfig
from qnnsweep.conf.names import STAGES
from qnnsweep.conf.schema import FloorConfig, PerformanceMode, Reuse
from qnnsweep.conf.schemes import ChangeConfig, OverridePrecision, Precision, SchemeConfig
from qnnsweep.conf.tolerances import OperatorTolerance
from qnnsweep.tasks.records import Toolchain

ALL = frozenset(STAGES)
"""Includes `measure`, whose results are looked up only with `reuse=capture`, which the specification sets."""
NONE: frozenset[str] = frozenset()
QUANTIZE_ON = ALL - {"export"}
LOWER_ON = QUANTIZE_ON - {"quantize"}
BUNDLE_ON = LOWER_ON - {"lower", "divide"}
MEASURE_ON = BUNDLE_ON - {"bundle"}
COMPARE = frozenset({"compare", "cure"})
CURE = frozenset({"cure"})
EXPORT = frozenset({"export"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """A change of one input, and the stages that it makes compute again, for quantized and for float schemes."""

    what: str
    """A field of `Request` (`model.inputs.shape`), or another input of a result."""
    to: Any
    """The new value, or a function of the old one. For an input that is not a field, see `World`."""
    quantized: frozenset[str]
    floats: frozenset[str] | None
    """The same for a float scheme; None if the change does not exist for one."""
    why: str


def same(what: str, to: Any, stages: frozenset[str], why: str) -> Change:
    return Change(what=what, to=to, quantized=stages, floats=stages, why=why)


def differs(what: str, to: Any, quantized: frozenset[str], floats: frozenset[str] | None, why: str) -> Change:
    return Change(what=what, to=to, quantized=quantized, floats=floats, why=why)


_LABEL = "a label: no result depends on it"
_WAIT = "does not change the outputs"
_HIRE = "the way to hire a device"
_SWEEP = "how a sweep runs, not its results"
_NIGHTS = "applied to the finished rows"
_REPAIR = "the target and the limits of a repair, whose cells have their own keys"
_SOURCES = "the data sources of the model, which follow from it, are in the key"
_NUMBER = "the number that a change must raise"
_MEASURED = ChangeConfig(
    cause="weights", change="16-bit weights", operators=["linear"], scheme=SchemeConfig(name="8a8w"), has_failed=True
)

REQUEST = (
    same("model.name", "another", NONE, _LABEL),
    same("model.factory", "own_net:wider", ALL, "the module itself"),
    same("model.arguments", {"width": 4, "weights": "weights.bin"}, ALL, "the module itself"),
    same("model.inputs.name", lambda old: f"{old}s", ALL, "the traced program's signature"),
    same("model.inputs.shape", [2, 1, 8, 8], ALL, "the traced program's signature"),
    same("model.inputs.dtype", "int32", ALL, "the traced program's signature"),
    differs("model.calibration.source", "own_data:others", ALL, EXPORT, "the data of the observers"),
    differs("model.calibration.arguments", {"seed": 2}, ALL, EXPORT, "the data of the observers"),
    differs("model.calibration.count", 16, ALL, EXPORT, "the data of the observers"),
    same("model.evaluation.source", "own_samples:others", ALL, "the outputs are for these samples"),
    same("model.evaluation.arguments", {"seed": 2}, ALL, "the outputs are for these samples"),
    same("model.evaluation.count", 4, ALL, "the outputs are for these samples"),
    same("model.methods", [MethodConfig(name="decode")], ALL, "the traced programs, their data and their samples"),
    same("model.states", [StateConfig(output="0", input="image")], ALL, "the samples become sequences of steps"),
    same("model.cases", "own_data:sample", EXPORT, "in the key of the export only: `qnnsweep atlas` lists the cases"),
    same("model.driver.output", "scores", ALL, "which tokens the steps read"),
    same("model.driver.input", "text", ALL, "which tokens the steps read"),
    same("model.driver.tokens", "teacher_forced", ALL, "which tokens the steps read"),
    same("model.classifier", True, COMPARE, "the meaning of an output, not its computation"),
    same("scheme.name", "another", COMPARE, "the key of the tolerances, not an input of the compiler"),
    differs("scheme.precision", None, QUANTIZE_ON, LOWER_ON, "needed by the compiler, not by the quantizer"),
    differs("scheme.quant_dtype", "16a8w", QUANTIZE_ON, None, "the quantization, and the compiler's precision flag"),
    differs("scheme.per_channel_conv", False, QUANTIZE_ON, NONE, "an option of the quantizer"),
    differs("scheme.per_channel_linear", False, QUANTIZE_ON, NONE, "an option of the quantizer"),
    differs("scheme.per_channel_embedding", True, QUANTIZE_ON, NONE, "an option of the quantizer"),
    differs("scheme.observer", "HistogramObserver", QUANTIZE_ON, NONE, "an option of the quantizer"),
    differs("scheme.activation_symmetric", True, QUANTIZE_ON, NONE, "an option of the quantizer"),
    differs("scheme.calibration_samples", 4, QUANTIZE_ON, NONE, "an option of the quantizer"),
    differs("scheme.block_size", {"conv2d": [1, 8, 1, 1]}, QUANTIZE_ON, NONE, "an option of the quantizer"),
    *(
        differs(f"scheme.overrides.{name}", to, QUANTIZE_ON, None, "which operators are quantized in another way")
        for name, to in (
            ("method", "decode"),
            ("module", "b"),
            ("operator", "conv2d"),
            ("node", "conv2d_1"),
            ("input", "x"),
        )
    ),
    *(
        differs(f"scheme.overrides.{name}", to, QUANTIZE_ON, None, "how operators are quantized in another way")
        for name, to in (
            ("precision", OverridePrecision.cpu),
            ("quant_dtype", "16a8w"),
            ("observer", "HistogramObserver"),
            ("range", [0.0, 6.0]),
            ("symmetric", True),
            ("per_channel", False),
            ("block_size", [1, 16]),
            ("share_clamp", True),
            ("as_conv2d", True),
            ("constant_range", [0.0, 6.0]),
            ("least_weight_scale", 0.125),
            ("fit_weights", True),
        )
    ),
    same("soc.name", "SM8550", LOWER_ON, "the target of the compiler, not of the quantizer"),
    same("soc.arch", 73, LOWER_ON, "a program is audited against it"),
    same("soc.vtcm_mib", 4, LOWER_ON, "a program is audited against it"),
    same("toolchain.name", "another", NONE, _LABEL),
    same("toolchain.folder", "/another", NONE, "the location of its files, whose digest is in the keys"),
    same("backend.name", "another", NONE, _LABEL),
    differs("backend.kind", "xnnpack", QUANTIZE_ON, LOWER_ON, "selects the quantizer and the compiler"),
    same("device.name", "another", MEASURE_ON, "outputs are specific to a device"),
    same("device.transport", None, MEASURE_ON, "identifies the device"),
    same("device.address", "a-serial", MEASURE_ON, "identifies the device"),
    same("device.adb_server", "localhost:5555", MEASURE_ON, "identifies the device"),
    same("device.ssh.jump", "gate", MEASURE_ON, "the address is relative to the jump host"),
    same("device.ssh.host_keys", None, NONE, _WAIT),
    same("device.ssh.known_hosts", "hosts", NONE, _WAIT),
    same("device.ssh.key_file", "key", NONE, _WAIT),
    same("device.ssh.agent", False, NONE, _WAIT),
    same("device.ssh.password_variable", "PASSWORD", NONE, _WAIT),
    same("device.ssh.jump_password_variable", "PASSWORD", NONE, _WAIT),
    same("device.ssh.keep_alive_s", 30, NONE, _WAIT),
    same("device.soc", "SM8650", MEASURE_ON, "distinguishes a simulator from a real SoC"),
    same("device.runner", RunnerKind.native, MEASURE_ON, "runs the program"),
    same("device.work_folder", "elsewhere", NONE, "the location of files on the device"),
    same("device.lock_folder", "/elsewhere", NONE, "the location of the lock on the device"),
    same("device.python", "another", MEASURE_ON, "runs the program"),
    same("device.native_folder", "another", NONE, "only the files of a native runner count"),
    same("device.environment", {"A": "b"}, MEASURE_ON, "the environment of the runner"),
    same("device.lease.acquire", ["acquire"], NONE, _HIRE),
    same("device.lease.extend", ["extend"], NONE, _HIRE),
    same("device.lease.release", ["release"], NONE, _HIRE),
    same("device.lease.acquire_s", 1.0, NONE, _WAIT),
    same("device.lease.release_s", 1.0, NONE, _WAIT),
    same("device.lease.extend_every_s", 1.0, NONE, _WAIT),
    same("device.lease.idle_s", 1.0, NONE, _WAIT),
    same("device.lease.minutes", 1.0, NONE, _WAIT),
    same("device.aihub.device", "another", MEASURE_ON, "identifies the device"),
    same("device.aihub.os", "15", MEASURE_ON, "identifies the device"),
    same("device.aihub.options", "--qairt_version 2.49", MEASURE_ON, "runs the program"),
    same("device.tags", ["desk"], NONE, _LABEL),
    same("device.deadline_s", 1.0, NONE, _WAIT),
    same("device.below_celsius", 40.0, MEASURE_ON, "changes the latencies"),
    same("device.cool_down_s", 1.0, NONE, _WAIT),
    same("device.keep_days", 1.0, NONE, _WAIT),
    same("device.least_free_mib", 1, NONE, _WAIT),
    same("farm.name", "another", NONE, _LABEL),
    same("farm.devices", ["another"], NONE, "only names: the devices are in `pool`"),
    same(
        "pool",
        [DeviceConfig(name="other"), DeviceConfig(name="local")],
        MEASURE_ON,
        "the devices that may run the cell",
    ),
    same("tolerance.name", "another", NONE, _LABEL),
    same("tolerance.final_snr_db", {"8a8w": 90.0, "fp16": 90.0}, NONE, "applied to the results of the comparison"),
    same("tolerance.top1_agreement", {"8a8w": 1.0, "fp16": 1.0}, NONE, "applied to the results of the comparison"),
    same("tolerance.equal_elements", {"8a8w": 0.5, "fp16": 0.5}, NONE, "applied to the results of the comparison"),
    same("tolerance.kl_divergence_nats", {"8a8w": 0.1, "fp16": 0.1}, NONE, "applied to the results of the comparison"),
    same("tolerance.perplexity_ratio", {"8a8w": 1.1, "fp16": 1.1}, NONE, "applied to the results of the comparison"),
    same("tolerance.headline", {"output": "row_snr_db"}, NONE, "applied to the results of the comparison"),
    same("tolerance.operators.snr_db", 50.0, COMPARE, "determines the verdicts of operators"),
    *(
        same(f"tolerance.operators.{name}", 0.125, COMPARE, "determines the verdicts of operators")
        for name in ("steps", "rms_steps", "elements", "differing", "mean_steps", "gain")
    ),
    same("tolerance.introduced_operators", 0, NONE, "applied to the results of the comparison"),
    same("measure.performance_mode", PerformanceMode.burst, BUNDLE_ON, "an argument of the runner"),
    same("measure.warm_up", 2, BUNDLE_ON, "an argument of the runner"),
    same("measure.iterations", 2, BUNDLE_ON, "an argument of the runner"),
    same("measure.debug_buffer_bytes", 1, BUNDLE_ON, "an argument of the runner"),
    same("measure.operator_samples", 2, LOWER_ON, "the number of samples with stored references"),
    same("measure.dump_operators", False, LOWER_ON, "whether there is a debug program"),
    same("measure.debug_programs", 2, NONE, "among how many debug programs the operators may be divided"),
    same("measure.profile_level", 2, LOWER_ON, "whether there is a profile program"),
    same("measure.references", ["edge", "exported"], LOWER_ON, "their values are stored at lowering"),
    same("measure.second_runtime", True, BUNDLE_ON, "what a device gets, and whether it executes it twice"),
    same("measure.replay", False, COMPARE, "whether operators are run again"),
    same("measure.budget", False, COMPARE, "whether the error budget is computed"),
    differs("measure.cures", 5, CURE, NONE, "how many changes of the scheme are tried"),
    same("measure.metrics", ["l1"], COMPARE, "selects what is computed"),
    same("reuse", Reuse.programs, NONE, "selects what is looked up, not what is stored"),
    same("limits.parallel", 1, NONE, _SWEEP),
    same("limits.memory_gib", 1.0, NONE, _SWEEP),
    same("limits.shard_attempts", 1, NONE, _SWEEP),
    same("limits.silence_s", 60.0, NONE, _SWEEP),
    same("limits.new_cases", 24, NONE, _SWEEP),
    same("limits.child_deadline_s", 1.0, NONE, _SWEEP),
    same("limits.child_memory_gib", 1.0, NONE, _SWEEP),
    same("schedule.cron", "0 0 * * *", NONE, _SWEEP),
    same("schedule.timezone", "Europe/Berlin", NONE, _SWEEP),
    same("target.final_snr_db", 30.0, NONE, _REPAIR),
    differs("target.mean_snr_db", 30.0, CURE, NONE, _NUMBER),
    differs("target.quantile_snr_db", 30.0, CURE, NONE, _NUMBER),
    same("target.quantile", 0.25, NONE, _REPAIR),
    differs("target.top1_agreement", 1.0, CURE, NONE, _NUMBER),
    differs("target.accuracy", 1.0, CURE, NONE, _NUMBER),
    differs("target.metric", "mse", CURE, NONE, _NUMBER),
    differs("target.metric_at_least", 0.5, CURE, NONE, _NUMBER),
    differs("target.metric_at_most", 0.5, CURE, NONE, _NUMBER),
    differs("target.introduced_operators", 0, CURE, NONE, _NUMBER),
    differs("target.size_kib", 1, CURE, NONE, "which changes are tried"),
    differs("target.effective_bits", 4.0, CURE, NONE, "which changes are tried"),
    same("budget.compilations", 2, NONE, _REPAIR),
    same("budget.size_ratio", 1.25, NONE, _REPAIR),
    same("budget.ddr_ratio", 1.25, NONE, _REPAIR),
    same("budget.cycles_ratio", 1.25, NONE, _REPAIR),
    same("budget.spill_bytes", 0, NONE, _REPAIR),
    same("certificate.samples", 2, NONE, _REPAIR),
    differs("measured_changes", [_MEASURED], CURE, NONE, "they are not tried again"),
    same("searched_samples", 2, LOWER_ON, "the samples to capture are chosen among these"),
    same("samples", "photographs", NONE, _SOURCES),
    same("calibration", "photographs", NONE, _SOURCES),
    same("program_words", ["model=another"], NONE, "shown in commands only"),
    same("retention.keep_runs", 1, NONE, _SWEEP),
    same("retention.keep_days", 1.0, NONE, _SWEEP),
    same("retention.max_gib", 1.0, NONE, _SWEEP),
    same("cache_folder", "elsewhere", NONE, "holds copies only"),
    same("object_store.timeout_s", 1.0, NONE, _SWEEP),
    same("object_store.attempts", 1, NONE, _SWEEP),
    same("by_operator", True, NONE, "selects cells: with it, a cell has operator calls and no whole model"),
    same("try_impossible", True, NONE, "selects cells, whose results do not depend on it"),
    same("masked_names", "^PIN$", NONE, "masks overrides in what a run shows"),
    same("trend.nights", 10, NONE, _NIGHTS),
    same("trend.least_nights", 5, NONE, _NIGHTS),
    same("trend.sigmas", 3.0, NONE, _NIGHTS),
    same("trend.false_share", 0.01, NONE, _NIGHTS),
    *(same(f"trend.floors.{field.name}", 0.5, NONE, _NIGHTS) for field in fields(FloorConfig)),
    same("trend.fail", True, NONE, _NIGHTS),
    same("trend.notify", ["custom-webhook/team"], NONE, _NIGHTS),
    same("prefect.fail_on", ["failed"], NONE, _SWEEP),
    same("prefect.reports_url", "http://127.0.0.1:1", NONE, _SWEEP),
    same("artifacts", "elsewhere", NONE, "the location of the store; keys do not depend on it"),
)

_FILE = "may be used by the model's functions"

OTHER_INPUTS = (
    same("file own_net.py", "WIDTH = 4\n", ALL, _FILE),
    same("file weights.bin", "1", ALL, _FILE),
    differs("file own_data.py", "SEED = 4\n", ALL, EXPORT, _FILE),
    same("file own_samples.py", "SEED = 4\n", ALL, "the outputs are for these samples"),
    same("file own_metric.py", "BASE = 4\n", COMPARE, "a metric of the user"),
    same("file runner.py", "# another runner\n", BUNDLE_ON, "part of the bundle"),
    same("operators of another scheme", OperatorTolerance(snr_db=1.0), NONE, "not used by this cell"),
    *(
        same(f"toolchain {field.name}", "another", ALL, "the same call may give another result")
        for field in fields(Toolchain)
        if field.name != "executorch_commit"
    ),
    same("toolchain executorch_commit", "another", NONE, "the digests of the files and the release are in the keys"),
    *(
        same(f"version {stage}", None, frozenset(STAGES[number:]), "the results of the stage differ")
        for number, stage in enumerate(STAGES)
    ),
)


def with_field(value: Any, path: str, to: Any) -> Any:
    """Return the value with its field at `path` changed, in every item of lists and mappings on the path."""
    name, _, rest = path.partition(".")
    old = getattr(value, name)
    if not rest:
        return replace(value, **{name: _changed(name, to, old)})
    if isinstance(old, list):
        return replace(value, **{name: [with_field(item, rest, to) for item in old]})
    if isinstance(old, dict):
        return replace(value, **{name: {key: with_field(item, rest, to) for key, item in old.items()}})
    return replace(value, **{name: with_field(old, rest, to)})


def _changed(name: str, to: Any, old: Any) -> Any:
    if isinstance(old, Precision):  # the other float type
        return Precision.float32 if old is Precision.float16 else Precision.float16
    if to is None:  # another member of the enum
        return next(member for member in type(old) if member is not old)
    return to(old) if isinstance(to, Callable) else to


def as_markdown() -> str:
    """Return the table in docs/cache.md."""
    lines = ["| change | quantized | float | reason |", "| --- | --- | --- | --- |"]
    for change in (*REQUEST, *OTHER_INPUTS):
        floats = "–" if change.floats is None else _stages(change.floats)
        lines.append(f"| `{change.what}` | {_stages(change.quantized)} | {floats} | {change.why} |")
    return "\n".join(lines) + "\n"


def _stages(stages: frozenset[str]) -> str:
    """Return the names of the stages; `lower …` means lower and all later stages."""
    first = next((number for number, stage in enumerate(STAGES) if stage in stages), None)
    if first is None:
        return "nothing"
    return f"{STAGES[first]} …" if stages == set(STAGES[first:]) and len(stages) > 1 else ", ".join(sorted(stages))
