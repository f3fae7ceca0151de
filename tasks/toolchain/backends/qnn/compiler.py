"""The HTP's compiler: its quantizer, its passes, its partitioner, and the messages that it logs.

From torch.export to the `.pte`, qnnsweep takes the same steps as ExecuTorch 1.5's `to_edge_transform_and_lower_to_qnn`,
but pauses at the edge program: the shipping program and the debug program are compiled from the same edge program.
The steps are internals of ExecuTorch, so tests/toolchain compares the result with the official call.
"""

import contextlib
import operator
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from executorch.backends.qualcomm.builders.node_visitor import NodeVisitor
from executorch.backends.qualcomm.builders.utils import is_graph_output
from executorch.backends.qualcomm.partition.qnn_partitioner import QnnOperatorSupport, QnnPartitioner
from executorch.backends.qualcomm.qnn_preprocess import QnnBackend
from executorch.backends.qualcomm.serialization.qc_schema import QcomChipset
from executorch.backends.qualcomm.utils.constants import QCOM_TENSOR_NAME
from executorch.backends.qualcomm.utils.qnn_manager_lifecycle import QnnManagerContext
from executorch.backends.qualcomm.utils.utils import (
    generate_htp_compiler_spec,
    generate_qnn_executorch_compiler_spec,
    qnn_edge_config,
)
from executorch.exir import EdgeCompileConfig
from executorch.exir.backend.compile_spec_schema import CompileSpec
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node
from torchao.quantization.pt2e.quantizer import Quantizer

from qnnsweep.conf.schema import SocConfig
from qnnsweep.conf.schemes import OverridePrecision, SchemeConfig, SchemeOverride
from qnnsweep.tasks.errors import raise_shortage
from qnnsweep.tasks.records import DelegatedNode, ExpectedTensor, Quantization, WrittenGrid
from qnnsweep.tasks.records.keys import METHOD
from qnnsweep.tasks.toolchain.backends.compiler import Compiler, DelegationLog
from qnnsweep.tasks.toolchain.backends.kernel_call import KernelCall
from qnnsweep.tasks.toolchain.backends.qnn.compiler_log import compile_facts, errors, every_error
from qnnsweep.tasks.toolchain.backends.qnn.elements import has_float_activations, needs_floats
from qnnsweep.tasks.toolchain.backends.qnn.failures import refusal
from qnnsweep.tasks.toolchain.backends.qnn.floats import partitions, without_floats_grids, without_grids
from qnnsweep.tasks.toolchain.backends.qnn.linears import only_selected
from qnnsweep.tasks.toolchain.backends.qnn.pools import with_strides
from qnnsweep.tasks.toolchain.backends.qnn.quantizer import LARGEST_WEIGHT, quantizer_of
from qnnsweep.tasks.toolchain.backends.qnn.shared_constants import separate, shared_constants
from qnnsweep.tasks.toolchain.backends.qnn.switched_off import pass_manager, skipped_operators
from qnnsweep.tasks.toolchain.backends.qnn.written import written_grid
from qnnsweep.tasks.toolchain.nodes import handle_of, logged_bytes, output_index_of, target_name
from qnnsweep.tasks.toolchain.overridden import has_precision
from qnnsweep.tasks.toolchain.requantized import Requantization
from qnnsweep.tasks.toolchain.tensors import dtype_name
from qnnsweep.tasks.toolchain.workers.output import output_length, output_since

_FAILURES = (AttributeError, IndexError, KeyError, NotImplementedError, TypeError, ValueError)
"""What a builder of ExecuTorch raises for an operator that it does not expect. The operator then stays on the CPU."""
_CPU, _FLOAT16 = OverridePrecision.cpu, OverridePrecision.float16
_ANY = QcomChipset.SM8750
"""The SoC that is passed where ExecuTorch requires an SoC but the result does not depend on it."""
# Measured: shares of equal codes with and without the rounding between the two (docs/numerics.md).
_MERGING = frozenset({"aten.convolution.default", "aten.linear.default"})
_MERGED_READERS = frozenset({"aten.hardswish.default", "aten.leaky_relu.default", "aten.prelu.default"})


