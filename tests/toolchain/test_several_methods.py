"""A program with two methods, from the module to the tables: one shipping program, one debug program per method."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from qnnsweep.conf.load import load
from qnnsweep.conf.models import DataConfig, InputConfig, MethodConfig, ModelConfig
from qnnsweep.conf.schema import Request
from qnnsweep.conf.schemes import SchemeOverride
from qnnsweep.flows.cells.graph import comparison_options, lowering_options
from qnnsweep.flows.runs.files import link_files, read_evidence
from qnnsweep.tasks.bundle import bundle
from qnnsweep.tasks.compare import compare
from qnnsweep.tasks.comparison.tensors import operator_tensors
from qnnsweep.tasks.errors import RequestError
from qnnsweep.tasks.export import export
from qnnsweep.tasks.lower import lower
from qnnsweep.tasks.measure import measure
from qnnsweep.tasks.quantize import quantize
from qnnsweep.tasks.records import ExportedModel, LoweredMethod
from qnnsweep.tasks.results.outcome import CellResult, judge
from qnnsweep.tasks.results.rows import rows
from qnnsweep.tasks.toolchain import entrypoints
from qnnsweep.tasks.toolchain.simulation import evaluated

if TYPE_CHECKING:
    from qnnsweep.flows.cells.resources import Resources
    from tests.toolchain.conftest import StartRunner

pytestmark = pytest.mark.toolchain

IMAGES = DataConfig(source="two_methods_model:images", count=3)
VECTORS = DataConfig(source="two_methods_model:features", count=2)
METHODS = [
    MethodConfig(
        name="encode",
        function="encode",
        inputs=[InputConfig(name="image", shape=[1, 1, 8, 8])],
        calibration=IMAGES,
        evaluation=IMAGES,
    ),
    MethodConfig(
        name="classify",
        function="classify",
        inputs=[InputConfig(name="features", shape=[1, 24]), InputConfig(name="gain", shape=[1, 24])],
        calibration=VECTORS,
        evaluation=VECTORS,
    ),
]
MODEL = ModelConfig(name="pair", factory="two_methods_model:build", methods=METHODS)
OUTPUTS = [("encode", "encode/output", 0), ("classify", "classify/0", 1), ("classify", "classify/1", 2)]


@pytest.fixture(scope="module")
def exported(resources: Resources) -> ExportedModel:
    return export(MODEL, "", store=resources.store, workers=resources.workers)


def request_of(scheme: str) -> Request:
    overrides = [f"scheme={scheme}", "soc=SM8650", "measure.operator_samples=2", "measure.profile_level=2"]
    return replace(load(["model=digits_cnn", *overrides]).cells[0].request, model=MODEL)


@pytest.fixture(scope="module", params=["8a8w", "fp16"])
def cell(request: pytest.FixtureRequest, exported: ExportedModel, resources: Resources) -> CellResult:
    """The cell of the model, with every stage's result."""
    ask, tools = request_of(request.param), {"store": resources.store, "workers": resources.workers}
    options: dict[str, Any] = {**tools}
    quantized = quantize(exported, ask.scheme, ask.backend.kind, **options)
    lowered = lower(quantized, ask.soc, lowering_options(ask), **options)
    packed = bundle(lowered, ask.measure, store=resources.store)
    capture = measure(packed, (ask.device,), None, store=resources.store, farm=resources.farm)
    return CellResult(
        request=ask,
        exported=exported,
        quantized=quantized,
        lowered=lowered,
        bundle=packed,
        capture=capture,
        comparison=compare(lowered, capture, comparison_options(ask), **options),
        stage="compare",
    )


def lowered_of(cell: CellResult) -> tuple[LoweredMethod, ...]:
    assert cell.lowered is not None
    return cell.lowered.methods


def tables(cell: CellResult) -> dict[str, list[dict[str, Any]]]:
    return rows("a run", [cell], None)


def test_the_samples_of_all_methods_are_simulated_or_those_of_one(cell: CellResult, resources: Resources) -> None:
    assert cell.lowered is not None
    designed = [row for row in tables(cell)["outputs"] if row["rung"] == "designed"]
    for method, samples in ((None, 5), ("encode", 3), ("classify", 2)):
        simulated = evaluated(cell.lowered, method, resources.store, None, lambda *_: None)
        of_method = [row["snr_db"] for row in designed if method in (None, row["method"])]
        assert (simulated.samples, simulated.snr_db) == (samples, min(of_method))
    with pytest.raises(RequestError) as caught:
        evaluated(cell.lowered, None, resources.store, "x.npy", lambda *_: None)
    lines = "--samples=x.npy: the samples are for one method: choose it with --method, of encode, classify"
    assert str(caught.value) == lines


