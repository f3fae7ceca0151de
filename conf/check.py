"""Checks of a whole request: the constraints of its fields, and the requirements that involve several fields."""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import fields, is_dataclass
from pathlib import PurePosixPath

from qnnsweep.conf.backends import planned_backend
from qnnsweep.conf.constraints import host_address, regular_expression, violations
from qnnsweep.conf.devices import PROBE, DeviceConfig, RunnerKind, TransportKind
from qnnsweep.conf.errors import RequestError, did_you_mean, one_of, printable
from qnnsweep.conf.models import ModelConfig
from qnnsweep.conf.names import QUANT_DTYPES, SHIPPED_BACKENDS
from qnnsweep.conf.overrides import input_problems, method_problems, override_problems
from qnnsweep.conf.schema import Request, RetentionConfig
from qnnsweep.conf.schemes import Precision, SchemeConfig
from qnnsweep.conf.states import methods_with_keys, samples_key, state_problems

LONGEST_NAME = 200


def problems(request: Request) -> Iterator[RequestError]:
    """Yield one error per reason to refuse the request, with the wrong key, its value and the accepted values."""
    yield from _names(request)
    yield from _of("model", request.model, _model(request.model))
    yield from _of("scheme", request.scheme, _scheme(request.scheme))
    methods = request.model.methods or ()
    yield from method_problems(request.scheme, [method.name for method in methods])
    given = {method.name: method.inputs for method in methods} or {"": request.model.inputs}
    names = {method: [spec.name for spec in specs] for method, specs in given.items()}
    yield from input_problems(request.scheme, names, [state.input for state in request.model.states or ()])
    yield from _calibration(request.model, request.scheme)
    for field in fields(request):
        if is_dataclass(config := getattr(request, field.name)) and field.name not in ("model", "scheme", "device"):
            yield from violations(config, field.name)
    if problem := regular_expression(request.masked_names):
        yield _error("masked_names", request.masked_names, problem)
    yield from artifacts_problems(request.artifacts, request.cache_folder)
    if "://" in request.artifacts and request.retention != RetentionConfig():
        yield RequestError(
            "only valid for a folder of artifacts; for an object store set lifecycle rules there", key="retention"
        )
    for device in request.devices:
        yield from _of("device", device, _device(device))
    yield from _farm(request)


def artifacts_problems(
    artifacts: str, cache_folder: str | None = None, *, key: str = "artifacts"
) -> Iterator[RequestError]:
    """Yield one error per reason why `artifacts` is not a valid location. `key`: the key in the messages."""
    if not artifacts.strip():
        yield _error(key, artifacts, "empty; the path of a folder, or s3://bucket/prefix")
    remote = "://" in artifacts
    if remote and not _is_bucket(artifacts):
        # The URL is not in the message, because people put secrets into URLs.
        yield RequestError(
            "not of the form s3://bucket/prefix, of letters, digits and . _ = + -; set the endpoint and the "
            "credentials in the environment, with AWS_ENDPOINT_URL and AWS_PROFILE or AWS_ACCESS_KEY_ID",
            key=key,
        )
    if cache_folder is not None and not remote:
        yield _error("cache_folder", cache_folder, "only valid with artifacts=s3://bucket/prefix")
    if cache_folder is not None and not cache_folder.strip():
        yield _error("cache_folder", cache_folder, "empty; the path of a folder")


def _error(key: str, value: object, problem: str) -> RequestError:
    return RequestError(problem, key=key, value=printable(value))


def _of(
    group: str, config: ModelConfig | SchemeConfig | DeviceConfig, others: Iterator[RequestError]
) -> Iterator[RequestError]:
    """Yield first the violations in `config`, then `others`. Add the group and the option's name to every message."""
    for error in (*violations(config, group), *others):
        yield RequestError(f"{error.problem} ({group} {printable(config.name)})", key=error.key, value=error.value)


def _is_bucket(url: str) -> bool:
    matched = re.fullmatch(r"s3://([A-Za-z0-9][A-Za-z0-9._-]{1,61}[A-Za-z0-9])((?:/[A-Za-z0-9._=+-]+)*)/?", url)
    return matched is not None and not {".", ".."} & set(matched[2].split("/"))


