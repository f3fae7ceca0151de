"""The functions of the toolchain that stages run in worker processes.

Each function imports its implementation only when it is called, so that the process that starts the workers never
loads torch.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from qnnsweep.conf.models import ModelConfig
from qnnsweep.conf.schema import SocConfig
from qnnsweep.conf.schemes import SchemeConfig
from qnnsweep.tasks.records import (
    CompilerRefusal,
    ExportedMethod,
    ExportedModel,
    LoweredMethod,
    LoweredProgram,
    ModelFacts,
    OtherReference,
    QuantizedModel,
    Span,
    StepPlan,
    TensorSpec,
    WeightBits,
    WeightChoices,
)
from qnnsweep.tasks.records.debugged import Debugged
from qnnsweep.tasks.records.options import LoweringOptions
from qnnsweep.tasks.storage.store import Store

if TYPE_CHECKING:
    from qnnsweep.tasks.toolchain.edge import EdgeModel
    from qnnsweep.tasks.toolchain.reference.kernels import HostKernels


def export_model(model: ModelConfig, store: Store) -> ExportedModel:
    from qnnsweep.tasks.toolchain import export

    return export.export_model(model, store)


def check_model(model: ModelConfig) -> None:
    from qnnsweep.tasks.toolchain import export

    export.check_model(model)


def positional_inputs(model: ModelConfig) -> tuple[TensorSpec, ...]:
    from qnnsweep.tasks.toolchain import export

    return export.positional_inputs(model)


def check_overrides(exported: ExportedModel, scheme: SchemeConfig, kind: str, store: Store) -> None:
    from qnnsweep.tasks.toolchain import quantize

    quantize.check_overrides(exported, scheme, kind, store)


def quantize_model(exported: ExportedModel, scheme: SchemeConfig, kind: str, store: Store) -> QuantizedModel:
    from qnnsweep.tasks.toolchain import quantize
    from qnnsweep.tasks.toolchain.nodes import naming_nodes

    with naming_nodes():
        return quantize.quantize_model(exported, scheme, kind, store)


def try_scheme(
    before: Sequence[LoweredMethod],
    plan: StepPlan | None,
    scheme: SchemeConfig,
    changed: SchemeConfig,
    kind: str,
    soc: SocConfig | None,
    statistic: Callable[[Sequence[float]], float],
    least_db: float,
    store: Store,
) -> tuple[list[float], str | None]:
    from qnnsweep.tasks.toolchain import trial
    from qnnsweep.tasks.toolchain.nodes import naming_nodes

    with naming_nodes():
        return trial.try_scheme(before, plan, scheme, changed, kind, soc, statistic, least_db, store)


def best_bits(
    method: LoweredMethod, weights: Sequence[WeightChoices], most_bits: float, store: Store
) -> list[WeightBits]:
    from qnnsweep.tasks.toolchain import narrowed

    return narrowed.best_bits(method, weights, most_bits, store)


def own_metrics(
    names: tuple[str, ...], pairs: Path, handles: Mapping[str, tuple[int, ...]], labels: Mapping[str, int | None]
) -> dict[str, list[tuple[float | None, str | None]]]:
    from qnnsweep.tasks.toolchain import comparators

    return comparators.own_metrics(names, pairs, handles, labels)


def edge_models(quantized: QuantizedModel, options: LoweringOptions, store: Store) -> list["EdgeModel"]:
    """Return the edge program of every method."""
    from qnnsweep.tasks.toolchain import edge
    from qnnsweep.tasks.toolchain.nodes import naming_nodes

    with naming_nodes():
        return [edge.edge_model(method, options, store) for method in quantized.methods]


def lower_model(
    methods: Sequence["EdgeModel"], model: ModelFacts, soc: SocConfig | None, options: LoweringOptions, store: Store
) -> LoweredProgram:
    from qnnsweep.tasks.toolchain import lower
    from qnnsweep.tasks.toolchain.nodes import naming_nodes

    with naming_nodes():
        return lower.lower_model(methods, model, soc, options, store)


def lower_unless_refused(
    methods: Sequence["EdgeModel"], model: ModelFacts, soc: SocConfig | None, options: LoweringOptions, store: Store
) -> LoweredProgram | CompilerRefusal:
    from qnnsweep.tasks.toolchain import lower
    from qnnsweep.tasks.toolchain.nodes import naming_nodes

    with naming_nodes():
        return lower.lower_unless_refused(methods, model, soc, options, store)


def why_refused(
    exported: ExportedMethod, scheme: SchemeConfig, kind: str, soc: SocConfig | None, store: Store
) -> str | None:
    from qnnsweep.tasks.toolchain import trial
    from qnnsweep.tasks.toolchain.nodes import naming_nodes

    with naming_nodes():
        return trial.why_refused(exported, scheme, kind, soc, store)


def first_failing(
    exported: ExportedMethod,
    scheme: SchemeConfig,
    kind: str,
    soc: SocConfig | None,
    stage: str,
    said: str,
    store: Store,
) -> tuple[str, str] | None:
    from qnnsweep.tasks.toolchain import first_failing

    return first_failing.first_failing(exported, scheme, kind, soc, stage, said, store)


def debug_program(
    methods: Sequence["EdgeModel"],
    number: int,
    span: Span,
    soc: SocConfig | None,
    options: LoweringOptions,
    store: Store,
) -> Debugged:
    """Compile the debug program of a part of a method. `number`: the position of the method in `methods`."""
    from qnnsweep.tasks.toolchain import debug_program
    from qnnsweep.tasks.toolchain.backends.select import backend_of
    from qnnsweep.tasks.toolchain.nodes import naming_nodes

    compiler = backend_of(options.kind).compiler(options.scheme, soc)
    with naming_nodes():
        return debug_program.debug_program(methods[number], compiler, options.kind, span, store)


def reference_kernels(
    lowered: LoweredMethod, store: Store, halves: frozenset[int] = frozenset()
) -> Callable[..., "HostKernels"]:
    """Return a function that takes a sample's inputs, and returns the kernels. All kernels have the same constants.

    `halves`: the calls that read their constants in float16. The inputs are two lists of arrays: rounded to the
    device's grids and, if they are known, before that.
    """
    from qnnsweep.tasks.toolchain.deterministic import make_deterministic
    from qnnsweep.tasks.toolchain.reference.kernels import HostKernels
    from qnnsweep.tasks.toolchain.reference.stored_graph import device_graph

    make_deterministic()
    return HostKernels(device_graph(lowered, store), (), halves=halves).on


def reference_values(lowered: LoweredMethod, store: Store, inputs: Sequence[NDArray[Any]]) -> dict[int, NDArray[Any]]:
    """Return the operators' values in the edge graph on one sample, as the lowering computes them for those it chose.

    `inputs`: the exact inputs of the sample.
    """
    import torch

    from qnnsweep.tasks.toolchain.deterministic import make_deterministic
    from qnnsweep.tasks.toolchain.reference.stored_graph import read_graph

    make_deterministic()
    graph = read_graph(store, lowered.reference_calls, lowered.reference_constants)
    with torch.no_grad():
        values = graph.tensors([torch.from_numpy(array.copy()) for array in inputs])
    return {index: value.contiguous().numpy() for index, value in values.items()}


def other_values(
    lowered: LoweredMethod, other: OtherReference, store: Store, inputs: Sequence[NDArray[Any]]
) -> dict[int, NDArray[Any]]:
    """Return the operators' values in another reference on one sample; see `reference_values`."""
    import torch

    from qnnsweep.tasks.toolchain.deterministic import make_deterministic
    from qnnsweep.tasks.toolchain.reference.counterparts import values_on
    from qnnsweep.tasks.toolchain.saved_program import load_program

    make_deterministic()
    blob = lowered.exported.program if other.name == "exported" else lowered.quantized.program
    tensors = [torch.from_numpy(array.copy()) for array in inputs]
    values = values_on(other, lowered.operators, load_program(store, blob), tensors)
    return {index: value.contiguous().numpy() for index, value in values.items()}


def exported_function(exported: ExportedMethod, store: Store) -> Callable[[Sequence[NDArray[Any]]], list[NDArray[Any]]]:
    """Return the exported program, which computes what eager PyTorch computes, as a function of arrays."""
    import torch

    from qnnsweep.tasks.toolchain.deterministic import make_deterministic
    from qnnsweep.tasks.toolchain.saved_program import exported_call

    make_deterministic()
    call = exported_call(store, exported)
    return lambda inputs: call(*(torch.from_numpy(array.copy()) for array in inputs))
