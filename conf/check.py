"""What the types cannot say of a request: ranges, forms, and what one part of it needs of another."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import PurePosixPath

from conf.describe import did_you_mean, one_of, shown
from conf.names import METRICS, OPERATOR_REFERENCES
from conf.schema import (
    PROBE,
    BackendKind,
    DataConfig,
    DeviceConfig,
    InputConfig,
    ModelConfig,
    Precision,
    Request,
    RetentionConfig,
    RunnerKind,
    SchemeConfig,
    TransportKind,
)

QUANT_DTYPES = ("16a16w", "16a2w", "16a4w", "16a4w_block", "16a8w", "8a4w", "8a8w", "fp16a8w")
"""ExecuTorch's `QuantDtype`, without `use_`."""
PROFILE_LEVELS = (0, 2, 3)
"""ExecuTorch's, but for its 1, which it takes for off."""
CHIPSETS = (
    *("QCM6490", "QCS9100", "SA8255", "SA8295", "SA8797", "SAR2230P", "SC8380XP", "SM8350", "SM8450", "SM8475"),
    *("SM8550", "SM8650", "SM8750", "SM8845", "SM8850", "SSG2115P", "SSG2125P", "SW6100", "SXR1230P", "SXR2230P"),
    "SXR2330P",
)
"""ExecuTorch's `QcomChipset`, the SoCs that QNN compiles for, without `UNKNOWN_SM`."""
OBSERVERS = ("HistogramObserver", "MinMaxObserver", "MovingAverageMinMaxObserver")
"""torchao's per-tensor observers: activations have one scale."""
DTYPES = ("bool", "float16", "float32", "float64", "int16", "int32", "int64", "int8", "uint8")
LONGEST_NAME = 200
LEAST_SILENCE_S = 60


def problems(request: Request) -> Iterator[str]:
    """Every reason to refuse the request, one line each: the key, the value given, what is accepted."""
    yield from _names(request)
    yield from _model(request.model)
    yield from _scheme(request.scheme)
    yield from _soc(request)
    yield from _calibration(request.model, request.scheme)
    yield from _numbers(request)
    yield from place_problems(request.artifacts, request.cache_folder)
    if "://" in request.artifacts and request.retention != RetentionConfig():
        yield "retention: of a folder of artifacts; in an object store its own lifecycle rules remove what is old"
    for device in request.devices:
        yield from _device(device)
    names = [device.name for device in request.devices]
    for name in sorted(set(names)):
        if names.count(name) > 1:
            yield f"farm {shown(request.farm.name)}: two of its devices are called {shown(name)}"
    if request.farm.name and not request.pool:
        yield f"farm.devices=[]: farm {shown(request.farm.name)} has no devices"
    if request.pool and not request.farm.name.strip():
        yield f"farm.name=: empty; any text of 1 to {LONGEST_NAME} characters"


def place_problems(artifacts: str, cache_folder: str | None = None, *, key: str = "artifacts") -> Iterator[str]:
    """Say why this cannot be the place of artifacts, if it cannot. `key`: where the user named the place."""
    if not artifacts.strip():
        yield f"{key}=: empty; the path of a folder, or s3://bucket/prefix"
    remote = "://" in artifacts
    if remote and not _is_bucket(artifacts):
        # Not shown: people put secrets into URLs.
        yield (
            f"{key}: not of the form s3://bucket/prefix, of letters, digits and . _ = + -; where the store is and "
            "who may use it say the environment's AWS_ENDPOINT_URL and AWS_PROFILE or AWS_ACCESS_KEY_ID"
        )
    if cache_folder is not None and not remote:
        yield f"cache_folder={shown(cache_folder)}: of use with artifacts=s3://bucket/prefix only"
    if cache_folder is not None and not cache_folder.strip():
        yield "cache_folder=: empty; the path of a folder"