def _device(device: DeviceConfig) -> Iterator[RequestError]:
    remote = device.transport is not TransportKind.local
    native = device.runner is RunnerKind.native
    for variable in device.environment:
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", variable):
            yield RequestError(
                "not the name of an environment variable", key=f"device.environment.{printable(variable)}"
            )
    for key, text in (
        ("address", device.address), ("work_folder", device.work_folder), ("python", device.python),
        ("lock_folder", device.lock_folder), *device.environment.items(),
    ):  # fmt: skip
        if text is not None and "\0" in text:
            yield RequestError("contains a NUL character", key=f"device.{key}")
    address = device.address or ""
    is_hired = bool(device.lease.acquire)
    if is_hired and not device.lease.release:
        yield _error("device.lease.release", [], "the command that gives the device back")
    if is_hired and not remote:
        yield _error("device.transport", device.transport.name, "a device that is hired has the transport adb or ssh")
    if remote and not is_hired and not address.strip():
        examples = {TransportKind.adb: "a serial or host:port", TransportKind.ssh: "[user@]host[:port]"}
        example = examples.get(device.transport, "an address")
        yield _error("device.address", device.address, f"{device.transport.name} needs {example}")
    if device.transport is TransportKind.ssh and address and (problem := host_address(address)):
        yield _error("device.address", address, problem)
    if device.transport is TransportKind.adb and address.startswith("-"):
        yield _error("device.address", address, "no serial begins with a hyphen")
    if remote and not _is_dedicated_folder(device.work_folder):
        problem = "an absolute path of at least two names that only qnnsweep uses, such as /data/local/tmp/qnnsweep"
        yield _error("device.work_folder", device.work_folder, problem)
    if device.lock_folder is not None and not PurePosixPath(device.lock_folder).is_absolute():
        yield _error("device.lock_folder", device.lock_folder, "an absolute path on the device")
    if remote and not native and not device.python:
        package = "onnxruntime-qnn" if device.runner is RunnerKind.onnxruntime else "executorch"
        yield _error("device.python", device.python, f"the Python with {package} on the device")
    if device.runner is RunnerKind.aihub:
        yield from _hosted(device)
    if native and device.native_folder is None:
        yield _error("device.native_folder", None, "the folder of a build with qnn_executor_runner in it")
    if native and device.soc is None:
        yield _error("device.soc", None, f"the native runner needs a device's SoC, or {PROBE}")


def _hosted(device: DeviceConfig) -> Iterator[RequestError]:
    if device.transport is not TransportKind.local:
        problem = "local: this machine asks Qualcomm AI Hub for the jobs"
        yield _error("device.transport", device.transport.name, problem)
    if not device.python:
        make = "python3 -m venv ~/aihub && ~/aihub/bin/pip install qai-hub flatbuffers"
        problem = f"the Python of an environment of its own with AI Hub's client: {make}; then ~/aihub/bin/python"
        yield _error("device.python", None, problem)
    if not (device.aihub.device or "").strip():
        yield _error("device.aihub.device", device.aihub.device, "the name of a device that AI Hub hosts")
    if device.soc in (None, PROBE):
        yield _error("device.soc", device.soc, "the SoC of the hosted device, such as SM8650")
    if device.below_celsius is not None:
        yield _error("device.below_celsius", device.below_celsius, "null: AI Hub tells no temperature")


def _is_dedicated_folder(path: str | None) -> bool:
    """Return whether `path` looks like a folder that only qnnsweep uses, so that qnnsweep may remove files in it."""
    parts = PurePosixPath(path or "").parts
    return len(parts) > 2 and parts[0].startswith("/") and ".." not in parts


def _farm(request: Request) -> Iterator[RequestError]:
    farm = f"farm {printable(request.farm.name)}"
    for name in _duplicates(device.name for device in request.devices):
        yield RequestError(f"two of its devices are named {printable(name)}", key=farm)
    if request.farm.name and not request.pool:
        yield _error("farm.devices", [], f"{farm} has no devices")


def _duplicates(names: Iterable[str]) -> list[str]:
    return sorted(name for name, count in Counter(names).items() if count > 1)


def _names(request: Request) -> Iterator[RequestError]:
    groups = (request.model, request.scheme, request.soc, request.toolchain, request.backend, *request.devices)
    for group in (*groups, request.tolerance, request.farm) if request.pool else (*groups, request.tolerance):
        key = f"{type(group).__name__.removesuffix('Config').lower()}.name"
        if not group.name.strip():
            yield _error(key, group.name, f"empty; any text of 1 to {LONGEST_NAME} characters")
        elif len(group.name) > LONGEST_NAME:
            yield _error(key, group.name, f"{len(group.name)} characters; at most {LONGEST_NAME}")
        elif not group.name.isprintable() and any("\ud800" <= letter <= "\udfff" for letter in group.name):
            yield _error(key, group.name, "not valid Unicode")


