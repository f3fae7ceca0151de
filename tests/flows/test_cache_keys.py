"""A change of one input recomputes exactly the stages that depend on it, for every input of every stage.

The graph, the cache keys of the stages and the digest of code are the real ones. The results are simulated: a record
whose blobs are named after all inputs of such a result. So a key that lacks an input finds an old record instead of a
new one, and a key with an input too many computes again.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args, get_type_hints

import pytest

from qnnsweep.conf.devices import DeviceConfig, RunnerKind
from qnnsweep.conf.models import DataConfig, DriverConfig, InputConfig, ModelConfig
from qnnsweep.conf.names import STAGES
from qnnsweep.conf.schema import BackendConfig, MeasureConfig, Request, Reuse, SocConfig
from qnnsweep.conf.schemes import Precision, SchemeConfig, SchemeOverride
from qnnsweep.conf.tolerances import OperatorTolerance, ToleranceConfig
from qnnsweep.flows.cells import graph
from qnnsweep.flows.cells.graph import Graph, Submission
from qnnsweep.flows.cells.resources import Resources
from qnnsweep.tasks.bundle import bundle_task
from qnnsweep.tasks.compare import compare_task
from qnnsweep.tasks.cure import cure_task
from qnnsweep.tasks.devices import native_runner
from qnnsweep.tasks.divide import divide_task
from qnnsweep.tasks.export import export_task
from qnnsweep.tasks.lower import lower_task
from qnnsweep.tasks.measure import measure_task
from qnnsweep.tasks.quantize import quantize_task
from qnnsweep.tasks.records import (
    BiasUse,
    Blob,
    Bundle,
    Capture,
    Comparison,
    Cures,
    DebugProgram,
    Division,
    ExportedModel,
    LoweredProgram,
    QuantizedModel,
    Span,
    Toolchain,
)
from qnnsweep.tasks.storage.digest import digest
from qnnsweep.tasks.toolchain import runner
from tests.flows.cache_key_spec import OTHER_INPUTS, REQUEST, Change, as_markdown, with_field
from tests.sample_records import CAPTURE, COMPARISON, EXPORTED, LAUNCH, LOWERED, MODEL, QUANTIZED, with_method

TASKS = (export_task, quantize_task, lower_task, divide_task, bundle_task, measure_task, compare_task, cure_task)
TOOLCHAIN = Toolchain(python="3.11.7", torch="2.13.0", executorch="1.5.1", torchao="0.18.0", qnn="v2.49.40.260701")
FILES = {
    "own_net.py": "WIDTH = 3\n",
    "own_data.py": "SEED = 3\n",
    "own_samples.py": "SEED = 3\n",
    "own_metric.py": "BASE = 3\n",
    "weights.bin": "0",
    "runner.py": "# a runner\n",
}
SCHEMES = {
    "quantized": SchemeConfig(name="8a8w", quant_dtype="8a8w", overrides=[SchemeOverride(module="a")]),
    "floats": SchemeConfig(name="fp16", precision=Precision.float16),
}


@dataclass(frozen=True, kw_only=True)
class World:
    """Everything that a cell's results can depend on."""

    request: Request
    folder: Path
    toolchain: Toolchain = TOOLCHAIN
    raised: str | None = None
    """The stage whose version was raised."""

    def file(self, name: str) -> str:
        return (self.folder / name).read_text()


def request(folder: Path, scheme: SchemeConfig) -> Request:
    return Request(
        model=ModelConfig(
            name="mine",
            factory="own_net:net",
            arguments={"width": 3, "weights": str(folder / "weights.bin")},
            inputs=[InputConfig(name="image", shape=[1, 1, 8, 8])],
            calibration=DataConfig(source="own_data:samples"),
            evaluation=DataConfig(source="own_samples:samples"),
            driver=DriverConfig(output="0", input="image"),
        ),
        scheme=scheme,
        soc=SocConfig(name="SM8650", arch=75, vtcm_mib=8),
        backend=BackendConfig(name="qnn", kind="qnn"),
        device=DeviceConfig(name="local", native_folder=str(folder)),
        tolerance=ToleranceConfig(name="t", operators={scheme.name: OperatorTolerance(snr_db=30.0, steps=3.0)}),
        measure=MeasureConfig(metrics=["own_metric:far"]),
        reuse=Reuse.capture,
    )


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's model, data and metric, a native runner with all its libraries, and a copy of the Python runner."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    libraries = tmp_path / "sdk" / "lib"
    names = ["aarch64-android/libQnnHtp.so", "aarch64-android/libQnnSystem.so"]
    for arch in (73, 75):
        names += [
            f"aarch64-android/libQnnHtpV{arch}Stub.so", f"hexagon-v{arch}/unsigned/libQnnHtpV{arch}Skel.so",
        ]  # fmt: skip
    for path in [
        *(libraries / name for name in names),
        tmp_path / native_runner.RUNNER,
        tmp_path / native_runner.BACKEND,
    ]:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("of a device")
    monkeypatch.setenv("QNN_SDK_ROOT", str(tmp_path / "sdk"))
    monkeypatch.setattr(runner, "__file__", str(tmp_path / "runner.py"))
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


