"""Operators that a scheme quantizes in another way: their grids, their place, the audit, and their comparison."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from qnnsweep.conf.load import load
from qnnsweep.conf.schemes import OverridePrecision, SchemeConfig, SchemeOverride
from qnnsweep.flows.cells.graph import lowering_options
from qnnsweep.tasks.bundle import bundle
from qnnsweep.tasks.compare import compare
from qnnsweep.tasks.errors import ProgramDiffers
from qnnsweep.tasks.lower import confirm, lower
from qnnsweep.tasks.measure import measure
from qnnsweep.tasks.numerics.verdict import of_scheme
from qnnsweep.tasks.quantize import quantize
from qnnsweep.tasks.records import Comparison, LoweredProgram, Operator
from qnnsweep.tasks.records.options import ComparisonOptions

import override_cases  # isort: skip

if TYPE_CHECKING:
    from qnnsweep.flows.cells.resources import Resources

pytestmark = pytest.mark.toolchain

MIXED = (
    "scheme.overrides=[{module:features.0,share_clamp:true},{module:features.3,quant_dtype:16a8w},"
    "{node:linear,quant_dtype:8a4w,range:[-40,40],symmetric:true},{input:image,range:[-0.5,2]}]"
)
ELSEWHERE = (
    "scheme.overrides=[{module:features.0,precision:float16},{module:features.3,precision:cpu},"
    "{operator:linear,as_conv2d:true}]"
)


class Measured(NamedTuple):
    """A real cell of the smallest model."""

    scheme: SchemeConfig
    lowered: LoweredProgram
    comparison: Comparison

    def operator(self, name: str) -> Operator:
        (operator,) = (operator for operator in self.lowered.methods[0].operators if operator.name == name)
        return operator

    def checks(self) -> list[tuple[str, str | None, str, str | None, str]]:
        return [
            (check.check, check.subject, check.asked, check.got, check.status)
            for check in self.lowered.checks
            if check.check.startswith("override")
        ]


def measured(base: LoweredProgram, resources: Resources, overrides: str) -> Measured:
    words = ["model=digits_cnn", "scheme=8a8w", "soc=SM8650", "measure.operator_samples=1", overrides]
    ask = load(words).cells[0].request
    tools: Any = {"store": resources.store, "workers": resources.workers}
    quantized = quantize(base.quantized.exported, ask.scheme, ask.backend.kind, **tools)
    lowered = lower(quantized, ask.soc, lowering_options(ask), **tools)
    programs = bundle(lowered, ask.measure, store=resources.store)
    capture = measure(programs, (ask.device,), None, store=resources.store, farm=resources.farm)
    options = ComparisonOptions(classifier=True, tolerances=of_scheme(ask.tolerance.operators, ask.scheme.name))
    return Measured(ask.scheme, lowered, compare(lowered, capture, options, **tools))


@pytest.fixture(scope="module")
def mixed(lowered: LoweredProgram, resources: Resources) -> Measured:
    return measured(lowered, resources, MIXED)


@pytest.fixture(scope="module")
def elsewhere(lowered: LoweredProgram, resources: Resources) -> Measured:
    return measured(lowered, resources, ELSEWHERE)


def test_an_operator_has_the_overrides_that_select_it(mixed: Measured) -> None:
    selected = {
        operator.name: operator.overrides for operator in mixed.lowered.methods[0].operators if operator.overrides
    }
    assert selected == {
        "aten_convolution_default": (0,),
        "aten_convolution_default_1": (1,),
        "aten_linear_default": (2,),
    }


def test_the_results_have_the_grids_that_were_asked_for(mixed: Measured) -> None:
    shared, clamp = mixed.operator("aten_convolution_default"), mixed.operator("aten_relu_default")
    assert shared.quantization == clamp.quantization
    assert shared.quantization is not None
    assert (shared.quantization.zero_point, shared.quantization.quant_max) == ((0,), 255)
    wide = mixed.operator("aten_convolution_default_1").quantization
    assert wide is not None
    assert wide.quant_max - wide.quant_min >= 2**16 - 2
    fixed = mixed.operator("aten_linear_default").quantization
    assert fixed is not None
    assert (fixed.scale, fixed.zero_point) == (pytest.approx((80 / 255,)), (128,))


def test_an_input_has_the_grid_that_was_asked_for(mixed: Measured) -> None:
    (grid,) = mixed.lowered.methods[0].input_qparams
    assert grid is not None
    assert (grid.scale, grid.zero_point, grid.quant_max) == (pytest.approx((2.5 / 255,)), (51,), 255)


def test_an_operator_without_an_override_has_the_grid_of_the_scheme(mixed: Measured, lowered: LoweredProgram) -> None:
    others = {operator.name: operator.quantization for operator in lowered.methods[0].operators}
    for name in ("aten_relu_default", "aten_relu_default_1", "aten_view_copy_default"):
        ours, theirs = mixed.operator(name).quantization, others[name]
        assert ours is not None
        assert theirs is not None
        assert (ours.zero_point, ours.quant_min, ours.quant_max) == (theirs.zero_point, theirs.quant_min, 255)
        assert ours.scale == pytest.approx(theirs.scale, rel=0.2)  # of more calibration samples


def test_a_value_is_converted_between_grids_of_different_bits_and_only_there(mixed: Measured) -> None:
    assert [tensor.operator.name for tensor in mixed.lowered.methods[0].requantized] == [
        "aten_relu_default (requantized for aten_convolution_default_1)",
        "aten_convolution_default_1 (requantized for aten_relu_default_1)",
    ]


def test_the_audit_reads_from_the_compiled_bytes_what_the_overrides_ask_for(mixed: Measured) -> None:
    checks = mixed.checks()
    assert [(check, subject, asked, status) for check, subject, asked, _, status in checks] == [
        ("override: range", "image", "-0.5 to 2", "met"),
        ("override: element", "aten_convolution_default", "fixed8", "met"),
        ("override: element", "aten_convolution_default_1", "fixed16", "met"),
        ("override: element", "aten_linear_default", "fixed8", "met"),
        ("override: range", "aten_linear_default", "-40 to 40", "met"),
        ("override: range", "aten_linear_default", "symmetric", "met"),
    ]
    assert [got for _, _, _, got, _ in checks] == [
        "-0.5 to 2", "fixed8", "fixed16", "fixed8", "-40.1569 to 39.8431", "-40.1569 to 39.8431",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("index", "change", "difference"),
    [
        (1, {"quant_dtype": "8a8w"}, "override: element of aten_convolution_default_1: asked fixed8, got fixed16"),
        (2, {"range": [-20.0, 20.0]}, "override: range of aten_linear_default: asked -20 to 20, got -40.1569"),
        (3, {"range": [0.0, 1.0]}, "override: range of image: asked 0 to 1, got -0.5 to 2"),
        (0, {"symmetric": True, "share_clamp": None}, "override: range of aten_convolution_default: asked symmetric"),
    ],
    ids=["bits", "range", "input", "symmetric"],
)
def test_a_program_without_what_was_asked_is_not_measured(
    mixed: Measured, resources: Resources, index: int, change: dict[str, Any], difference: str
) -> None:
    overrides = [*mixed.scheme.overrides]
    overrides[index] = replace(overrides[index], **change)
    scheme = replace(mixed.scheme, overrides=overrides)
    soc = load(["soc=SM8650"]).cells[0].request.soc
    with pytest.raises(ProgramDiffers) as refused:
        confirm(mixed.lowered, scheme, "qnn", soc, resources.workers.identity)
    assert difference in str(refused.value)


def test_a_float_and_a_cpu_operator_are_outside_the_quantized_graphs(elsewhere: Measured) -> None:
    on_float, on_cpu = elsewhere.operator("aten_convolution_default"), elsewhere.operator("aten_convolution_default_1")
    after = elsewhere.operator("aten_relu_default")
    assert on_cpu.subgraph is None
    assert on_float.subgraph is not None
    assert after.subgraph not in (None, on_float.subgraph)
    assert elsewhere.checks()[:3] == [
        ("override: element", "aten_convolution_default", "float16", "float32", "met"),
        ("override: place", "aten_convolution_default_1", "CPU", "CPU", "met"),
        ("override: element", "aten_convolution_default_2", "fixed8", "fixed8", "met"),
    ]
    messages = [message for count in elsewhere.lowered.methods[0].delegation for message in count.refusals]
    assert messages == ["aten_convolution_default_1: the scheme's overrides keep it on the CPU"]


def test_a_linear_layer_that_is_compiled_as_a_convolution_has_the_weights_and_the_grid_that_it_had(
    elsewhere: Measured, lowered: LoweredProgram
) -> None:
    (linear,) = (operator for operator in lowered.methods[0].operators if operator.name == "aten_linear_default")
    convolution = elsewhere.operator("aten_convolution_default_2")
    assert "aten_linear_default" not in {operator.name for operator in elsewhere.lowered.methods[0].operators}
    assert (convolution.module_path, convolution.shape, convolution.overrides) == (
        linear.module_path,
        (1, 10, 1, 1),
        (2,),
    )
    ours, theirs = convolution.quantization, linear.quantization
    assert ours is not None
    assert theirs is not None
    assert ours.scale == pytest.approx(theirs.scale, rel=0.2)  # of more calibration samples
    by_index = {operator.index: operator for operator in elsewhere.lowered.methods[0].operators}
    assert [by_index[index].shape for index in convolution.sources] == [(1, 512, 1, 1), (10, 512, 1, 1), (10,)]


def test_only_the_selected_linear_layers_become_convolutions(resources: Resources) -> None:
    called = resources.workers.call("quantize", override_cases.called_with_one_layer_as_conv2d)
    assert called.value == [
        ("aten.convolution.default", "1"),
        ("aten.linear.default", "0"),
        ("aten.linear.default", "2"),
    ]


@pytest.mark.parametrize("cell", ["mixed", "elsewhere"])
def test_a_cell_with_overrides_is_compared_like_any_other(cell: str, request: pytest.FixtureRequest) -> None:
    """No operator introduces an error, and the sum of the budget's shares is the error of the final outputs."""
    comparison: Comparison = request.getfixturevalue(cell).comparison
    assert comparison.unexpected_events == ()
    rows = [*comparison.operators, *comparison.requantized]
    assert [row.operator.name for row in rows if row.verdict in ("introduced", "biased")] == []
    device = [row.gap.snr_db for row in comparison.outputs if row.rung == "device"]
    assert min(value for value in device if value is not None) > 15
    totals = {share.cause: share.share for share in comparison.budget if share.operator is None}
    assert abs(sum(value or 0 for value in totals.values()) - 1) < 0.01
    assert abs(totals.get("unexplained") or 0) < 0.2