def test_an_override_of_a_method_needs_no_operator_in_the_other_methods(
    exported: ExportedModel, resources: Resources
) -> None:
    def check(**patterns: str) -> None:
        override = SchemeOverride(**patterns, quant_dtype="16a8w")
        scheme = replace(request_of("8a8w").scheme, overrides=[override])
        arguments = exported, scheme, "qnn", resources.store
        resources.workers.call("quantize", entrypoints.check_overrides, *arguments, subject=("pair",))

    check(method="encode", operator="conv2d")
    for others in ({}, {"method": "cl*"}):
        with pytest.raises(RequestError) as refused:
            check(operator="conv2d", **others)
        assert str(refused.value) == (
            "scheme.overrides[0].operator=conv2d: matches no operator of the model; there are child, scores, and 4 "
            "others"
        )


def test_the_methods_of_one_module_share_its_parameters_and_keep_its_module_paths(
    exported: ExportedModel, cell: CellResult
) -> None:
    encode, classify = exported.methods
    assert [(method.method, len(method.sample_names)) for method in (encode, classify)] == [
        ("encode", 3),
        ("classify", 2),
    ]
    assert classify.sample_names == ("features 0", "features 1")
    modules = [{row.module_path for row in lowered.operators if not row.constant} for lowered in lowered_of(cell)]
    assert modules == [{"", "image", "features"}, {"", "scores"}]


def test_one_shipping_program_has_both_methods_and_every_method_has_its_own_debug_program(cell: CellResult) -> None:
    encode, classify = lowered_of(cell)
    # ExecuTorch sorts the methods of a program by name.
    assert (encode.facts.method_index, classify.facts.method_index) == (1, 0)
    debug = [lowered.debug_programs[0].program for lowered in (encode, classify)]
    assert None not in debug
    assert len(set(debug)) == 2
    facts = [lowered.debug_facts for lowered in (encode, classify)]
    assert [fact and (fact.method_index, len(fact.inputs), len(fact.outputs)) for fact in facts] == [
        (None, 1, 1),
        (None, 2, 2),
    ]
    assert [len(lowered.compile_facts) for lowered in (encode, classify)] == [1, 1]


def test_every_check_of_every_method_agrees_or_says_why_it_could_not_be_read(cell: CellResult) -> None:
    audit = tables(cell)["audit"]
    assert {(row["method"], row["program"]) for row in audit} == {
        (method, program) for method in ("encode", "classify") for program in ("shipping", "debug")
    }
    assert {row["status"] for row in audit} <= {"met", "unread"}
    inputs = {(row["method"], row["subject"]) for row in audit if row["check"] == "input"}
    assert inputs == {("encode", "image"), ("classify", "features"), ("classify", "gain")}


def test_the_runner_is_started_once_per_method_and_program(cell: CellResult) -> None:
    commands = [" ".join(row["argv"]) for row in tables(cell)["commands"]]
    indices = [[word for word in command.split() if word.startswith("--method_index")] for command in commands]
    assert indices == [[f"--method_index={index}"] for index in (1, 0, 0, 0, 0, 0)]
    assert cell.bundle is not None
    folders = [launch.folder for launch in cell.bundle.launches]
    assert folders == [
        *("shipping-encode", "debug-encode", "profile-encode"),
        *("shipping-classify", "debug-classify", "profile-classify"),
    ]


def test_the_final_outputs_of_both_methods_are_those_of_eager_pytorch(cell: CellResult) -> None:
    device = [row for row in tables(cell)["outputs"] if row["rung"] == "device"]
    assert list(dict.fromkeys((row["method"], row["output"], row["output_index"]) for row in device)) == OUTPUTS
    assert [row["sample"] for row in device] == [0, 1, 2, 0, 0, 1, 1]
    assert min(row["snr_db"] for row in device) > (20 if cell.request.scheme.name == "8a8w" else 50)
    assert judge(cell).outcome == "passed"


