"""A checkpoint's folder, `model=llm:FOLDER`, from the command's words to the tables, on the simulator."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
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
DATA = Path(__file__).parents[1] / "data" / "llm"
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


@pytest.fixture(scope="module")
def stories(resources: Resources) -> CellResult:
    files = {"weights": "stories260K.bin", "tokenizer": "tok512.bin"}
    overrides = [f"model.arguments.{name}={DATA / file}" for name, file in files.items()]
    words = ["model=stories_260k", *overrides, "scheme=16a8w", "soc=SM8650", "measure.dump_operators=false"]
    ask = load(words).cells[0].request
    lowered = lowered_of(ask, resources)
    return measured(ask, lowered, bundle(lowered, ask.measure, store=resources.store), resources)


def test_the_statistics_of_a_folder_are_those_of_an_independent_calculation(
    cell: CellResult, resources: Resources
) -> None:
    assert scores_of(cell) == pytest.approx(independent(cell, resources), abs=1e-6, rel=1e-6)


def test_the_statistics_of_stories_are_those_of_an_independent_calculation(
    stories: CellResult, resources: Resources
) -> None:
    assert scores_of(stories) == pytest.approx(independent(stories, resources), abs=1e-6, rel=1e-6)


def scores_of(cell: CellResult) -> dict[str, float]:
    return {row["statistic"]: row["value"] for row in tables(cell)["scores"]}


def independent(cell: CellResult, resources: Resources) -> dict[str, float]:
    """Calculate the statistics from the stored outputs, in extended precision."""
    assert cell.exported is not None
    assert cell.capture is not None
    read = resources.store.read
    arrays: dict[Any, tuple[Any, Any, Any]] = {
        method.method: tuple(
            arrays_of(read(one)) for one in (captured.outputs, method.outputs_eager, method.evaluation)
        )
        for method, captured in zip(cell.exported.methods, cell.capture.methods, strict=True)
    }
    steps = tables(cell)["steps"]
    divergences: list[Any] = []
    same: list[bool] = []
    right: list[tuple[Any, Any]] = []
    for number, row in enumerate(steps):
        if row["origin"] == "diverged":
            continue
        device, eager, inputs = arrays[row["method"]]
        sample, rows = row["method_sample"], len(row["kl_divergence_nats"])
        q, p = (
            log_softmax(run[f"{sample}/0"].reshape(-1, run[f"{sample}/0"].shape[-1])[:rows]) for run in (device, eager)
        )
        divergences += [*(np.exp(p) * (p - q)).sum(-1)]
        same += [*(q.argmax(-1) == p.argmax(-1))]
        if row["method"] == "prefill":
            following = [int(token) for token in inputs[f"{sample}/tokens"][0, 1:rows]]
            after = steps[number + 1] if number + 1 < len(steps) else row
            if after["sample"] == row["sample"] and after["method"] == "prefill" and after is not row:
                following.append(int(arrays["prefill"][2][f"{after['method_sample']}/tokens"][0, 0]))
            right += [(q[place, token], p[place, token]) for place, token in enumerate(following)]
    logs, logs_eager = np.array(right).T
    difference = np.exp(logs) - np.exp(logs_eager)
    values = {
        "kl_divergence_mean": np.mean(divergences),
        "kl_divergence_median": np.median(divergences),
        "kl_divergence_p99": np.percentile(np.array(divergences, np.float64), 99),
        "kl_divergence_max": np.max(divergences),
        "same_top1": np.mean(same),
        "perplexity": np.exp(-logs.mean()),
        "perplexity_reference": np.exp(-logs_eager.mean()),
        "perplexity_ratio": np.exp(-logs.mean()) / np.exp(-logs_eager.mean()),
        "probability_difference_mean": difference.mean(),
        "probability_difference_median": np.median(difference),
        "probability_difference_rms": np.sqrt((difference**2).mean()),
        "probability_difference_min": difference.min(),
        "probability_difference_max": difference.max(),
    }
    return {name: float(value) for name, value in values.items()}


def log_softmax(scores: Any) -> Any:
    wide = scores.astype(np.longdouble)
    return (
        wide - wide.max(-1, keepdims=True) - np.log(np.exp(wide - wide.max(-1, keepdims=True)).sum(-1, keepdims=True))
    )
