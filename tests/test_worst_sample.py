"""The device's worst sample: it is captured in the same lease, compared, and explained by the cell's sentence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import pytest
from safetensors.numpy import load

from qnnsweep.conf.devices import DeviceConfig
from qnnsweep.conf.schema import Request
from qnnsweep.flows.cells.resources import Resources
from qnnsweep.tasks.bundle import bundle
from qnnsweep.tasks.compare import compare
from qnnsweep.tasks.comparison.division import next_divisions
from qnnsweep.tasks.comparison.evidence import Evidence
from qnnsweep.tasks.comparison.worst_sample import bundle_of_worst
from qnnsweep.tasks.measure import measure
from qnnsweep.tasks.numerics.verdict import of_scheme
from qnnsweep.tasks.records import Bundle, Capture, Comparison, LoweredProgram
from qnnsweep.tasks.records.keys import tensor_key
from qnnsweep.tasks.records.options import ComparisonOptions
from qnnsweep.tasks.results.outcome import CellResult
from qnnsweep.tasks.results.rows import rows
from tests.sample_records import TOOLCHAIN, with_method

pytestmark = pytest.mark.toolchain

ANSWERS = (
    "        answer = run(program, method, read(files), arguments, elapsed_ms)\n"
    "        for index, array in enumerate(answer):\n"
)


@dataclass
class CountingFarm:
    """A farm that counts its leases."""

    farm: Any
    leases: list[str] = field(default_factory=list)

    @contextmanager
    def lease(self, devices: Sequence[DeviceConfig], soc: Any) -> Iterator[Any]:
        with self.farm.lease(devices, soc) as device:
            self.leases.append(device.lease_folder)
            yield device


@pytest.fixture(scope="module")
def packed(request_8a8w: Request, resources: Resources, lowered: LoweredProgram) -> Bundle:
    return bundle(lowered, request_8a8w.measure, store=resources.store)


@pytest.fixture(scope="module")
def wrong(lowered: LoweredProgram) -> int:
    """A sample that the lowering did not choose to capture."""
    chosen = {choice.sample for choice in lowered.methods[0].chosen}
    return next(sample for sample in range(7, -1, -1) if sample not in chosen)


@pytest.fixture(scope="module")
def device(tmp_path_factory: pytest.TempPathFactory) -> DeviceConfig:
    return DeviceConfig(name="fresh", work_folder=str(tmp_path_factory.mktemp("device")))


@pytest.fixture(scope="module")
def farm(resources: Resources) -> CountingFarm:
    return CountingFarm(resources.farm)


def with_change(packed: Bundle, lines: str, resources: Resources) -> Bundle:
    """Return the bundle with a runner that has other lines instead of `ANSWERS`."""
    source = resources.store.read(packed.runner).decode()
    assert ANSWERS in source
    runner = resources.store.put_bytes(source.replace(ANSWERS, lines).encode())
    blobs = tuple(runner if blob == packed.runner else blob for blob in packed.blobs)
    return replace(packed, runner=runner, blobs=blobs)


def compared(request: Request, lowered: LoweredProgram, capture: Capture, resources: Resources) -> Comparison:
    tolerances = of_scheme(request.tolerance.operators, request.scheme.name)
    options = ComparisonOptions(classifier=True, tolerances=tolerances)
    return compare(lowered, capture, options, store=resources.store, workers=resources.workers)


@pytest.fixture(scope="module")
def damaged(packed: Bundle, wrong: int, device: DeviceConfig, farm: CountingFarm, resources: Resources) -> Capture:
    """The capture of a device whose shipping program, and not its debug program, is wrong on one sample."""
    change = f"        answer = [-tensor for tensor in answer] if number == {wrong} and len(lines) == 8 else answer\n"
    first, second = ANSWERS.splitlines(keepends=True)
    changed = with_change(packed, first + change + second, resources)
    return measure(changed, (device,), None, store=resources.store, farm=cast("Any", farm))


@pytest.fixture(scope="module")
def comparison(request_8a8w: Request, lowered: LoweredProgram, damaged: Capture, resources: Resources) -> Comparison:
    return compared(request_8a8w, lowered, damaged, resources)


def test_the_worst_sample_of_the_device_is_captured_too_in_the_same_lease(
    lowered: LoweredProgram, damaged: Capture, wrong: int, farm: CountingFarm
) -> None:
    (captured,) = damaged.methods
    chosen = tuple(choice.sample for choice in lowered.methods[0].chosen)
    assert [files.samples for files in captured.debug] == [chosen, (wrong,)]
    assert [result.launch.folder for result in captured.results] == ["shipping", "debug", f"debug-again-{wrong}"]
    assert len(farm.leases) == 1
    assert {Path(result.folder).parent for result in captured.results} == {Path(farm.leases[0])}
    assert captured.captured == tuple(sorted((*chosen, wrong)))


def test_a_debug_program_that_crashes_in_its_second_inference_runs_with_each_sample_alone(
    request_8a8w: Request,
    lowered: LoweredProgram,
    packed: Bundle,
    capture: Capture,
    resources: Resources,
    tmp_path: Path,
) -> None:
    crash = "        if number == 1 and arguments.dump_intermediate_outputs:\n            os.abort()\n"
    fresh = DeviceConfig(name="fresh", work_folder=str(tmp_path))
    changed = with_change(packed, crash + ANSWERS, resources)
    crashed = measure(changed, (fresh,), None, store=resources.store, farm=resources.farm)
    (captured,) = crashed.methods
    assert [files.samples for files in captured.debug] == [(sample,) for sample in capture.methods[0].captured]
    failed = [result.failure.splitlines()[0] for result in captured.results if result.failure]
    assert failed == ["the debug program ended with SIGABRT on fresh"]
    assert captured.failures == {}
    whole, alone = (compared(request_8a8w, lowered, which, resources) for which in (capture, crashed))
    assert alone.operators == whole.operators
    assert next_divisions(lowered, crashed, 8, resources.store) is None


def test_nothing_of_eager_pytorch_is_sent_to_the_device(
    lowered: LoweredProgram, damaged: Capture, device: DeviceConfig
) -> None:
    sent = {path.name for path in Path(device.work_folder or "", "blobs").iterdir()}
    assert lowered.methods[0].exported.outputs_eager.sha256 not in sent


def test_the_captured_worst_sample_is_compared_with_references_that_the_lowering_did_not_store(
    lowered: LoweredProgram, comparison: Comparison, damaged: Capture, wrong: int, resources: Resources
) -> None:
    (method,), (captured,) = lowered.methods, damaged.methods
    assert {row.sample for row in comparison.operators} == set(captured.captured)
    of_chosen, of_worst = (
        [row.status for row in comparison.operators if row.sample == sample]
        for sample in (method.chosen[0].sample, wrong)
    )
    assert of_worst == of_chosen
    evidence = Evidence(method, captured, resources.store)
    edge = load(resources.store.read(method.outputs_edge))[tensor_key(wrong, 0)]
    last = next(row.index for row in reversed(method.operators) if not (row.constant or row.unused))
    assert evidence.reference(wrong, last).tolist() == edge.tolist()


def test_a_reference_that_is_computed_is_that_which_the_lowering_stores(
    lowered: LoweredProgram, capture: Capture, resources: Resources
) -> None:
    (method,), (captured,) = lowered.methods, capture.methods
    stored = Evidence(method, captured, resources.store)
    computed = Evidence(replace(method, chosen=(), reference=()), captured, resources.store)
    for row in method.operators:
        if not (row.constant or row.unused) and row.shape is not None:
            for choice in method.chosen:
                values = (evidence.reference(choice.sample, row.index) for evidence in (stored, computed))
                assert len({value.tobytes() for value in values}) == 1, row.name


def test_the_sentence_the_budget_and_the_worst_operator_are_about_the_sample_that_is_reported(
    request_8a8w: Request, lowered: LoweredProgram, comparison: Comparison, damaged: Capture, wrong: int
) -> None:
    cell = CellResult(
        request=request_8a8w, exported=lowered.quantized.exported, quantized=lowered.quantized, lowered=lowered,
        capture=damaged, stage="compare", comparison=comparison,
    )  # fmt: skip
    tables = rows("20261121T094931Z-5fcc", [cell], TOOLCHAIN)
    (row,) = tables["cells"]
    name = lowered.methods[0].exported.sample_names[wrong]
    assert (row["worst_sample"], row["worst_sample_name"]) == (wrong, name)
    assert (row["worst_final_output"], row["sample_role"]) == ("output", "worst on the device")
    assert row["diagnosis"].startswith(f"Worst sample ({name}) ")
    assert {share["sample"] for share in tables["budget"]} == {wrong}
    assert {detail["sample"] for detail in tables["details"]} == {wrong}
    roles = {operator["sample"]: operator["sample_role"] for operator in tables["operators"]}
    assert roles.pop(wrong) == "worst on the device"
    assert sorted(roles.values()) == ["typical", "worst"]


def test_a_worst_sample_that_was_captured_or_that_no_debug_program_can_capture_is_left_out(
    packed: Bundle, capture: Capture, lowered: LoweredProgram, request_8a8w: Request, resources: Resources
) -> None:
    everything = with_method(capture, debug=(replace(capture.methods[0].debug[0], samples=tuple(range(8))),))
    assert bundle_of_worst(packed, everything, resources.store) is None
    plain = bundle(with_method(lowered, debug_programs=()), request_8a8w.measure, store=resources.store)
    assert bundle_of_worst(plain, with_method(capture, debug=()), resources.store) is None
    unasked = bundle(with_method(lowered, chosen=()), request_8a8w.measure, store=resources.store)
    assert [launch.name for launch in unasked.launches] == ["shipping"]
    assert bundle_of_worst(unasked, with_method(capture, debug=()), resources.store) is None


def test_a_sample_beyond_those_that_can_be_chosen_is_not_captured(
    packed: Bundle, damaged: Capture, wrong: int, resources: Resources
) -> None:
    """The certificate of a repair has samples that the search does not use."""
    chosen = with_method(damaged, debug=damaged.methods[0].debug[:1])
    further = bundle_of_worst(packed, chosen, resources.store)
    assert further is not None
    assert [launch.captured for launch in further.launches] == [(wrong,)]
    limited = replace(packed, checks=tuple(replace(check, choosable=wrong) for check in packed.checks))
    without = bundle_of_worst(limited, chosen, resources.store)
    assert without is None or without.launches[0].captured < (wrong,)