def _is_bucket(url: str) -> bool:
    matched = re.fullmatch(r"s3://([A-Za-z0-9][A-Za-z0-9._-]{1,61}[A-Za-z0-9])((?:/[A-Za-z0-9._=+-]+)*)/?", url)
    return matched is not None and not {".", ".."} & set(matched[2].split("/"))


def _device(device: DeviceConfig) -> Iterator[str]:
    of = f" (device {shown(device.name)})"
    remote = device.transport is not TransportKind.local
    native = device.runner is RunnerKind.native
    for variable in device.environment:
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", variable):
            yield f"device.environment.{shown(variable)}: not the name of an environment variable{of}"
    for key, text in (
        ("address", device.address), ("work_folder", device.work_folder), ("python", device.python),
        *device.environment.items(),
    ):  # fmt: skip
        if text is not None and "\0" in text:
            yield f"device.{key}: a NUL character in it{of}"
    if remote and not (device.address or "").strip():
        example = "a serial or host:port" if device.transport is TransportKind.adb else "[user@]host[:port]"
        yield f"device.address={shown(device.address)}: {device.transport.name} needs {example}{of}"
    if device.transport is TransportKind.ssh and device.address and not _is_address(device.address):
        yield f"device.address={shown(device.address)}: not of the form [user@]host[:port]{of}"
    if device.ssh.jump is not None and not _is_address(device.ssh.jump):
        yield f"device.ssh.jump={shown(device.ssh.jump)}: not of the form [user@]host[:port]{of}"
    if device.adb_server is not None and not re.fullmatch(r"[\w.-]+:\d{1,5}", device.adb_server):
        yield f"device.adb_server={shown(device.adb_server)}: not of the form host:port{of}"
    if device.transport is TransportKind.adb and (device.address or "").startswith("-"):
        yield f"device.address={shown(device.address)}: no serial begins with a hyphen{of}"
    if remote and not _is_own_folder(device.work_folder):
        yield (
            f"device.work_folder={shown(device.work_folder)}: an absolute path of at least two names, for qnnsweep "
            f"alone, for example /data/local/tmp/qnnsweep{of}"
        )
    if remote and not native and not device.python:
        yield f"device.python={shown(device.python)}: the Python with executorch on the device{of}"
    if native and device.native_folder is None:
        yield f"device.native_folder=null: the folder of a build with qnn_executor_runner in it{of}"
    if native and device.soc is None:
        yield f"device.soc=null: the native runner needs a device's SoC, or {PROBE}{of}"
    for key, number in (
        ("deadline_s", device.deadline_s), ("cool_down_s", device.cool_down_s), ("keep_days", device.keep_days),
    ):  # fmt: skip
        if not (math.isfinite(number) and number > 0):
            yield f"device.{key}={number}: a number above 0{of}"
    yield from _at_least(
        0, {"device.least_free_mib": device.least_free_mib, "device.ssh.keep_alive_s": device.ssh.keep_alive_s}
    )


def _is_own_folder(path: str | None) -> bool:
    """Whether things may be removed below it: it is nobody else's, as far as a path tells."""
    return (
        path is not None and path.startswith("/") and len(PurePosixPath(path).parts) > 2 and ".." not in path.split("/")
    )


def _is_address(text: str) -> bool:
    return re.fullmatch(r"([^@\s]+@)?(\[[0-9a-fA-F:.%\w]+\]|[^@:\s\[\]/-][^@:\s\[\]/]*)(:\d{1,5})?", text) is not None


def _names(request: Request) -> Iterator[str]:
    for group in (
        request.model, request.scheme, request.soc, request.backend, *request.devices, request.tolerance,
    ):  # fmt: skip
        key = f"{type(group).__name__.removesuffix('Config').lower()}.name"
        if not group.name.strip():
            yield f"{key}=: empty; any text of 1 to {LONGEST_NAME} characters"
        elif len(group.name) > LONGEST_NAME:
            yield f"{key}={shown(group.name)}: {len(group.name)} characters; at most {LONGEST_NAME}"
        elif not group.name.isprintable() and any("\ud800" <= letter <= "\udfff" for letter in group.name):
            yield f"{key}={shown(group.name)}: not valid Unicode"