NEAREST = {
    "{module:feature.3,precision:cpu}": (
        "scheme.overrides[0].module=feature.3: matches no module of the model; there are features.3, features.6, "
        "features.5, features.2, features.0, features, and 1 others"
    ),
    "{operator:conv3d,precision:cpu}": (
        "scheme.overrides[0].operator=conv3d: matches no operator of the model; there are conv2d, "
    ),
    "{operator:relu,module:head,precision:cpu}": (
        "scheme.overrides[0]: no operator of the model matches module and operator together; remove one of the patterns"
    ),
    "{module:features.3,quant_dtype:16a8w},{operator:conv2d,quant_dtype:8a4w}": (
        "scheme.overrides[1].quant_dtype=8a4w: scheme.overrides[0].quant_dtype is 16a8w for the operator conv2d_1 too; "
        "make the two equal, or change a pattern so that only one of them selects it"
    ),
    "{operator:relu,per_channel:false}": (
        "scheme.overrides[0].per_channel=False: has no effect on the selected operators (relu, relu_1): none has a "
        "weight"
    ),
    "{operator:linear,fit_weights:true}": (
        "scheme.overrides[0].fit_weights=True: has no effect on the selected operators (linear): none has a weight of "
        "16 bits"
    ),
    "{operator:linear,share_clamp:true}": (
        "scheme.overrides[0].share_clamp=True: has no effect on the selected operators (linear): no result is read by "
        "a clamp alone; clamps are relu, relu6, hardtanh, clamp, clamp_min, clamp_max"
    ),
    "{operator:relu,as_conv2d:true}": (
        "scheme.overrides[0].as_conv2d=True: has no effect on the selected operators (relu, relu_1): none is a linear "
        "layer"
    ),
    "{operator:linear,quant_dtype:16a4w_block,block_size:[1,7]}": (
        "scheme.overrides[0].block_size=[1, 7]: has no effect on the selected operators (linear): "
    ),
    "{operator:conv2d,quant_dtype:16a8w}": None,
}