class QnnCompiler(Compiler):
    has_debug_program = True
    shares_biases = True
    largest_weight = LARGEST_WEIGHT

    def __init__(self, scheme: SchemeConfig, soc: SocConfig | None, profile_level: int = 0) -> None:
        super().__init__(scheme, soc)
        self._profile_level = profile_level
        self._chipset = _ANY if soc is None else QcomChipset[soc.name]
        self._passes = pass_manager()

    def quantizer(self, scheme: SchemeConfig, module: GraphModule) -> Quantizer:
        return quantizer_of(scheme, module)

    def before_edge(self, program: ExportedProgram) -> tuple[ExportedProgram, Sequence[Any] | None]:
        program = self._passes().transform_for_export_pipeline(with_strides(program))
        converts = any(override.as_conv2d for override in self._scheme.overrides)
        passes = self._passes().get_to_edge_transform_passes(
            program, skip_node_op_set=skipped_operators(), convert_linear_to_conv2d=converts
        )
        return program, [only_selected(entry, self._scheme.overrides) for entry in passes]

    def compile_config(self) -> EdgeCompileConfig:
        return qnn_edge_config()

    def partitioners(self, *, debug: bool, log: DelegationLog) -> list[Any]:
        return [_RecordingPartitioner(self._specs(debug=debug), self._scheme.overrides, log)]

    def prepare(self, program: ExportedProgram, *, debug: bool, log: DelegationLog) -> None:
        if constants := shared_constants(program):
            partitioner = _RecordingPartitioner(self._specs(debug=debug), self._scheme.overrides, log)
            separate(program, constants, partitioner.generate_partitions(program))

    def in_float16(self, overrides: Collection[int] = ()) -> bool:
        asked = (self._scheme.overrides[index].precision for index in overrides)
        return has_float_activations(self._scheme) or _FLOAT16 in asked

    def merges(self, target: str, arguments: Sequence[Any], reader: str) -> bool:
        if reader not in _MERGED_READERS or target not in _MERGING:
            return False
        if reader == "aten.hardswish.default" and target == "aten.convolution.default":
            stride, groups = arguments[3], arguments[8]
            return groups == 1 or max(stride) == 1  # a depthwise convolution with a stride is not merged
        return True

    def written_grid(self, call: KernelCall) -> WrittenGrid | None:
        return written_grid(call, self._scheme)

    def profiling(self, level: int) -> "QnnCompiler":
        return QnnCompiler(self._scheme, self._soc, level)

    @contextlib.contextmanager
    def session(self, *, debug: bool, log: DelegationLog) -> Iterator[None]:
        assert self._soc is not None, "a QNN program is compiled for one SoC"
        start = output_length()
        try:
            with QnnManagerContext({METHOD: self._specs(debug=debug)}), _recording_tensors(self._scheme.overrides, log):
                yield
        except AssertionError as error:
            # Where QNN fails, ExecuTorch raises AssertionError. Only the compiler's own messages say why QNN failed.
            messages = every_error(output_since(max(start, log.compiling_since)))
            raise refusal(str(error), messages, log.compiling, self._soc) from error
        log.compile_facts.extend(compile_facts(output_since(start)))

    def qparams(self, node: Node) -> Quantization | None:
        return qparams_of(node)

    def axis_order(self, node: Node) -> tuple[int, ...] | None:
        return axis_order_of(node)

    def _specs(self, *, debug: bool) -> list[CompileSpec]:
        return generate_qnn_executorch_compiler_spec(
            soc_model=self._chipset,
            backend_options=generate_htp_compiler_spec(use_fp16=needs_floats(self._scheme)),
            dump_intermediate_outputs=debug,
            profile_level=self._profile_level,
        )


def qparams_of(node: Node) -> Quantization | None:
    """Return the quantization that QNN's passes wrote into a node's metadata."""
    attributes = node.meta.get("quant_attrs")
    if attributes is None:
        return None
    per_channel = "scales" in attributes
    scale = attributes["scales" if per_channel else "scale"]
    zero_point = attributes["zero_points" if per_channel else "zero_point"]
    scales = torch.as_tensor(scale, dtype=torch.float64).reshape(-1).tolist()
    zero_points = [0] * len(scales) if zero_point is None else torch.as_tensor(zero_point).reshape(-1).tolist()
    return Quantization(
        scale=tuple(scales),
        zero_point=tuple(int(point) for point in zero_points),
        axis=int(attributes["axis"]) if per_channel else None,
        quant_min=int(attributes["quant_min"]),
        quant_max=int(attributes["quant_max"]),
        dtype=dtype_name(attributes["dtype"]),
    )