class SimulatedGraph(Graph):
    """The graph with simulated stages: results are looked up by their key in `cache` and otherwise made up."""

    def __init__(self, world: World, cache: dict[str, Any]) -> None:
        resources: Any = SimpleNamespace(store=None, farm=None, workers=SimpleNamespace(identity=world.toolchain))
        super().__init__(
            Resources(store=resources.store, workers=resources.workers, farm=resources.farm), lambda *_: None, "a run"
        )
        self._world = world
        self._cache = cache
        self.stages: list[str] = []
        """The stages that were computed."""

    def _submit(self, task: Any, request: Request, *key_inputs: Any, **resources: Any) -> Submission:
        values = [value.future if isinstance(value, Submission) else value for value in key_inputs]
        arguments = inspect.signature(task.fn).bind(*values, store=None, **resources)
        arguments.apply_defaults()
        version = task.cache_policy.version + (task.name == self._world.raised)
        policy = replace(task.cache_policy, version=version)
        key = policy.compute_key(SimpleNamespace(task=task), arguments.arguments, {})
        if key not in self._cache:
            self.stages.append(task.name)
            code = (version, self._world.toolchain)
            self._cache[key] = getattr(self, f"_{task.name}")(code, *values)
        future: Any = self._cache[key]
        return Submission(key=key, future=future, label=task.name)

    def _export(self, code: Any, model: ModelConfig, _code: str) -> ExportedModel:
        assert model.calibration is not None
        assert model.evaluation is not None
        module = blob(code, model.factory, model.arguments, self._world.file("own_net.py"), self._weights())
        program = blob(module, model.inputs, model.methods or [], model.states or [], model.driver)
        evaluation = blob(code, model.evaluation, self._world.file("own_samples.py"))
        exported = with_method(
            EXPORTED,
            program=program,
            calibration=blob(code, model.calibration, self._world.file("own_data.py")),
            calibration_samples=model.calibration.count,
            evaluation=evaluation,
            outputs_eager=blob(program, evaluation),
        )
        return replace(exported, model=replace(MODEL, name=model.name))

    def _quantize(self, code: Any, exported: ExportedModel, scheme: SchemeConfig, *where: Any) -> QuantizedModel:
        if scheme.precision is not Precision.quantized:
            exported = with_method(exported, calibration=None, calibration_samples=0)
            program = exported.methods[0].program
        else:
            program = blob(
                code, exported.methods[0].program, exported.methods[0].calibration, replace(scheme, name=""), where
            )
        quantized = with_method(
            QUANTIZED,
            exported=exported.methods[0],
            program=program,
            outputs_quantized=blob(code, program, exported.methods[0].evaluation),
        )
        return replace(quantized, model=exported.model)

    def _lower(self, code: Any, quantized: QuantizedModel, *options: Any) -> LoweredProgram:
        # No two compilations give the same bytes, because the compiler leaves a stamp in them.
        program = blob(code, len(self._cache))
        lowered = with_method(LOWERED, quantized=quantized.methods[0], reference=blob(program, quantized))
        return replace(lowered, model=quantized.model, program=program)

    def _divide(self, code: Any, lowered: LoweredProgram, *_: Any) -> LoweredProgram:
        debug = DebugProgram(program=blob(code, len(self._cache)), unavailable=None)
        return with_method(lowered, debug_programs=(debug,))

    def _bundle(self, code: Any, lowered: LoweredProgram, measure: MeasureConfig, *_: bool) -> Bundle:
        arguments = (measure.iterations, measure.warm_up, measure.performance_mode, measure.debug_buffer_bytes)
        arguments = (*arguments, measure.second_runtime)
        files = (
            blob(self._world.file("runner.py")),
            blob(lowered.program, lowered.methods[0].debug_programs, lowered.quantized.exported.methods[0].evaluation),
        )
        return Bundle(runner=files[0], blobs=(*files, blob(code[0], arguments)), launches=(LAUNCH,))

    def _measure(self, code: Any, bundle: Bundle, devices: tuple[DeviceConfig, ...], *where: Any) -> Capture:
        names = [device.name for device in devices]
        return with_method(
            CAPTURE, outputs=blob(bundle, names), etdump=blob(code, len(self._cache))
        )  # an ETDump contains times

    def _compare(self, *inputs: Any) -> Comparison:
        use = BiasUse(operator_index=int(digest(inputs)[:8], 16), least_scale=0.0, least_scale_16=0.0)
        return replace(COMPARISON, bias_uses=(use,))

    def _cure(self, *_: Any) -> Cures:
        return Cures(trials=())

    def _weights(self) -> str:
        return self._world.file("weights.bin")


