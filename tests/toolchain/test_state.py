"""Models with states, from the module to the table of steps: a language model with a cache, and a recurrent model."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from qnnsweep.conf.models import DataConfig, DriverConfig, ModelConfig, StateConfig
from qnnsweep.tasks.bundle import bundle
from qnnsweep.tasks.errors import RequestError
from qnnsweep.tasks.export import export
from qnnsweep.tasks.records import ExportedModel
from qnnsweep.tasks.results.outcome import CellResult, judge
from qnnsweep.tasks.results.rows import rows
from qnnsweep.tasks.toolchain.simulation import evaluated
from tests.toolchain.state_cells import EARS, LEAKY, MICRO, lowered_of, measured, request_of

if TYPE_CHECKING:
    from qnnsweep.flows.cells.resources import Resources

pytestmark = [pytest.mark.slow, pytest.mark.toolchain]


def tables(cell: CellResult) -> dict[str, list[dict[str, Any]]]:
    return rows("a run", [cell], None)


@pytest.fixture(scope="module", params=["fp16", "16a8w"])
def cell(request: pytest.FixtureRequest, resources: Resources) -> CellResult:
    ask = request_of(MICRO, request.param)
    lowered = lowered_of(ask, resources)
    return measured(ask, lowered, bundle(lowered, ask.measure, store=resources.store), resources)


def test_every_step_of_every_sequence_has_a_row_and_the_tokens_are_those_of_eager_pytorch(cell: CellResult) -> None:
    steps = tables(cell)["steps"]
    assert [(row["sample"], row["step"], row["method"], row["method_sample"]) for row in steps] == [
        *((0, 0, "prefill", 0), (0, 1, "decode", 0), (0, 2, "decode", 1)),
        *((1, 0, "prefill", 1), (1, 1, "decode", 2), (1, 2, "decode", 3)),
    ]
    assert [row["token"] for row in steps] == [row["token_reference"] for row in steps]
    assert [row["label"] for row in steps] == [0, None, None, 1, None, None]
    least = 45 if cell.request.scheme.name == "fp16" else 25
    for name in ("total_snr_db", "introduced_snr_db", "state_introduced_snr_db"):
        assert min(row[name] for row in steps) > least, name
    # Nothing was there before the first step from which it could inherit an error.
    assert {row["origin"] for row in steps if row["step"] == 0} == {"introduced"}
    assert judge(cell).outcome == "passed"


def test_the_loop_runs_on_the_device_and_the_other_programs_run_on_its_inputs(cell: CellResult) -> None:
    assert cell.bundle is not None
    launches = cell.bundle.launches
    assert [launch.folder for launch in launches] == ["shipping", "debug-prefill", "debug-decode"]
    assert [launch.samples for launch in launches] == [6, 2, 2]
    commands = [" ".join(row["argv"]) for row in tables(cell)["commands"]]
    assert ["--plan_path=" in command for command in commands] == [True] + [False] * (len(commands) - 1)
    assert cell.capture is not None
    captured = [[files.samples for files in method.debug] for method in cell.capture.methods]
    assert len(commands) == 1 + sum(map(len, captured))


def test_the_worst_step_is_one_of_those_whose_operators_are_compared(cell: CellResult) -> None:
    contents = tables(cell)
    (row,) = contents["cells"]
    lowest = min((step for step in contents["outputs"] if step["rung"] == "device"), key=lambda step: step["snr_db"])
    assert (row["worst_sample"], row["worst_final_output"]) == (lowest["sample"], lowest["output"])
    assert row["sample_role"] is not None
    explained = [
        share
        for share in contents["budget"]
        if (share["sample"], share["output"]) == (lowest["sample"], lowest["output"])
    ]
    assert explained


def test_the_steps_are_simulated_with_the_states_that_simulated_steps_wrote(
    cell: CellResult, resources: Resources
) -> None:
    assert cell.lowered is not None
    seen: list[tuple[int, int]] = []
    simulated = evaluated(cell.lowered, None, resources.store, None, lambda *done: seen.append(done))
    device = [row for row in tables(cell)["outputs"] if row["rung"] == "device"]
    lowest = min(device, key=lambda row: row["snr_db"])
    assert (simulated.samples, simulated.top1_agreement, seen[-1]) == (6, None, (6, 6))
    close_db = 1 if cell.request.scheme.name == "16a8w" else 3  # the device adds float16 numbers in an order of its own
    assert simulated.snr_db == pytest.approx(lowest["snr_db"], abs=close_db)
    alone = evaluated(cell.lowered, "decode", resources.store, None, lambda *_: None)
    of_decode = min(row["snr_db"] for row in device if row["method"] == "decode")
    assert (alone.samples, alone.snr_db) == (4, pytest.approx(of_decode, abs=close_db))


@pytest.mark.parametrize(
    ("method", "place", "problem"),
    [
        ("embed", None, "--method=embed: is none of its methods: prefill, decode"),
        (
            None,
            "x.npy",
            "--samples=x.npy: a model with states is simulated with the sequences with which it was measured",
        ),
    ],
)
def test_what_cannot_be_simulated_is_refused(
    method: str | None, place: str | None, problem: str, cell: CellResult, resources: Resources
) -> None:
    assert cell.lowered is not None
    with pytest.raises(RequestError) as caught:
        evaluated(cell.lowered, method, resources.store, place, lambda *_: None)
    assert str(caught.value) == problem


def test_the_operators_of_the_steps_are_compared_on_the_inputs_that_the_device_had(cell: CellResult) -> None:
    contents = tables(cell)
    operators = contents["operators"]
    assert {row["method"] for row in operators} == {"prefill", "decode"}
    statuses = {row["status"] for row in operators if row["status"] not in ("constant", "unused", "tuple")}
    assert statuses <= {"compared", "exact", "masked"}
    if cell.request.scheme.name == "fp16":
        assert "introduced" not in {row["verdict"] for row in operators}
    # The budgets are those of the results and, if the worst output of a method is a state, of this state.
    outputs = {row["output"] for row in contents["budget"]}
    assert {"prefill/logits", "decode/logits"} <= outputs
    assert len(outputs) <= 4
    assert contents["cells"][0]["accuracy_eager"] is not None


def test_a_state_has_one_grid_where_it_is_written_and_where_it_is_read(cell: CellResult) -> None:
    grids = [row for row in tables(cell)["audit"] if row["check"] == "grid of a state"]
    if cell.request.scheme.name == "fp16":
        assert grids == []
        return
    assert [(row["method"], row["subject"], row["status"]) for row in grids] == [
        (method, f"{name} as {name} of decode", "met") for method in ("prefill", "decode") for name in ("k_0", "v_0")
    ]


DAMAGE = "        arrays = run(program, step.method, inputs, arguments, elapsed_ms)\n"
WRONG_COLUMN = f"{DAMAGE}        if place == (0, 1):\n            arrays[2] = -arrays[2]\n"


def test_a_wrong_column_of_the_cache_is_introduced_where_it_is_written_and_inherited_after_it(
    cell: CellResult, resources: Resources
) -> None:
    assert cell.lowered is not None
    assert cell.bundle is not None
    source = resources.store.read(cell.bundle.runner).decode()
    assert DAMAGE in source
    damaged = resources.store.put_bytes(source.replace(DAMAGE, WRONG_COLUMN).encode())
    blobs = tuple(damaged if blob == cell.bundle.runner else blob for blob in cell.bundle.blobs)
    packed = replace(cell.bundle, runner=damaged, blobs=blobs)
    steps = tables(measured(cell.request, cell.lowered, packed, resources))["steps"]
    origins = [(row["sample"], row["step"], row["origin"]) for row in steps]
    assert origins[1:3] == [(0, 1, "introduced"), (0, 2, "inherited")]
    assert steps[1]["state_introduced_snr_db"] < 10 < steps[4]["state_introduced_snr_db"]
    # The scores of the next step are wrong, although the device computed them rightly from the cache that it had.
    assert steps[2]["total_snr_db"] + 5 < steps[2]["introduced_snr_db"]


def test_a_recurrent_model_with_one_method_passes_its_state_on(resources: Resources) -> None:
    ask = request_of(LEAKY, "fp16")
    lowered = lowered_of(ask, resources)
    cell = measured(ask, lowered, bundle(lowered, ask.measure, store=resources.store), resources)
    steps = tables(cell)["steps"]
    assert [(row["sample"], row["step"], row["method"]) for row in steps] == [(0, step, None) for step in range(20)]
    assert min(row["introduced_snr_db"] for row in steps) > 45
    assert {row["token"] for row in steps} == {None}
    assert judge(cell).outcome == "passed"


def test_what_an_encoder_writes_stays_in_the_states_of_the_decoder(resources: Resources) -> None:
    ask = request_of(EARS, "fp16")
    lowered = lowered_of(ask, resources)
    cell = measured(ask, lowered, bundle(lowered, ask.measure, store=resources.store), resources)
    contents = tables(cell)
    steps = contents["steps"]
    assert [(row["method"], row["method_sample"]) for row in steps] == [
        ("encode", 0),
        *(("decode", step) for step in range(3)),
    ]
    assert [row["token"] for row in steps] == [row["token_reference"] for row in steps]
    assert min(row["introduced_snr_db"] for row in steps) > 45
    assert {row["method"] for row in contents["operators"]} == {"encode", "decode"}
    assert cell.capture is not None
    encode, decode = cell.capture.methods
    written = tensors_of(encode.outputs, resources)
    for files in decode.debug:
        read = tensors_of(files.inputs, resources)
        for index, name in enumerate(("cross_k_0", "cross_v_0")):
            for sample in files.samples:
                assert read[f"{sample}/{name}"].tolist() == written[f"0/{index}"].tolist()


def test_teacher_forced_steps_read_the_tokens_that_eager_pytorch_chose(resources: Resources) -> None:
    model = replace(MICRO, driver=DriverConfig(output="logits", input="tokens", tokens="teacher_forced"))
    tools: dict[str, Any] = {"store": resources.store, "workers": resources.workers}
    exported: list[ExportedModel] = [export(config, "", **tools) for config in (MICRO, model)]
    records = [record.model.driven for record in exported]
    fixed = [tensors_of(record.fixed, resources) for record in records if record]
    assert "0/1/tokens" not in fixed[0]
    assert fixed[1]["0/1/tokens"].shape == (1, 1)


def tensors_of(blob: Any, resources: Resources) -> dict[str, Any]:
    from safetensors.numpy import load as load_tensors

    return load_tensors(resources.store.read(blob))


@pytest.mark.parametrize(
    ("model", "line"),
    [
        (
            replace(LEAKY, states=[StateConfig(output="2", input="state")]),
            "model.states[0].output=2: forward has the outputs 0, 1",
        ),
        (
            replace(LEAKY, evaluation=DataConfig(source="state_model:sequences", count=1)),
            (
                "model.evaluation.source=state_model:sequences: sequence 0, step 0 has the method prefill; "
                "the model has forward"
            ),
        ),
        (
            replace(LEAKY, evaluation=DataConfig(source="two_methods_model:images", count=1)),
            (
                "model.evaluation.source=two_methods_model:images: sequence 0 is not a mapping with the key 'steps', "
                "a list of one or more steps"
            ),
        ),
    ],
)
def test_a_sequence_that_does_not_fit_the_model_is_one_clear_line(
    resources: Resources, model: ModelConfig, line: str
) -> None:
    with pytest.raises(RequestError) as refused:
        export(model, "", store=resources.store, workers=resources.workers)
    assert str(refused.value) == line
