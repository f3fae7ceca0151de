"""A checkpoint's folder, `model=llm:FOLDER`, from the command's words to the tables, on the simulator."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from safetensors.numpy import load as arrays_of

from qnnsweep.conf.load import load
from qnnsweep.tasks.bundle import bundle
from qnnsweep.tasks.results.outcome import CellResult
from tests.models.checkpoints import write_checkpoint
from tests.toolchain.test_state import lowered_of, measured, tables

if TYPE_CHECKING:
    from qnnsweep.flows.cells.resources import Resources

pytestmark = [pytest.mark.toolchain, pytest.mark.slow]
WORDS = ("context=48", "ar_len=16", "new_tokens=4")


@pytest.fixture(scope="module", params=["fp16", "16a8w"])
def cell(request: pytest.FixtureRequest, resources: Resources, tmp_path_factory: pytest.TempPathFactory) -> CellResult:
    folder = tmp_path_factory.mktemp("checkpoints") / "qwen3"
    write_checkpoint(folder, "qwen3", num_hidden_layers=1)
    overrides = [f"model=llm:{folder}", *(f"model.arguments.{word}" for word in WORDS), "measure.operator_samples=1"]
    ask = load([*overrides, f"scheme={request.param}", "soc=SM8650"]).cells[0].request
    ask = replace(ask, model=replace(ask.model, evaluation=replace(ask.model.evaluation, count=2)))  # type: ignore
    lowered = lowered_of(ask, resources)
    return measured(ask, lowered, bundle(lowered, ask.measure, store=resources.store), resources)


def test_a_prompt_is_read_by_prefills_and_the_rest_is_chosen_one_by_one(cell: CellResult) -> None:
    steps = tables(cell)["steps"]
    first = [row for row in steps if row["sample"] == 0]
    methods = [row["method"] for row in first]
    prefills = methods.count("prefill")
    assert prefills > 1
    assert methods == ["prefill"] * prefills + ["decode"] * 4
    assert cell.exported is not None
    assert cell.exported.model.samples == "sentences that ship, tokenised"
    assert all(row["text"] is not None for row in steps)


def test_states_have_one_grid_where_they_are_written_and_read(cell: CellResult) -> None:
    audit = tables(cell)["audit"]
    grids = [row for row in audit if row["check"] == "grid of a state"]
    assert {row["status"] for row in grids} == ({"met"} if cell.request.scheme.name != "fp16" else set())
    assert len(grids) == (6 if cell.request.scheme.name != "fp16" else 0)


def test_the_statistics_are_those_of_an_independent_calculation(cell: CellResult, resources: Resources) -> None:
    assert cell.exported is not None
    assert cell.capture is not None
    store = resources.store
    divergences: list[float] = []
    losses: dict[str, list[float]] = {"device": [], "eager": []}
    steps = {(row["method"], row["method_sample"]): row for row in tables(cell)["steps"]}
    for method, captured in zip(cell.exported.methods, cell.capture.methods, strict=True):
        runs = {"device": arrays_of(store.read(captured.outputs)), "eager": arrays_of(store.read(method.outputs_eager))}
        inputs = arrays_of(store.read(method.evaluation))
        for sample in range(len(method.sample_names)):
            row = steps[method.method, sample]
            if row["kl_divergence_nats"] is None:  # after a token that differs
                continue
            rows = len(row["kl_divergence_nats"])
            logs = {name: log_softmax(run[f"{sample}/0"][0, :rows]) for name, run in runs.items()}
            p, q = np.exp(logs["eager"]), logs["device"]
            found = [float(value) for value in (p * (logs["eager"] - q)).sum(-1)]
            assert row["kl_divergence_nats"] == pytest.approx(found, abs=1e-6)
            divergences += found
            if method.method == "prefill":
                tokens = inputs[f"{sample}/tokens"][0, :rows].astype(int)
                for name in losses:
                    losses[name] += [-float(logs[name][place, token]) for place, token in enumerate(tokens[1:])]
    scores = {row["statistic"]: row["value"] for row in tables(cell)["scores"]}
    assert scores["kl_divergence_mean"] == pytest.approx(np.mean(divergences), abs=1e-6)
    assert scores["kl_divergence_p99"] == pytest.approx(np.percentile(divergences, 99), abs=1e-6)
    # Between two prefills, the next token of the text is known too, so that there are a few more.
    for name, statistic in (("device", "perplexity"), ("eager", "perplexity_reference")):
        assert math.log(scores[statistic]) == pytest.approx(np.mean(losses[name]), rel=0.2)


def log_softmax(scores: Any) -> Any:
    wide = scores.astype(np.longdouble)
    return (
        wide - wide.max(-1, keepdims=True) - np.log(np.exp(wide - wide.max(-1, keepdims=True)).sum(-1, keepdims=True))
    )