def test_the_operators_of_both_methods_are_compared_and_have_names_and_numbers_of_their_own(cell: CellResult) -> None:
    rows = tables(cell)["operators"]
    first_sample = {row["method"]: row["sample"] for row in reversed(rows)}
    operators = [row for row in rows if row["sample"] == first_sample[row["method"]]]
    first = len(lowered_of(cell)[0].operators)
    assert [row["operator_index"] for row in operators] == [*range(first + len(lowered_of(cell)[1].operators))]
    assert [row["method"] for row in operators] == ["encode"] * first + ["classify"] * (len(operators) - first)
    assert all(row["operator"].startswith(f"{row['method']}/") for row in operators)
    assert len({row["operator"] for row in operators}) == len(operators)
    linear = [row["operator"] for row in operators if row["target"] == "aten.linear.default"]
    assert linear == ["encode/aten_linear_default", "classify/aten_linear_default"]
    assert all(source >= first for row in operators[first:] for source in row["reads"])
    assert all(source < first for row in operators[:first] for source in row["reads"])
    statuses = {row["status"] for row in operators if row["status"] not in ("constant", "unused")}
    assert statuses <= {"compared", "exact", "masked"}
    assert "introduced" not in {row["verdict"] for row in operators}


def test_every_table_about_parts_of_a_cell_names_their_method(cell: CellResult) -> None:
    contents = tables(cell)
    for table in ("outputs", "operators", "budget", "profile", "modules", "delegation", "audit", "probe"):
        assert {row["method"] for row in contents[table]} == {"encode", "classify"}, table
    shares: dict[tuple[str, int], float] = {}
    for row in contents["budget"]:
        if row["operator"] is None:
            place = row["output"], row["sample"]
            shares[place] = shares.get(place, 0.0) + row["share"]
    assert {output for output, _ in shares} == {name for _, name, _ in OUTPUTS}
    assert [*shares.values()] == pytest.approx([1.0] * len(shares))


def test_the_row_of_the_cell_is_about_both_methods(cell: CellResult) -> None:
    (row,) = tables(cell)["cells"]
    lowered = lowered_of(cell)
    assert cell.lowered is not None
    counts = [sum(count.delegated for count in method.delegation) for method in lowered]
    assert (row["delegated_nodes"], row["non_delegated_nodes"], row["delegated_subgraphs"]) == (sum(counts), 0, 2)
    assert row["pte_bytes"] == cell.lowered.program.size
    assert row["debug_pte_bytes"] == sum(
        debug.program.size for method in lowered for debug in method.debug_programs if debug.program
    )
    assert (row["samples"], row["operators_total"]) == (5, 2 * sum(len(method.operators) for method in lowered))
    lowest = min(row["snr_db"] for row in tables(cell)["outputs"] if row["rung"] == "device")
    assert row["final_snr_db"] == lowest
    assert row["observer_effect"] == "none"
    assert row["worst_operator"].split("/")[0] in ("encode", "classify")


def test_every_method_has_a_folder_of_files_and_its_operators_are_found(cell: CellResult, resources: Resources) -> None:
    store = resources.store
    run_id = f"20260101T000000Z-{cell.request.scheme.name}"
    link_files([cell], run_id, store)
    evidence = read_evidence(run_id, cell.request, store)
    assert evidence is not None
    assert (evidence.lowered, evidence.capture) == (cell.lowered, cell.capture)
    folder = next(Path(store.location).glob(f"runs/{run_id}/files/**/program.pte")).parent
    names = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert {"program.pte", "lowered.parquet", "encode/program_debug.pte", "classify/outputs.safetensors"} <= names
    assert {"encode/model_explorer/edge.json", "classify/perfetto_trace.json", "classify/etdump.etdp"} <= names
    lowered, capture, name = evidence.of_operator("classify/aten_linear_default")
    assert (lowered, name) == (lowered_of(cell)[1], "aten_linear_default")
    tensors = resources.workers.call("compare", operator_tensors, lowered, capture, name, 1, store).value
    assert {tensor.shape for tensor in tensors.values()} == {(1, 10)}


def test_a_method_that_the_program_does_not_have_is_one_clear_line(
    cell: CellResult, resources: Resources, start_runner: StartRunner, tmp_path: Path
) -> None:
    assert cell.lowered is not None
    program = resources.store.read(cell.lowered.program)
    ran = start_runner(tmp_path / "run", program, [], "--method_index=2")
    assert (ran.exit_code, ran.outputs) == (1, {})
    assert "Method index 2 is too large: the program has 2 methods" in ran.stderr


def test_a_function_that_the_module_does_not_have_is_refused_by_its_key(resources: Resources) -> None:
    model = replace(MODEL, methods=[METHODS[0], replace(METHODS[1], function="decode")])
    with pytest.raises(RequestError, match=r"^model\.methods\[1\]\.function=decode: TwoMethods has no such function$"):
        export(model, "", store=resources.store, workers=resources.workers)