def test_the_quantizer_refuses_overrides_that_do_not_fit_the_model(
    lowered: LoweredProgram, resources: Resources
) -> None:
    schemes = [
        load(["model=digits_cnn", "soc=SM8650", f"scheme.overrides=[{written}]"]).cells[0].request.scheme
        for written in NEAREST
    ]
    call = resources.workers.call(
        "quantize", override_cases.refusals, lowered.quantized.exported, schemes, resources.store
    )
    for message, expected in zip(call.value, NEAREST.values(), strict=True):
        assert (message or "").startswith(expected or "")
        assert (message is None) is (expected is None)


def test_an_override_selects_exactly_the_operators_that_all_its_patterns_match(resources: Resources) -> None:
    resources.workers.call("quantize", override_cases.check_selection)


def test_an_input_is_selected_by_its_own_name_alone(resources: Resources) -> None:
    assert resources.workers.call("quantize", override_cases.ranges_of_inputs).value == [
        {"image": [-1.0, 1.0]},
        "scheme.overrides[0].input=x: matches no input of the model; there are image",
        {"relu": [-1.0, 1.0]},
        {"x": [-1.0, 1.0]},
    ]


@pytest.mark.parametrize(("symmetric", "dtype"), [(False, "8a8w"), (True, "8a8w"), (False, "16a8w")])
def test_every_reader_reads_an_input_on_the_grid_that_was_asked_for(
    symmetric: bool, dtype: str, resources: Resources
) -> None:
    grids = resources.workers.call("quantize", override_cases.grids_of_an_input, symmetric, dtype).value
    asked = (-4.0, 2.0)
    assert [grids[reader] for reader in ("permute of x", "linear of permute", "sigmoid of x")] == [asked] * 3
    # HTP needs a symmetric second operand of 16 bits: it keeps its own grid.
    assert grids["matmul of x"] == ((-1.0, 1.0) if dtype == "16a8w" else asked)


def test_an_input_of_integers_has_no_range(resources: Resources) -> None:
    assert resources.workers.call("quantize", override_cases.refusal_of_integers).value == (
        "scheme.overrides[0].range=[0.0, 1.0]: has no effect on the selected inputs (input_1): ExecuTorch "
        "quantizes none of their values"
    )


def test_a_wrong_override_names_its_key_in_the_failure_of_its_cell(
    lowered: LoweredProgram, resources: Resources
) -> None:
    override = SchemeOverride(module="nowhere", precision=OverridePrecision.cpu)
    scheme = SchemeConfig(name="x", quant_dtype="8a8w", overrides=[override])
    with pytest.raises(Exception, match=r"^scheme\.overrides\[0\]\.module=nowhere: matches no module of the model"):
        quantize(lowered.quantized.exported, scheme, "qnn", store=resources.store, workers=resources.workers)
