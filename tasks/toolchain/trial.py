"""The trial of a changed scheme without a device. Runs in a worker.

The scheme is applied by ExecuTorch's own quantizer and the backend's own passes, with all that they change beside the
operators of an override: shared grids, constants, readers. The model of the arithmetic then runs every sample. If this
promises a gain, the operators whose bits or form changed are compiled, with all others on the CPU.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from executorch.exir import EdgeProgramManager

from qnnsweep.conf.schema import SocConfig
from qnnsweep.conf.schemes import OverridePrecision, SchemeConfig, SchemeOverride
from qnnsweep.tasks.records import LoweredMethod, Operator
from qnnsweep.tasks.storage.store import Store
from qnnsweep.tasks.toolchain.backends.select import backend_of
from qnnsweep.tasks.toolchain.compile import Unavailable, try_compile
from qnnsweep.tasks.toolchain.deterministic import make_deterministic
from qnnsweep.tasks.toolchain.edge import edge_program, output_noise
from qnnsweep.tasks.toolchain.overridden import has_precision, select_only
from qnnsweep.tasks.toolchain.quantize import input_names, quantized_program
from qnnsweep.tasks.toolchain.reference.designed import design_of, designed_outputs
from qnnsweep.tasks.toolchain.reference.graph import graph_of
from qnnsweep.tasks.toolchain.reference.operators import input_qparams, operator_table
from qnnsweep.tasks.toolchain.tensors import read_samples, read_tensors

_REST_ON_CPU = SchemeOverride(node="*", precision=OverridePrecision.cpu)
_WITH_WEIGHTS = ("aten.convolution", "aten.linear", "aten.addmm", "aten.mm")
_16_BIT_WEIGHTS = "16a16w"
_FLOOR = 1e-6  # measured: linear layers and convolutions with 16-bit weights have 57 to 83 dB in the simulator


def try_scheme(
    before: LoweredMethod,
    scheme: SchemeConfig,
    changed: SchemeConfig,
    kind: str,
    soc: SocConfig | None,
    most_noise: float,
    store: Store,
) -> tuple[list[float], str | None]:
    """Return the noise-to-signal ratio of each sample's worst final output at the rung `designed`, and a refusal.

    `before`, `scheme`: the program before the change. `most_noise`: nothing is compiled if a sample has more noise. The
    refusal says why the host cannot compute the program, or why it cannot be compiled; None if it can. Raises
    RequestError for an override that does not fit the program.
    """
    make_deterministic()
    exported = before.exported
    program = quantized_program(exported, changed, kind, store)
    compiler = backend_of(kind).compiler(changed, None)
    edge = edge_program(compiler, program, exported.name)
    graph = edge.exported_program(exported.name)
    operators = operator_table(graph, compiler)
    inputs = read_samples(store, exported.evaluation, input_names(exported), before.choosable)
    floors = dict.fromkeys(_with_16_bit_weights(operators, changed), _FLOOR)
    reference, qparams = graph_of(graph), input_qparams(graph, compiler)
    design = design_of(reference, operators, qparams, compiler)
    answers = designed_outputs(reference, operators, qparams, design, inputs, floors)
    if isinstance(answers, str):
        return [], answers
    eager = read_tensors(store, exported.outputs_eager)
    noise = [output_noise(answer, eager, sample) for sample, answer in enumerate(answers)]
    if max(noise, default=0.0) > most_noise:
        return noise, None
    names = {operators[index].name for index in _changed(before.operators, operators, scheme, changed)}
    return noise, _refusal(before, edge, names, changed, kind, soc) if names else None


def _with_16_bit_weights(operators: Sequence[Operator], scheme: SchemeConfig) -> Iterator[int]:
    """Yield the operators with 16-bit weights, which the device computes with a noise of their own."""
    for operator in operators:
        dtypes = [dtype for index in operator.overrides if (dtype := scheme.overrides[index].quant_dtype) is not None]
        if operator.target.startswith(_WITH_WEIGHTS) and (dtypes or [scheme.quant_dtype])[0] == _16_BIT_WEIGHTS:
            yield operator.index


def _refusal(
    before: LoweredMethod,
    edge: EdgeProgramManager,
    names: Collection[str],
    scheme: SchemeConfig,
    kind: str,
    soc: SocConfig | None,
) -> str | None:
    """Return why operators cannot be compiled; None if they can. `names`: of the operators. Makes `edge` unusable.

    An operator is refused, too, if the compiler delegated it before the change, and would now leave it on the CPU.
    """
    method = before.exported.name
    others = replace(scheme, overrides=[*scheme.overrides, _REST_ON_CPU])
    on_cpu = {operator.name for operator in before.operators if operator.subgraph is None}
    for node in edge.exported_program(method).graph.nodes:
        if node.name not in names:
            select_only(node, len(scheme.overrides))
        elif has_precision(node, scheme.overrides, OverridePrecision.cpu):
            on_cpu.add(node.name)
    compiled = try_compile(backend_of(kind).compiler(others, soc), edge, method, debug=False)
    if isinstance(compiled, Unavailable):
        return compiled.reason
    refusals = compiled.log.refusals.items()
    return next((f"{name}: {why}" for name, why in refusals if name in names and name not in on_cpu), None)


def _changed(
    before: Sequence[Operator], after: Sequence[Operator], scheme: SchemeConfig, changed: SchemeConfig
) -> Iterator[int]:
    """Yield the operators whose bits or form differ from those before, with the operators around them."""
    known = {operator.name: _form(operator) for operator in before}
    new = [index for index, override in enumerate(changed.overrides) if override not in scheme.overrides]
    forms = {index for index in new if _changes_form(changed.overrides[index])}
    differing = {
        operator.index
        for operator in after
        if known.get(operator.name) != _form(operator) or not forms.isdisjoint(operator.overrides)
    }
    around = {source for operator in after if operator.index in differing for source in operator.sources}
    around |= {operator.index for operator in after if not differing.isdisjoint(operator.sources)}
    if differing:
        yield from (operator.index for operator in after if operator.index in differing | around)


def _changes_form(override: SchemeOverride) -> bool:
    """Return whether the override changes more than the steps and the ends of grids."""
    of_form = (override.quant_dtype, override.precision, override.per_channel, override.block_size, override.as_conv2d)
    return any(setting is not None for setting in of_form)


def _form(operator: Operator) -> tuple[object, ...]:
    qparams = operator.quantization
    return operator.target, operator.shape, None if qparams is None else (qparams.quant_min, qparams.quant_max)