def _model(model: ModelConfig) -> Iterator[RequestError]:
    sampled = ("calibration", "evaluation")
    if model.methods is not None:
        for key in ("inputs", *(sampled if model.states is None else ())):
            if value := getattr(model, key):
                yield _error(f"model.{key}", value, f"set model.methods[…].{key}, because every method has its own")
        for name in _duplicates(method.name for method in model.methods):
            yield RequestError(f"two methods are named {printable(name)}", key="model.methods")
        if not model.methods:
            yield _error("model.methods", [], "null, or a list of one or more methods")
    for key, method in methods_with_keys(model):
        if not method.inputs and model.states is not None:
            problem = "a model with states states its inputs, each with a name, a shape and a dtype"
            yield _error(f"{key}.inputs", [], problem)
        for name in _duplicates(config.name for config in method.inputs):
            yield RequestError(f"two inputs are named {printable(name)}", key=f"{key}.inputs")
        samples = samples_key(model, key)
        if (method if samples == key else model).evaluation is None:
            problem = f"every comparison needs samples; set {samples}.evaluation.source"
            yield _error(f"{samples}.evaluation", None, problem)
    yield from state_problems(model)


def _scheme(scheme: SchemeConfig) -> Iterator[RequestError]:
    dtype = scheme.quant_dtype
    if scheme.precision is not Precision.quantized:
        if dtype is not None:
            yield _error("scheme.quant_dtype", dtype, f"null when scheme.precision={scheme.precision.name}")
    elif dtype not in QUANT_DTYPES:
        guess = did_you_mean(dtype or "", QUANT_DTYPES)
        yield _error("scheme.quant_dtype", dtype, f"{guess}{one_of(QUANT_DTYPES)} when scheme.precision=quantized")
    # Without block sizes ExecuTorch silently builds 16a4w under the name of 16a4w_block.
    if (dtype == "16a4w_block") != bool(scheme.block_size):
        needs = "at least one operator type" if dtype == "16a4w_block" else f"empty for quant_dtype {printable(dtype)}"
        yield _error("scheme.block_size", scheme.block_size, needs)
    yield from override_problems(scheme)


def unknown_socs(requests: Collection[Request]) -> Iterator[RequestError]:
    """Yield one error per request whose SoC no backend supports.

    If another backend supports the SoC, but the request's backend does not, there is no error, and
    the request's cell is impossible.
    """
    kinds = {*SHIPPED_BACKENDS, *(request.backend.kind for request in requests)}
    known = {soc for kind in kinds for soc in planned_backend(kind).socs or ()}
    for request in requests:
        name, socs = request.soc.name, planned_backend(request.backend.kind).socs
        if socs is not None and name not in known:
            backend = f"backend {printable(request.backend.name)} has no such SoC"
            yield _error("soc.name", name, f"{backend}; {did_you_mean(name, socs)}{one_of(socs)}")


def unknown_schemes(requests: Iterable[Request], known: Collection[str]) -> Iterator[RequestError]:
    """Yield one error per key of a tolerance that names no scheme. `known`: the names of all schemes."""
    for tolerance in (request.tolerance for request in requests):
        names = ("final_snr_db", "top1_agreement", "equal_elements", "kl_divergence_nats", "perplexity_ratio")
        limits = {name: getattr(tolerance, name) for name in names}
        for name, by_scheme in {**limits, "operators": tolerance.operators}.items():
            for key, limit in by_scheme.items():
                scheme = key.partition("/")[0] if name == "operators" else key
                if scheme not in known and (name, scheme) != ("operators", "*"):
                    value = None if name == "operators" else printable(limit)
                    problem = f"no such scheme; {did_you_mean(scheme, known)}{one_of(known)}"
                    yield RequestError(problem, key=f"tolerance.{name}.{printable(key)}", value=value)


def _calibration(model: ModelConfig, scheme: SchemeConfig) -> Iterator[RequestError]:
    for key, method in methods_with_keys(model):
        samples = samples_key(model, key)
        if scheme.precision is Precision.quantized and (method if samples == key else model).calibration is None:
            problem = (
                f"scheme {printable(scheme.name)} is quantized and model {printable(model.name)} has "
                f"nothing to calibrate with; give {samples}.calibration.source"
            )
            yield _error(f"{samples}.calibration", None, problem)