def _model(model: ModelConfig) -> Iterator[str]:
    of = f" (model {shown(model.name)})"
    if not _is_function(model.factory):
        yield f"model.factory={shown(model.factory)}: not of the form package.module:function{of}"
    if not model.inputs:
        yield f"model.inputs=[]: a model has at least one input, each with a name, a shape and a dtype{of}"
    for index, config in enumerate(model.inputs):
        yield from (f"model.inputs[{index}].{problem}{of}" for problem in _input(config))
    names = [config.name for config in model.inputs]
    yield from (
        f"model.inputs: two are named {shown(name)}{of}" for name in sorted(set(names)) if names.count(name) > 1
    )
    if model.evaluation is None:
        yield f"model.evaluation=null: every comparison needs samples; give model.evaluation.source{of}"
    for key, data in (("calibration", model.calibration), ("evaluation", model.evaluation)):
        yield from (f"model.{key}.{problem}{of}" for problem in _data(data))


def _input(config: InputConfig) -> Iterator[str]:
    if not config.name.strip():
        yield "name=: empty; the argument's name in the module's forward"
    if config.dtype not in DTYPES:
        yield f"dtype={shown(config.dtype)}: no such dtype; {one_of(DTYPES)}{did_you_mean(config.dtype, DTYPES)}"
    if any(size < 1 for size in config.shape):
        yield f"shape={shown(config.shape)}: every dimension is 1 or more"


def _data(data: DataConfig | None) -> Iterator[str]:
    if data is None:
        return
    if not _is_function(data.source):
        yield f"source={shown(data.source)}: not of the form package.module:function"
    if data.count < 1:
        yield f"count={data.count}: 1 or more samples"


def _scheme(scheme: SchemeConfig) -> Iterator[str]:
    of = f" (scheme {shown(scheme.name)})"
    dtype = scheme.quant_dtype
    if scheme.precision is not Precision.quantized:
        if dtype is not None:
            yield f"scheme.quant_dtype={shown(dtype)}: null when scheme.precision={scheme.precision.name}{of}"
    elif dtype not in QUANT_DTYPES:
        guess = did_you_mean(dtype or "", QUANT_DTYPES)
        yield f"scheme.quant_dtype={shown(dtype)}: {one_of(QUANT_DTYPES)} when scheme.precision=quantized{guess}{of}"
    if scheme.observer not in OBSERVERS:
        guess = did_you_mean(scheme.observer, OBSERVERS)
        yield f"scheme.observer={shown(scheme.observer)}: no such observer; {one_of(OBSERVERS)}{guess}{of}"
    # Without block sizes ExecuTorch quietly builds 16a4w under the name of 16a4w_block.
    if (dtype == "16a4w_block") != bool(scheme.block_size):
        needs = "at least one operator type" if dtype == "16a4w_block" else f"empty for quant_dtype {shown(dtype)}"
        yield f"scheme.block_size={shown(scheme.block_size)}: {needs}{of}"
    for operator, block in scheme.block_size.items():
        if not block or any(size < 1 for size in block):
            yield f"scheme.block_size.{shown(operator)}={shown(block)}: a block's shape, every dimension 1 or more{of}"


def _soc(request: Request) -> Iterator[str]:
    name = request.soc.name
    if request.backend.kind is BackendKind.qnn and name not in CHIPSETS:
        yield f"soc.name={shown(name)}: ExecuTorch has no such SoC; {one_of(CHIPSETS)}{did_you_mean(name, CHIPSETS)}"


def _calibration(model: ModelConfig, scheme: SchemeConfig) -> Iterator[str]:
    if scheme.precision is Precision.quantized and model.calibration is None:
        yield (
            f"model.calibration=null: scheme {shown(scheme.name)} is quantized and model {shown(model.name)} has "
            "nothing to calibrate with; give model.calibration.source"
        )