def axis_order_of(node: Node) -> tuple[int, ...] | None:
    order = node.meta.get("axis_order")
    return None if order is None else tuple(int(axis) for axis in order)


class _RecordingPartitioner(QnnPartitioner):
    """A QnnPartitioner that records the compiler's messages about every node that the compiler refuses."""

    def __init__(self, specs: list[CompileSpec], overrides: Sequence[SchemeOverride], log: DelegationLog) -> None:
        super().__init__(specs)
        self._overrides = overrides
        self._log = log

    def __deepcopy__(self, memo: dict[int, Any]) -> "_RecordingPartitioner":
        return self

    def generate_partitions(self, edge_program: ExportedProgram) -> list[Any]:
        self.op_support_checker = _RecordingSupport(
            edge_program, self.compiler_specs_snapshot, self._overrides, self._log
        )
        return partitions(
            edge_program.graph_module,
            self.op_support_checker,
            lambda node: has_precision(node, self._overrides, _FLOAT16),
        )


class _RecordingSupport(QnnOperatorSupport):
    def __init__(
        self,
        edge_program: ExportedProgram,
        specs: list[CompileSpec],
        overrides: Sequence[SchemeOverride],
        log: DelegationLog,
    ) -> None:
        on_cpu = (node.name for node in edge_program.graph.nodes if has_precision(node, overrides, _CPU))
        super().__init__(edge_program, specs, set(on_cpu), skipped_operators())
        self._overrides = overrides
        self._log = log

    def is_node_supported(self, _: Any, node: Node) -> bool:
        start = output_length()
        is_float = has_precision(node, self._overrides, _FLOAT16)
        unbuilt: list[str] = []
        with without_grids(node) if is_float else contextlib.nullcontext():
            # ExecuTorch delegates every node that dequantizes a constant, even if only the CPU reads it.
            try:
                supported = node.name not in self.skip_node_id_set and super().is_node_supported(_, node)
            except _FAILURES as error:
                raise_shortage(error)
                self.nodes_to_wrappers.clear()
                supported = False
                unbuilt.append(f"ExecuTorch cannot build it ({type(error).__name__}: {error})")
        if not supported and node.op == "call_function":
            messages = "; ".join([*unbuilt, *errors(output_since(start))])
            skipped = "the scheme's overrides keep it on the CPU" if node.name in self.skip_node_id_set else ""
            if target_name(node.target) in self.skip_node_op_set:
                skipped = "the toolchain keeps it on the CPU"
            self._log.refusals[node.name] = messages or skipped or "refused without a message"
        return supported


@contextlib.contextmanager
def _recording_tensors(overrides: Sequence[SchemeOverride], log: DelegationLog) -> Iterator[None]:
    """Record, for each graph that QNN really builds, its nodes, its schematic, and the debug handles by tensor name."""
    original, original_type = QnnBackend._build_op_wrappers, NodeVisitor.get_tensor_type

    def build_and_record(edge_program: ExportedProgram, *arguments: Any) -> Any:
        _take_schematic(log)  # takes the previous subgraph's schematic before the next one overwrites it
        without_floats_grids(edge_program.graph, lambda node: has_precision(node, overrides, _FLOAT16))
        log.compiling_since = output_length()
        log.compiling = [node for node in edge_program.graph.nodes if node.op == "call_function"]
        wrappers = original(edge_program, *arguments)
        nodes = edge_program.graph_module.graph.nodes
        for node in nodes:
            if not _is_logged(node, log):
                node.meta.pop(QCOM_TENSOR_NAME, None)
        recorded = {tensor.identifier for tensor in log.dumped}
        for node in nodes:
            _record_node(node, log)
            if not recorded.isdisjoint(node.meta.get(QCOM_TENSOR_NAME, {}).values()):
                # Names are unique in a subgraph, but not in the program, and ExecuTorch maps no name twice.
                del node.meta[QCOM_TENSOR_NAME]
        log.built.append([_built(node) for node in nodes if node.op == "call_function"])
        return wrappers

    def get_tensor_type(self: NodeVisitor, node: Node, tensor_type: Any, wrapper_idx: int | None = None) -> Any:
        dumps = self.enable_tensor_dump
        self.enable_tensor_dump = dumps and _is_logged(node, log)
        try:
            return original_type(self, node, tensor_type, wrapper_idx)
        finally:
            self.enable_tensor_dump = dumps

    QnnBackend._build_op_wrappers = staticmethod(build_and_record)  # type: ignore[assignment]
    NodeVisitor.get_tensor_type = get_tensor_type
    try:
        yield
        _take_schematic(log)
    finally:
        QnnBackend._build_op_wrappers = original
        NodeVisitor.get_tensor_type = original_type


