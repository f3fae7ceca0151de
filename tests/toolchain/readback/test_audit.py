"""Asked against got, from the bytes of programs that were really compiled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from qnnsweep.conf.load import load
from qnnsweep.conf.schema import Request
from qnnsweep.flows.cells.graph import lowering_options
from qnnsweep.tasks.errors import ProgramDiffers
from qnnsweep.tasks.lower import confirm, lower
from qnnsweep.tasks.quantize import quantize
from qnnsweep.tasks.records import (
    Blob,
    ContextFacts,
    DelegateFacts,
    GraphTensor,
    LoweredProgram,
    ProgramCheck,
    ProgramFacts,
    ProgramTensor,
)
from qnnsweep.tasks.results.outcome import CellResult
from qnnsweep.tasks.results.rows import rows
from qnnsweep.tasks.toolchain.backends.qnn.context import kernel_elements
from qnnsweep.tasks.toolchain.backends.select import backend_of
from qnnsweep.tasks.toolchain.readback.audit import audit, differences
from tests.sample_records import with_method

import executorch_oracle  # isort: skip

if TYPE_CHECKING:
    from qnnsweep.flows.cells.resources import Resources

pytestmark = pytest.mark.toolchain

Compile = Callable[..., LoweredProgram]


@pytest.fixture(scope="module")
def compiled(lowered: LoweredProgram, resources: Resources) -> Compile:
    """The model of `lowered` for another scheme or SoC."""

    def compile_for(*words: str) -> LoweredProgram:
        (cell,) = load(["model=digits_cnn", *words]).cells
        ask, tools = cell.request, {"store": resources.store, "workers": resources.workers}
        quantized = quantize(lowered.quantized.exported, ask.scheme, ask.backend.kind, **tools)
        return lower(quantized, ask.soc, replace(lowering_options(ask), operator_samples=1), **tools)

    return compile_for


@pytest.fixture(scope="module")
def other_soc(compiled: Compile) -> LoweredProgram:
    return compiled("scheme=8a8w", "soc=SM8350")


def facts_of(program: Blob, resources: Resources) -> ProgramFacts:
    return resources.workers.call("lower", executorch_oracle.program_facts, program, "qnn", resources.store).value


def in_place_of(lowered: LoweredProgram, program: Blob, resources: Resources) -> LoweredProgram:
    """As if the compiler had given `program` for the cell of `lowered`."""
    return with_method(replace(lowered, program=program), facts=facts_of(program, resources))


def checks(lowered: LoweredProgram, ask: Request, resources: Resources) -> tuple[ProgramCheck, ...]:
    return audit(lowered.methods[0], ask.scheme, backend_of(ask.backend.kind), ask.soc, resources.workers.identity)


def differing(lowered: LoweredProgram, ask: Request, resources: Resources) -> list[tuple[Any, ...]]:
    return [
        (check.program, check.subgraph, check.check, check.subject, check.asked, check.got)
        for check in checks(lowered, ask, resources)
        if check.status == "differs"
    ]


def test_a_program_tells_from_its_own_bytes_what_it_is(lowered: LoweredProgram, resources: Resources) -> None:
    facts = facts_of(lowered.program, resources)
    size = facts.delegates[0].size
    assert 0 < size < lowered.program.size
    assert facts == lowered.methods[0].facts == ProgramFacts(
        inputs=(ProgramTensor(shape=(1, 1, 8, 8), dtype="float32", dim_order=(0, 1, 2, 3)),),
        outputs=(ProgramTensor(shape=(1, 10), dtype="float32", dim_order=(0, 1)),),
        delegates=(
            DelegateFacts(
                backend="QnnBackend",
                size=size,
                calls=1,
                soc="SM8650",
                arch=75,
                vtcm_mib=8,
                precision="quantized",
                dumps=False,
                context=ContextFacts(
                    build=resources.workers.identity.qnn,
                    soc="SM8650",
                    arch=75,
                    vtcm_mib=8,
                    optimization_level=3,
                    kernel_elements=("float32", "int32", "ufixed8"),
                    tensors=(
                        GraphTensor(
                            name="input_0_image@0",
                            role="input",
                            dtype="float32",
                            shape=(1, 1, 8, 8),
                            scale=None,
                            zero_point=None,
                            graph="forward",
                        ),
                        GraphTensor(
                            name="output_quantized_decomposed_dequantize_per_tensor_default@0",
                            role="output",
                            dtype="float32",
                            shape=(1, 10),
                            scale=None,
                            zero_point=None,
                            graph="forward",
                        ),
                    ),
                ),
                unread=None,
            ),
        ),
        kernel_calls=0,
    )  # fmt: skip


def test_every_check_of_a_program_as_asked_is_met_and_what_no_library_reads_says_so(
    lowered: LoweredProgram, request_8a8w: Request, resources: Resources
) -> None:
    audited = checks(lowered, request_8a8w, resources)
    assert differences(audited) is None
    interface = ["number of inputs", "input", "number of outputs", "output", "delegated subgraphs", "backend", "calls"]
    options = ["SoC in the options", "arch in the options", "precision flag", "dumps tensors"]
    context = ["SoC in the context", "arch in the context", "VTCM of the graph", "optimization level", "QNN build"]
    expected = [*interface, *options, *context, "activation element of the kernels", "weight element"]
    assert [(check.program, check.check) for check in audited if check.check != "grid"] == [
        (program, check) for program in ("shipping", "debug") for check in expected
    ]
    unread = [check for check in audited if check.status == "unread"]
    assert [(check.check, check.asked, check.got) for check in unread] == [("weight element", "fixed8", None)] * 2
    assert {check.reason for check in unread} == {
        "the HTP compiler packs weights in a form of its own, and no library reads it back"
    }
    assert {check.reason for check in audited if check.status == "met"} == {None}
    cell = CellResult(request=request_8a8w, stage="bundle", lowered=lowered, error=RuntimeError())
    table = rows("run", [cell], resources.workers.identity)["audit"]
    assert [(row["check"], row["status"]) for row in table] == [(check.check, check.status) for check in audited]


def test_the_grid_of_every_dumped_tensor_is_the_one_its_codes_will_be_read_by(
    lowered: LoweredProgram, request_8a8w: Request, resources: Resources
) -> None:
    grids = [check for check in checks(lowered, request_8a8w, resources) if check.check == "grid"]
    announced = [check.identifier for check in lowered.methods[0].expected_tensors if check.quantization]
    assert [check.subject for check in grids] == announced
    assert len(announced) >= 8
    assert {(check.status, check.subgraph, check.asked == check.got) for check in grids} == {("met", 0, True)}


def test_a_program_for_another_soc_is_refused_and_all_its_checks_are_told(
    lowered: LoweredProgram, other_soc: LoweredProgram, request_8a8w: Request, resources: Resources
) -> None:
    ask = request_8a8w
    wrong = in_place_of(lowered, other_soc.program, resources)
    asked = [("SM8650", "SM8350"), ("v75", "v68"), ("SM8650", "SM8350"), ("v75", "v68"), ("8 MiB", "4 MiB")]
    names = ["SoC in the options", "arch in the options", "SoC in the context", "arch in the context"]
    assert differing(wrong, ask, resources) == [
        ("shipping", 0, check, None, *pair) for check, pair in zip([*names, "VTCM of the graph"], asked, strict=True)
    ]
    with pytest.raises(ProgramDiffers) as refused:
        confirm(wrong, ask.scheme, ask.backend.kind, ask.soc, resources.workers.identity)
    assert str(refused.value).startswith(
        "the compiled program is not the requested one, so it is not measured: "
        "shipping program, subgraph 0: SoC in the options: asked SM8650, got SM8350; "
    )
    assert (refused.value.stage, refused.value.checks) == ("lower", checks(wrong, ask, resources))
    assert lowered.checks == checks(lowered, ask, resources)
    cell = CellResult(request=ask, stage="lower", error=refused.value)
    tables = rows("run", [cell], resources.workers.identity)
    assert (tables["cells"][0]["outcome"], tables["cells"][0]["error_type"]) == ("failed", "ProgramDiffers")
    assert [(row["check"], row["status"]) for row in tables["audit"]] == [
        (check.check, check.status) for check in refused.value.checks
    ]


@pytest.fixture(scope="module")
def of_16_bits(compiled: Compile) -> LoweredProgram:
    return compiled("scheme=16a8w", "soc=SM8650")


def test_a_grid_of_16_bits_that_torch_keeps_in_32_is_one_of_16(
    of_16_bits: LoweredProgram, resources: Resources
) -> None:
    (cell,) = load(["model=digits_cnn", "scheme=16a8w", "soc=SM8650"]).cells
    audited = checks(of_16_bits, cell.request, resources)
    (check,) = [check for check in audited if check.subject == "aten_linear_default@0"]
    assert (check.status, check.asked.split()[0], check.asked == check.got) == ("met", "fixed16", True)
    assert differences(audited) is None


def test_a_program_of_another_width_is_refused(
    lowered: LoweredProgram, of_16_bits: LoweredProgram, request_8a8w: Request, resources: Resources
) -> None:
    wrong = in_place_of(lowered, of_16_bits.program, resources)
    kernels = "activation element of the kernels"
    assert differing(wrong, request_8a8w, resources) == [
        ("shipping", None, kernels, None, "fixed8", "float32, int32, ufixed16")
    ]


def test_a_program_of_floats_is_refused(
    lowered: LoweredProgram, compiled: Compile, request_8a8w: Request, resources: Resources
) -> None:
    wrong = in_place_of(lowered, compiled("scheme=fp16", "soc=SM8650").program, resources)
    kernels = "activation element of the kernels"
    assert differing(wrong, request_8a8w, resources) == [
        ("shipping", 0, "precision flag", None, "quantized", "float16"),
        ("shipping", None, kernels, None, "fixed8", "float16, float32, int32"),
    ]


def test_the_debug_program_in_the_shipping_ones_place_is_refused(
    lowered: LoweredProgram, request_8a8w: Request, resources: Resources
) -> None:
    (debug,) = lowered.methods[0].debug_programs
    assert debug.program is not None
    wrong = in_place_of(lowered, debug.program, resources)
    assert differing(wrong, request_8a8w, resources) == [("shipping", 0, "dumps tensors", None, "False", "True")]


def test_libraries_of_another_build_are_told(
    lowered: LoweredProgram, request_8a8w: Request, resources: Resources
) -> None:
    ask = request_8a8w
    other = replace(resources.workers.identity, qnn="v2.0.0.1")
    audited = audit(lowered.methods[0], ask.scheme, backend_of(ask.backend.kind), ask.soc, other)
    builds = [(check.program, check.check, check.asked, check.got) for check in audited if check.status == "differs"]
    build = resources.workers.identity.qnn
    assert builds == [(program, "QNN build", "v2.0.0.1", build) for program in ("shipping", "debug")]


def test_a_grid_that_is_not_the_compiled_one_is_told(
    lowered: LoweredProgram, request_8a8w: Request, resources: Resources
) -> None:
    announced = next(
        tensor for tensor in lowered.methods[0].expected_tensors if tensor.identifier == "aten_linear_default@0"
    )
    qparams = announced.quantization
    assert qparams is not None
    shifted = replace(announced, quantization=replace(qparams, zero_point=(qparams.zero_point[0] + 1,)))
    tensors = tuple(shifted if tensor is announced else tensor for tensor in lowered.methods[0].expected_tensors)
    wrong = with_method(lowered, expected_tensors=tensors)
    (difference,) = differing(wrong, request_8a8w, resources)
    assert difference[:4] == ("debug", 0, "grid", "aten_linear_default@0")
    scale = f"{qparams.scale[0]:.6g}"
    assert difference[4:] == (
        f"fixed8 scale {scale} zero point {qparams.zero_point[0] + 1}",
        f"fixed8 scale {scale} zero point {qparams.zero_point[0]}",
    )


def test_inputs_that_changed_places_dtype_or_layout_and_a_lost_subgraph_are_told(
    lowered: LoweredProgram, request_8a8w: Request, resources: Resources
) -> None:
    (image,) = lowered.methods[0].facts.inputs
    wrong = with_method(
        lowered,
        facts=replace(
            lowered.methods[0].facts,
            inputs=(replace(image, dtype="float16", dim_order=(0, 2, 3, 1)),),
            outputs=(),
            delegates=(),
        ),
    )
    assert differing(wrong, request_8a8w, resources) == [
        (
            *("shipping", None, "input", "image"),
            "float32[1, 1, 8, 8] in axis order [0, 1, 2, 3]",
            "float16[1, 1, 8, 8] in axis order [0, 2, 3, 1]",
        ),
        ("shipping", None, "number of outputs", None, "1", "0"),
        ("shipping", None, "delegated subgraphs", None, "1", "0"),
    ]


def test_a_context_that_cannot_be_read_is_no_difference_but_says_why(
    lowered: LoweredProgram, request_8a8w: Request, resources: Resources
) -> None:
    data = resources.store.read(lowered.program)
    place = data.index((0x5678ABCD).to_bytes(4, "little"))
    for damage, reason in (
        (b"none", "not a readable QNN context binary: it begins with b'none', not b'\\xcd\\xabxV'"),
        (data[place : place + 12] + b"\xff" * 8, "it was cut short"),
        (data[place : place + 256] + b"\xff" * 64, "QNN"),
    ):
        spoilt = resources.store.put_bytes(data[:place] + damage + data[place + len(damage) :])
        read = in_place_of(lowered, spoilt, resources)
        assert differing(read, request_8a8w, resources) == []
        unread = [check for check in checks(read, request_8a8w, resources) if check.status == "unread"]
        assert [check.check for check in unread if check.program == "shipping"] == [
            *("SoC in the context", "arch in the context", "VTCM of the graph", "optimization level", "QNN build"),
            *("activation element of the kernels", "weight element"),
        ]
        assert reason in (unread[0].reason or "")


def test_element_types_are_those_of_kernel_names_and_of_nothing_else() -> None:
    names = b"\0Quantize@FH.Ff\0MaxPool_valid.tcm@Ce*2.s4*2\0ForceFormat_Flat_c2f@FB\0"
    assert kernel_elements(names) == ("float16", "ufixed16", "ufixed8")
    assert kernel_elements(b"\0aten_convolution_default@0\0x@FB.\0*InputSlice@Xpb.xpb.\0") == ()
    assert kernel_elements(b"\x01" + b"5.Quantize@FH.Ff") == ("ufixed16",)  # a length may look like a part of the name
    assert kernel_elements(b"\0Quantize@FH.Dequantize@FB.\0") == ("ufixed16",)  # the arguments are no name


@pytest.mark.timeout(60)
def test_a_binary_of_any_shape_is_searched_without_a_hang() -> None:
    assert kernel_elements(b"w" * 1_000_000) == ()
    assert kernel_elements(b"w" * 1_000_000 + b"@FB.") == ("ufixed8",)
