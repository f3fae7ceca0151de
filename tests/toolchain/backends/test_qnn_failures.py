"""What the message of a failed compilation says: the line that is to be changed, and what to do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from qnnsweep.conf.load import load
from qnnsweep.conf.models import DataConfig, InputConfig, ModelConfig
from qnnsweep.flows.cells.graph import lowering_options
from qnnsweep.tasks.bundle import bundle
from qnnsweep.tasks.errors import RunnerFailed, ToolchainError
from qnnsweep.tasks.export import export
from qnnsweep.tasks.lower import lower
from qnnsweep.tasks.measure import measure
from qnnsweep.tasks.quantize import quantize
from qnnsweep.tasks.records import LoweredProgram
from qnnsweep.tasks.repair.refused import OTHER_SCHEMES
from qnnsweep.tasks.results.failure import failure_reason
from qnnsweep.tasks.toolchain.tensors import read_tensors

if TYPE_CHECKING:
    from qnnsweep.conf.schema import Request
    from qnnsweep.flows.cells.resources import Resources

pytestmark = pytest.mark.toolchain


def compiled(
    resources: Resources, kind: str, *words: str, shape: Sequence[int] = (1, 4, 4, 8)
) -> tuple[Request, LoweredProgram]:
    data = DataConfig(source="refused_models:samples", count=1, arguments={"shape": list(shape)})
    model = ModelConfig(
        name=kind, factory="refused_models:build", arguments={"kind": kind}, calibration=data, evaluation=data,
        inputs=[InputConfig(name="x", shape=list(shape))],
    )  # fmt: skip
    ask = load([*words, "measure.dump_operators=false"]).cells[0].request
    tools: Any = {"store": resources.store, "workers": resources.workers}
    quantized = quantize(export(model, "", **tools), ask.scheme, ask.backend.kind, **tools)
    return ask, lower(quantized, ask.soc, lowering_options(ask), **tools)


def test_a_subgraph_of_constants_is_named_by_the_line_that_computes_them(resources: Resources) -> None:
    with pytest.raises(ToolchainError) as raised:
        compiled(resources, "DecaysFromArange", "scheme=16a8w", "soc=SM8650")
    first, *more = str(raised.value).splitlines()
    said, _, place = first.partition(" (refused_models.py:")
    assert said == "lower failed: RuntimeError: `return x * 2, torch.exp(torch.arange(16) * -0.1)`"
    assert place.partition(") ")[2].startswith(
        "is computed from constants alone, in a subgraph of its own, which the compiler refuses: compute it once in "
        "__init__ and register it as a buffer (No graph inputs present for graph [0]; "
    )
    assert more[0] == "Failed to generate Qnn context binary."


def test_constants_that_the_transforms_make_of_an_assignment_are_folded(resources: Resources) -> None:
    _, lowered = compiled(resources, "WritesARow", "scheme=fp16", "soc=SM8650")
    (method,) = lowered.methods
    assert method.delegated_subgraphs == 1
    eager, edge = (read_tensors(resources.store, blob) for blob in (method.exported.outputs_eager, method.outputs_edge))
    assert np.array_equal(eager["0/0"].numpy(), edge["0/0"].numpy())


@pytest.mark.slow
def test_the_operator_that_the_compiler_cannot_place_is_named_with_a_change_that_compiles(resources: Resources) -> None:
    words, shape = ("scheme=16a8w", "soc=SM8650"), (1, 3, 224, 224)
    with pytest.raises(ToolchainError) as raised:
        compiled(resources, "vision_transformer", *words, shape=shape)
    first = str(raised.value).splitlines()[0]
    said, _, change = first.partition("; tried: it compiles with one operator on the CPU, ")
    assert said.startswith("lower failed: RuntimeError: could not create op: q::Add.tcm, in the subgraph of aten_add_")
    assert "`return x + y` (vision_transformer.py:" in said
    _, lowered = compiled(resources, "vision_transformer", *words, change.strip("`"), shape=shape)
    (method,) = lowered.methods
    assert [
        operator.target for operator in method.operators if operator.subgraph is None and not operator.constant
    ] == ["aten.add.Tensor"]


def test_a_subgraph_of_constants_that_compiles_in_another_scheme_says_so(resources: Resources) -> None:
    with pytest.raises(ToolchainError) as raised:
        compiled(resources, "DecaysFromArange", "scheme=16a8w", "soc=SM8650")
    first = str(raised.value).splitlines()[0]
    assert first.endswith("; tried: it compiles with `scheme=fp16`")


def test_nothing_is_tried_for_a_scheme_with_overrides(resources: Resources) -> None:
    override = "scheme.overrides=[{node: mul, quant_dtype: 8a8w}]"
    with pytest.raises(ToolchainError) as raised:
        compiled(resources, "DecaysFromArange", "scheme=16a8w", override, "soc=SM8650")
    assert "tried" not in str(raised.value).splitlines()[0]


def test_the_schemes_that_are_tried_as_a_whole_are_the_shipped_ones() -> None:
    assert tuple(load([f"scheme={scheme.name}"]).cells[0].request.scheme for scheme in OTHER_SCHEMES) == OTHER_SCHEMES


def test_an_error_of_a_pass_names_the_node_and_the_line(resources: Resources) -> None:
    with pytest.raises(ToolchainError) as raised:
        compiled(resources, "FillsWithASmallMask", "scheme=8a8w", "soc=SM8650")
    first = str(raised.value).splitlines()[0]
    assert first.startswith("lower failed: RuntimeError: permute(sparse_coo): number of dimensions")
    assert "; at " in first
    assert "(refused_models.py:" in first


@pytest.mark.parametrize(
    ("kind", "begins", "ends"),
    [
        (
            "PadsAround",
            'lower failed: aten.pad.default of `h = torch.nn.functional.pad(h, (1, 1, 1, 1), mode="circular")` (',
            "`scheme.overrides=[{node: pad, precision: cpu}]`; RuntimeError: QNN graph I/O does not match the dele",
        ),
        pytest.param(
            "TakesAlong",
            "edge failed: aten.take_along_dim.default of `taken = torch.take_along_dim(h, torch.tensor([[[[0",
            "or with `scheme=fp16`; KeyError: _lifted_tensor_constant",
            marks=pytest.mark.slow,
        ),
        (
            "LooksUpARemainder",
            "quantize failed: aten.embedding.default of `return self.table(numbers).relu()` (",
            "RuntimeError: Expected tensor for argument #1 'indices' to have one of the following scalar types: Long",
        ),
    ],
)
def test_an_error_that_names_no_operator_gets_the_first_one_that_brings_it(
    resources: Resources, kind: str, begins: str, ends: str
) -> None:
    with pytest.raises(ToolchainError) as raised:
        compiled(resources, kind, "scheme=8a8w", "soc=SM8650")
    first = str(raised.value).splitlines()[0]
    assert first.startswith(begins)
    assert ") is the first operator with which the program fails; " in first
    assert ends in first


def test_a_product_that_an_old_soc_cannot_run_is_named_with_the_rule(resources: Resources) -> None:
    ask, lowered = compiled(resources, "Multiplies", "scheme=16a8w", "soc=SM8350")
    tools: Any = {"store": resources.store, "farm": resources.farm}
    with pytest.raises(RunnerFailed) as raised:
        measure(bundle(lowered, ask.measure, store=resources.store), ask.devices, ask.soc, **tools)
    assert raised.value.missing == ("aten::matmul.out",)
    reason = failure_reason(raised.value, lowered, ask)
    assert reason is not None
    line, _, rest = reason.partition(" (refused_models.py:")
    assert line == "`return torch.matmul(x, x.transpose(2, 3))`"
    assert rest.partition(") ")[2] == (
        "cannot run: matrix products of activations and layer norms in 16 bits need Hexagon v73 or newer, and SM8350 "
        "has v68; choose a newer SoC, or give the operator 8-bit activations with scheme.overrides, and ExecuTorch's "
        "runtime has no CPU kernel for aten_matmul_default"
    )
    assert failure_reason(raised.value, None, ask) is None


def test_an_operator_with_several_results_is_named_too(resources: Resources) -> None:
    ask, lowered = compiled(resources, "SumsABag", "scheme=8a8w", "soc=SM8650")
    tools: Any = {"store": resources.store, "farm": resources.farm}
    with pytest.raises(RunnerFailed) as raised:
        measure(bundle(lowered, ask.measure, store=resources.store), ask.devices, ask.soc, **tools)
    reason = failure_reason(raised.value, lowered, ask)
    assert reason is not None
    line, _, rest = reason.partition(" (refused_models.py:")
    assert line == "`return self.bag((x.flatten(1) * 3).long())`"
    assert rest.endswith(", and ExecuTorch's runtime has no CPU kernel for aten__embedding_bag_default")
