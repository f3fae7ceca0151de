"""The trial of a changed scheme without a device. Runs in a worker.

The scheme is applied by ExecuTorch's own quantizer and the backend's own passes, with all that they change beside the
operators of an override: shared grids, constants, readers. The model of the arithmetic then runs every sample. If this
promises a gain, the operators whose bits or form changed are compiled, with all others on the CPU. If this ends in an
error, the whole program decides.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace

from executorch.exir import EdgeProgramManager
from torch.export import ExportedProgram

from qnnsweep.conf.schema import SocConfig
from qnnsweep.conf.schemes import OverridePrecision, Precision, SchemeConfig, SchemeOverride
from qnnsweep.tasks.errors import EvidenceError
from qnnsweep.tasks.records import ExportedMethod, LoweredMethod, Operator, StepPlan
from qnnsweep.tasks.storage.store import Store
from qnnsweep.tasks.toolchain.backends.select import backend_of
from qnnsweep.tasks.toolchain.compile import Unavailable, try_compile, try_delegation
from qnnsweep.tasks.toolchain.designed_steps import DesignedMethod, noise_of_samples, noise_of_steps
from qnnsweep.tasks.toolchain.deterministic import make_deterministic
from qnnsweep.tasks.toolchain.edge import edge_program
from qnnsweep.tasks.toolchain.overridden import has_precision, select_only
from qnnsweep.tasks.toolchain.quantize import input_names, quantized_programs
from qnnsweep.tasks.toolchain.reference.designed import DesignedRuns, design_of
from qnnsweep.tasks.toolchain.reference.graph import graph_of
from qnnsweep.tasks.toolchain.reference.operators import input_qparams, operator_table, output_operators
from qnnsweep.tasks.toolchain.saved_program import load_program
from qnnsweep.tasks.toolchain.tensors import read_samples, read_tensors

_REST_ON_CPU = SchemeOverride(node="*", precision=OverridePrecision.cpu)
_FINE = "16a16w"
_NOISE_OF_16_BITS = 1e-8
"""The noise of HTP's arithmetic for 16-bit weights beyond the exact rounding of its results: on v75, one such operator
has 79 to 85 dB, where its rung `designed` has 86 dB."""
_NOISE_OF_FLOAT16 = 1e-7
"""The noise of some roundings to the 11 bits of a float16: of the inputs that a float16 operator reads from a grid, of
its weights, and of its result, each with about 77 dB. The rung `designed` rounds the results alone."""


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
    """Return the noise-to-signal ratio of each sample's worst final output at the rung `designed`, and a refusal.

    `before`, `scheme`: the methods of the program before the change. The samples are those of the first method, then
    those of the next. `plan`: the steps of a model with states; None without states. Nothing is compiled if `statistic`
    of the noise, in dB, is lower than `least_db`. The refusal says why the host cannot compute the program, or why it
    cannot be compiled; None if it can. Raises RequestError for an override that does not fit the program.
    """
    make_deterministic()
    designed = designed_methods(before, plan, changed, kind, store)
    noise = _noise(designed, plan)
    if isinstance(noise, str):
        return [], noise
    if any(override.quant_dtype == _FINE for override in changed.overrides):
        noise = [of_sample + _NOISE_OF_16_BITS for of_sample in noise]
    if any(override.precision is OverridePrecision.float16 for override in changed.overrides):
        noise = [of_sample + _NOISE_OF_FLOAT16 for of_sample in noise]
    if statistic(noise) < least_db:
        return noise, None
    for method in designed:
        differing = _changed(method.before.operators, method.operators, scheme, changed)
        names = {method.operators[index].name for index in differing}
        if not names:
            continue
        refused, error = _refusal(method.before, method.program, names, changed, kind, soc)
        if refused is None and error is not None and len(designed) == 1 and plan is None:
            # HTP can lay out some programs as a whole that it cannot lay out in part.
            error = why_refused(method.before.exported, changed, kind, soc, store)
        if (reason := refused or error) is not None:
            return noise, reason
    return noise, None


def why_refused(
    exported: ExportedMethod, scheme: SchemeConfig, kind: str, soc: SocConfig | None, store: Store
) -> str | None:
    """Return why a method without states cannot be compiled with a scheme; None if its shipping program can.

    Raises RequestError for an override that does not fit the program.
    """
    make_deterministic()
    compiler = backend_of(kind).compiler(scheme, soc)
    edge = edge_program(compiler, program_of(exported, scheme, kind, store), exported.name)
    compiled = try_compile(compiler, edge, exported.name, debug=False)
    return compiled.reason if isinstance(compiled, Unavailable) else None


def program_of(exported: ExportedMethod, scheme: SchemeConfig, kind: str, store: Store) -> ExportedProgram:
    """Return the program of a method without states in a scheme, as `edge_program` takes it."""
    if scheme.precision is not Precision.quantized:
        return load_program(store, exported.program)
    (program,) = quantized_programs([exported], scheme, kind, None, store)
    return program


def designed_methods(
    before: Sequence[LoweredMethod], plan: StepPlan | None, scheme: SchemeConfig, kind: str, store: Store
) -> list[DesignedMethod]:
    """Return every method with a scheme. `before`, `plan`: see `try_scheme`."""
    compiler = backend_of(kind).compiler(scheme, None)
    links = None if plan is None else plan.links
    programs = quantized_programs([method.exported for method in before], scheme, kind, links, store)
    designed: list[DesignedMethod] = []
    for method, program in zip(before, programs, strict=True):
        exported = method.exported
        edge = edge_program(compiler, program, exported.name)
        graph = edge.exported_program(exported.name)
        operators, qparams, reference = operator_table(graph, compiler), input_qparams(graph, compiler), graph_of(graph)
        by_name = {operator.name: operator.subgraph for operator in method.operators}
        subgraphs = {operator.index: by_name[operator.name] for operator in operators if operator.name in by_name}
        outputs = output_operators(graph, operators)
        design = design_of(reference, operators, qparams, exported.inputs, compiler, subgraphs)
        designed.append(
            DesignedMethod(
                before=method,
                program=edge,
                operators=operators,
                reference=reference,
                design=design,
                runs=DesignedRuns(reference, operators, qparams, design),
                samples=read_samples(store, exported.evaluation, input_names(exported), method.choosable),
                eager=read_tensors(store, exported.outputs_eager),
                input_grids=qparams,
                output_grids=[None if index is None else operators[index].quantization for index in outputs],
            )
        )
    return designed


def _noise(designed: Sequence[DesignedMethod], plan: StepPlan | None) -> list[float] | str:
    """Return the noise of every sample, or why there is none."""
    try:
        return list(noise_of_samples(designed) if plan is None else noise_of_steps(designed, plan))
    except EvidenceError as refusal:
        return str(refusal)


def _refusal(
    before: LoweredMethod,
    edge: EdgeProgramManager,
    names: Collection[str],
    scheme: SchemeConfig,
    kind: str,
    soc: SocConfig | None,
) -> tuple[str | None, str | None]:
    """Return why an operator is refused, and the error of the program of these operators; None if there is none.

    `names`: of the operators. Makes `edge` unusable. An operator is refused, too, if the compiler delegated it before
    the change, and would now leave it on the CPU.
    """
    method = before.exported.name
    others = replace(scheme, overrides=[*scheme.overrides, _REST_ON_CPU])
    on_cpu = {operator.name for operator in before.operators if operator.subgraph is None}
    for node in edge.exported_program(method).graph.nodes:
        if node.name not in names:
            select_only(node, len(scheme.overrides))
        elif has_precision(node, scheme.overrides, OverridePrecision.cpu):
            on_cpu.add(node.name)
    refusals, error = try_delegation(backend_of(kind).compiler(others, soc), edge, method)
    refused = (f"{name}: {why}" for name, why in refusals.items() if name in names and name not in on_cpu)
    return next(refused, None), error


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
    chosen = differing | {source for operator in after if operator.index in differing for source in operator.sources}
    chosen |= {operator.index for operator in after if not differing.isdisjoint(operator.sources)}
    for operator in reversed(after):  # an operator is compiled with the constants that it reads
        if operator.index in chosen:
            yield operator.index
            chosen |= {source for source in operator.sources if after[source].constant}


def _changes_form(override: SchemeOverride) -> bool:
    """Return whether the override changes more than the steps and the ends of grids."""
    of_form = (override.quant_dtype, override.precision, override.per_channel, override.block_size, override.as_conv2d)
    return any(setting is not None for setting in of_form)


def _form(operator: Operator) -> tuple[object, ...]:
    qparams = operator.quantization
    return operator.target, operator.shape, None if qparams is None else (qparams.quant_min, qparams.quant_max)