def _numbers(request: Request) -> Iterator[str]:
    measure, limits = request.measure, request.limits
    yield from _at_least(0, {"measure.warm_up": measure.warm_up})
    yield from _at_least(
        1,
        {
            "measure.iterations": measure.iterations,
            "measure.operator_samples": measure.operator_samples,
            "measure.debug_buffer_bytes": measure.debug_buffer_bytes,
            "scheme.calibration_samples": request.scheme.calibration_samples,
            "soc.arch": request.soc.arch,
            "soc.vtcm_mib": request.soc.vtcm_mib,
            "limits.parallel": limits.parallel,
            "retention.keep_runs": request.retention.keep_runs,
            "trend.nights": request.trend.nights,
            "trend.least_nights": request.trend.least_nights,
            "limits.shard_attempts": limits.shard_attempts,
        },
    )
    if measure.profile_level not in PROFILE_LEVELS:
        yield f"measure.profile_level={measure.profile_level}: {one_of(map(str, PROFILE_LEVELS))}"
    for name in measure.references:
        if name not in OPERATOR_REFERENCES:
            guess = did_you_mean(name, OPERATOR_REFERENCES)
            yield f"measure.references={shown(name)}: no such reference; {one_of(OPERATOR_REFERENCES)}{guess}"
    for name in measure.metrics:
        if name not in METRICS and not _is_function(name):
            guess = did_you_mean(name, METRICS)
            yield f"measure.metrics={shown(name)}: package.module:function, or {one_of(METRICS)}{guess}"
    for key, number in (
        ("limits.child_deadline_s", limits.child_deadline_s),
        ("limits.child_memory_gib", limits.child_memory_gib),
        ("limits.memory_gib", limits.memory_gib),
        ("retention.keep_days", request.retention.keep_days),
        ("retention.max_gib", request.retention.max_gib),
    ):
        if number is not None and not (math.isfinite(number) and number > 0):
            yield f"{key}={number}: a number above 0"
    for name in request.trend.notify:
        if not re.fullmatch(r"[a-z0-9-]+/[a-z0-9-]+", name):
            yield f"trend.notify={shown(name)}: a notification block of Prefect's, <type>/<name>: custom-webhook/team"
    floors = {f"floors.{series}": floor for series, floor in asdict(request.trend.floors).items()}
    for key, number in ({"sigmas": request.trend.sigmas} | floors).items():
        if not (math.isfinite(number) and number >= 0):
            yield f"trend.{key}={number}: a number, 0 or more"
    if not LEAST_SILENCE_S <= limits.silence_s < math.inf:
        yield f"limits.silence_s={limits.silence_s}: {LEAST_SILENCE_S} or more, two heartbeats of Prefect's"
    for scheme, floor in request.tolerance.final_snr_db.items():
        if not math.isfinite(floor):
            yield f"tolerance.final_snr_db.{shown(scheme)}={floor}: a number of dB"
    for scheme, share in request.tolerance.top1_agreement.items():
        if not 0 <= share <= 1:
            yield f"tolerance.top1_agreement.{shown(scheme)}={share}: a share from 0 to 1"
    for of, allowed in request.tolerance.operators.items():
        key = f"tolerance.operators.{shown(of)}"
        if allowed.snr_db is not None and not math.isfinite(allowed.snr_db):
            yield f"{key}.snr_db={allowed.snr_db}: a number of dB"
        if allowed.steps is not None and not (math.isfinite(allowed.steps) and allowed.steps >= 0):
            yield f"{key}.steps={allowed.steps}: a number of steps, 0 or more"


def _at_least(least: int, numbers: dict[str, int | None] | dict[str, int]) -> Iterable[str]:
    return [
        f"{key}={number}: {least} or more" for key, number in numbers.items() if number is not None and number < least
    ]


def _is_function(text: str) -> bool:
    module, colon, function = text.partition(":")
    return bool(colon) and function.isidentifier() and all(part.isidentifier() for part in module.split("."))