def _is_logged(node: Node, log: DelegationLog) -> bool:
    """Return whether a debug program logs a node's value. An inserted node belongs to the value that it converts.

    A constant that ExecuTorch makes up, such as the bias of an RMS norm, has neither a handle nor a source.
    """
    if log.logged is None or is_graph_output(node):
        return True
    while node.op == "call_function" and handle_of(node) is None:
        if not node.all_input_nodes:
            return False
        node = node.all_input_nodes[0]
    return (handle_of(node) if node.op == "call_function" else None) in log.logged


def _take_schematic(log: DelegationLog) -> None:
    """Move the schematic, which the compiler writes to the working folder at profile level 3, into the log."""
    for file in Path().glob("*_schematic.bin"):
        log.schematics.append(file.read_bytes())
        file.unlink()


def _built(node: Node) -> DelegatedNode:
    users = tuple(user.name for user in node.users)
    return DelegatedNode(subgraph=None, name=node.name, debug_handle=handle_of(node), users=users)


def _record_node(node: Node, log: DelegationLog) -> None:
    handle = handle_of(node)
    for output_index, identifier in node.meta.get(QCOM_TENSOR_NAME, {}).items():
        value = node.meta.get("val")
        tensor = value[output_index] if isinstance(value, tuple | list) else value
        if node.op != "call_function" or not isinstance(tensor, torch.Tensor):
            continue
        quantized = _quantized_node(node, output_index)
        expected = ExpectedTensor(
            identifier=identifier,
            debug_handles=() if handle is None else (handle,),
            output_index=output_index,
            quantization=qparams_of(quantized),
            axis_order=axis_order_of(quantized),
        )
        log.dumped.append(expected)
        if _requantizes(node):
            log.requantized.append(_requantization(node, tensor, expected))
        # A quantized tensor is logged as integers. Boolean and float tensors are logged with at most four bytes per
        # element.
        log.logged_bytes += logged_bytes(tensor, max(tensor.element_size(), 4))


def _requantizes(node: Node) -> bool:
    """Return whether QNN's pass InsertRequantize inserted this node. The nodes of the edge graph have debug handles."""
    inserted = handle_of(node) is None and "quant_attrs" in node.meta
    return inserted and target_name(node.target) == "aten._to_copy.default"


def _requantization(node: Node, tensor: torch.Tensor, expected: ExpectedTensor) -> Requantization:
    source = node.all_input_nodes[0]
    while source.op == "call_function" and handle_of(source) is None:  # inserted for the layout or a grid
        source = source.all_input_nodes[0]
    return Requantization(
        expected=expected,
        target=target_name(node.target),
        shape=tuple(int(size) for size in tensor.shape),
        dtype=dtype_name(tensor.dtype),
        source=source.name,
        source_handle=handle_of(source) if source.op == "call_function" else None,
        source_output=output_index_of(source),
        reader_handles=tuple(dict.fromkeys(_reader_handles(node))),
    )


def _reader_handles(node: Node) -> Iterator[int]:
    """Yield the debug handles of the nodes that read a node's value, directly or through inserted nodes."""
    for user in node.users:
        handle = handle_of(user)
        if handle is not None:
            yield handle
        elif user.op == "call_function":
            yield from _reader_handles(user)


def _quantized_node(node: Node, output_index: int) -> Node:
    """Return the node that has the qparams of one output: `node` itself, or the getitem node of this output."""
    if "quant_attrs" in node.meta:
        return node
    users = (user for user in node.users if user.target is operator.getitem and user.args[1] == output_index)
    return next((user for user in users if "quant_attrs" in user.meta), node)