def blob(*inputs: Any) -> Blob:
    """Return a blob that is named after the inputs of its content."""
    return Blob(sha256=digest(inputs), size=1)


def computed_stages(world: World, cache: dict[str, Any]) -> set[str]:
    """Return the stages that are computed for the cell because the cache has no result."""
    graph = SimulatedGraph(world, cache)
    stages = graph.cell(world.request)
    graph.divided(world.request, stages, (Division(spans=(Span(first=0, end=1), Span(first=1, end=2))),))
    return set(graph.stages)


def changed(world: World, change: Change) -> World:
    """Return the world after a change."""
    what, _, name = change.what.partition(" ")
    if what == "file":
        (world.folder / name).write_text(change.to)
        return world
    if what == "toolchain":
        return replace(world, toolchain=replace(world.toolchain, **{name: change.to}))
    if what == "version":
        return replace(world, raised=name)
    if what == "operators":
        tolerance = world.request.tolerance
        operators = tolerance.operators | {"another": change.to, "another/aten.add": change.to}
        return replace(world, request=replace(world.request, tolerance=replace(tolerance, operators=operators)))
    return replace(world, request=with_field(world.request, change.what, change.to))


def leaf_fields(kind: type[Any], prefix: str = "") -> Iterator[str]:
    """Yield the path of every leaf of a configuration class, through its lists and mappings."""
    for name, hint in get_type_hints(kind).items():
        classes = [member for member in (hint, *get_args(hint)) if is_dataclass(member)]
        if classes and name not in ("pool", "measured_changes"):  # what the command line does not set
            yield from leaf_fields(classes[0], f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"


def test_every_field_of_a_request_is_in_the_specification() -> None:
    assert sorted(change.what for change in REQUEST) == sorted(leaf_fields(Request))


def test_every_stage_is_in_the_specification() -> None:
    stages = [task.name for task in vars(graph).values() if isinstance(task, type(export_task))]
    assert sorted(stages) == sorted(task.name for task in TASKS) == sorted(STAGES)


@pytest.mark.parametrize("kind", SCHEMES)
@pytest.mark.parametrize("change", [*REQUEST, *OTHER_INPUTS], ids=lambda change: change.what)
def test_a_change_recomputes_exactly_the_stages_that_depend_on_it(folder: Path, change: Change, kind: str) -> None:
    expected = getattr(change, kind)
    world = World(request=request(folder, SCHEMES[kind]), folder=folder)
    cache: dict[str, Any] = {}
    assert computed_stages(world, cache) == set(STAGES)
    assert computed_stages(world, cache) == set()
    if expected is not None:
        assert computed_stages(changed(world, change), cache) == expected, change.why


@pytest.mark.parametrize("name", [native_runner.RUNNER, native_runner.BACKEND, "sdk/lib/aarch64-android/libQnnHtp.so"])
def test_another_native_runner_is_measured_again(folder: Path, name: str) -> None:
    base = request(folder, SCHEMES["quantized"])
    base = replace(base, device=replace(base.device, runner=RunnerKind.native, soc="SM8650"))
    world = World(request=base, folder=folder)
    cache: dict[str, Any] = {}
    computed_stages(world, cache)
    (folder / name).write_text("another build")
    assert computed_stages(world, cache) == {"measure", "compare", "cure"}


def test_the_order_of_a_farms_devices_and_of_references_is_not_in_any_key(folder: Path) -> None:
    pool = [DeviceConfig(name="a"), DeviceConfig(name="b")]
    base = replace(request(folder, SCHEMES["quantized"]), pool=pool)
    base = replace(base, measure=replace(base.measure, references=["quantized", "exported"]))
    cache: dict[str, Any] = {}
    computed_stages(World(request=base, folder=folder), cache)
    measure = replace(base.measure, references=["exported", "edge", "quantized"])
    reordered = replace(base, pool=pool[::-1], measure=measure)
    assert computed_stages(World(request=reordered, folder=folder), cache) == set()


def test_the_labels_in_records_are_not_in_the_keys_of_the_next_stages() -> None:
    for record in (EXPORTED, QUANTIZED, LOWERED):
        assert digest(replace(record, model=replace(MODEL, name="another"), made=())) == digest(record)
    neutral = {field.name for field in fields(Capture) if not field.metadata.get("identity", True)}
    assert neutral == {"bytes_sent", "measured_run", "device_id", "equal_tensors"}
    assert dataclasses.replace(CAPTURE, measured_run="x") != CAPTURE


def test_the_documentation_has_the_table_word_for_word() -> None:
    document = Path(__file__).parents[2] / "docs" / "cache.md"
    assert as_markdown() in document.read_text()
