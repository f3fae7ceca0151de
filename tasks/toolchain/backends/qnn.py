"""Qualcomm's HTP backend: its quantizer, its passes, its partitioner, and what its compiler says on the way.

Between torch.export and the `.pte` this follows `to_edge_transform_and_lower_to_qnn` of ExecuTorch 1.5 step by
step, but stops at the edge program, so that the shipping and the debug program come from one. The steps are
ExecuTorch's internals: tests/toolchain compares the result with the official call.
"""

from __future__ import annotations

import contextlib
import copy
import operator
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from executorch.backends.qualcomm._passes.qnn_pass_manager import get_qnn_pass_manager_cls
from executorch.backends.qualcomm.export_utils import make_quantizer
from executorch.backends.qualcomm.partition.qnn_partitioner import QnnOperatorSupport, QnnPartitioner
from executorch.backends.qualcomm.qnn_preprocess import QnnBackend
from executorch.backends.qualcomm.quantizer.quantizer import QuantDtype
from executorch.backends.qualcomm.serialization.qc_schema import (
    QcomChipset,
    QnnExecuTorchBackendType,
)
from executorch.backends.qualcomm.utils.constants import QCOM_TENSOR_NAME
from executorch.backends.qualcomm.utils.qnn_manager_lifecycle import QnnManagerContext
from executorch.backends.qualcomm.utils.utils import (
    generate_htp_compiler_spec,
    generate_qnn_executorch_compiler_spec,
    qnn_edge_config,
)
from executorch.exir import EdgeCompileConfig
from executorch.exir.backend.canonical_partitioners.pattern_op_partitioner import (
    generate_partitions_from_list_of_nodes,
)
from executorch.exir.backend.compile_spec_schema import CompileSpec
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node
from torchao.quantization.pt2e import observer as observers
from torchao.quantization.pt2e.quantizer import Quantizer

from conf.schema import Precision, SchemeConfig, SocConfig
from tasks.errors import RequestError
from tasks.records import DelegatedNode, ExpectedTensor
from tasks.toolchain.backends.protocol import Delegation
from tasks.toolchain.backends.qnn_log import compile_facts, errors
from tasks.toolchain.reference.operators import axis_order_of, handle_of, logged_bytes, quantization_of
from tasks.toolchain.workers.worker import flush_native_output

_LAST_WORDS = 5
_ANY = QcomChipset.SM8750
"""ExecuTorch wants one named even where it makes no difference."""


class Qnn:
    has_debug_program = True

    def __init__(self, scheme: SchemeConfig, soc: SocConfig | None, profile_level: int = 0) -> None:
        """Without a `soc` it quantizes and transforms, which is the same for all of them, and compiles nothing."""
        self._scheme = scheme
        self._soc = soc
        self._profile_level = profile_level
        self._chipset = _ANY if soc is None else QcomChipset[soc.name]
        self._passes = get_qnn_pass_manager_cls(QnnExecuTorchBackendType.kHtpBackend)

    def quantizer(self, scheme: SchemeConfig, module: GraphModule) -> Quantizer:
        observer = getattr(observers, scheme.observer, None)
        if observer is None:
            offered = sorted(name for name in dir(observers) if name.endswith("Observer"))
            raise RequestError(f"scheme.observer={scheme.observer}: no such observer in torchao; one of {offered}")
        quantizer = make_quantizer(
            quant_dtype=QuantDtype[f"use_{scheme.quant_dtype}"],
            per_channel_conv=scheme.per_channel_conv,
            per_channel_linear=scheme.per_channel_linear,
            per_channel_embedding=scheme.per_channel_embedding,
            act_observer=observer,
            act_symmetric=scheme.activation_symmetric,
        )
        # It asks for an SoC only to refuse what that one cannot compute; the compiler does so too, SoC by SoC.
        quantizer.strict = False
        if scheme.block_size:
            quantizer.set_block_size_map(_block_sizes(module, scheme))
            # A configuration holds one block size: operator types that share one would all get the last.
            own = quantizer.default_quant_config
            quantizer.set_submodule_qconfig_list([(_is_kind(kind), copy.deepcopy(own)) for kind in scheme.block_size])
        return quantizer

    def before_edge(self, program: ExportedProgram) -> tuple[ExportedProgram, Sequence[Any] | None]:
        program = self._passes().transform_for_export_pipeline(program)
        return program, self._passes().get_to_edge_transform_passes(program)

    def compile_config(self) -> EdgeCompileConfig:
        return qnn_edge_config()

    def partitioners(self, *, debug: bool, noted: Delegation) -> list[Any]:
        return [_NotingPartitioner(self._specs(debug=debug), noted)]

    def profiling(self, level: int) -> Qnn:
        return Qnn(self._scheme, self._soc, level)

    @contextlib.contextmanager
    def session(self, *, debug: bool, noted: Delegation) -> Iterator[None]:
        assert self._soc is not None, "a QNN program is compiled for one SoC"
        before = _log_length()
        try:
            with QnnManagerContext({"forward": self._specs(debug=debug)}), _noting_tensors(noted):
                yield
        except AssertionError as error:
            # ExecuTorch asserts where QNN fails; why it failed is in the compiler's own words only.
            raise RuntimeError("\n".join([str(error), *errors(_log_since(before))[-_LAST_WORDS:]])) from error
        noted.compile_facts.extend(compile_facts(_log_since(before)))

    def _specs(self, *, debug: bool) -> list[CompileSpec]:
        float_activations = self._scheme.precision is Precision.float16 or self._scheme.quant_dtype == "fp16a8w"
        return generate_qnn_executorch_compiler_spec(
            soc_model=self._chipset,
            backend_options=generate_htp_compiler_spec(use_fp16=float_activations),
            dump_intermediate_outputs=debug,
            profile_level=self._profile_level,
        )


class _NotingPartitioner(QnnPartitioner):
    """QnnPartitioner that keeps what the compiler said when it refused a node."""

    def __init__(self, specs: list[CompileSpec], noted: Delegation) -> None:
        super().__init__(specs)
        self._noted = noted

    def __deepcopy__(self, memo: dict[int, Any]) -> _NotingPartitioner:
        return self

    def generate_partitions(self, edge_program: ExportedProgram) -> list[Any]:
        self.op_support_checker = _NotingSupport(edge_program, self.compiler_specs_snapshot, self._noted)
        return generate_partitions_from_list_of_nodes(edge_program.graph_module, op_support=self.op_support_checker)


class _NotingSupport(QnnOperatorSupport):
    def __init__(self, edge_program: ExportedProgram, specs: list[CompileSpec], noted: Delegation) -> None:
        super().__init__(edge_program, specs, set(), set())
        self._noted = noted

    def is_node_supported(self, _: Any, node: Node) -> bool:
        before = _log_length()
        supported = super().is_node_supported(_, node)
        if not supported and node.op == "call_function":
            self._noted.refusals[node.name] = "; ".join(errors(_log_since(before))) or "refused without a word"
        return supported


def _log_length() -> int:
    flush_native_output()
    return os.fstat(1).st_size


def _log_since(start: int) -> str:
    """What was logged since `start`: standard output is the worker's log file."""
    flush_native_output()
    with Path("/proc/self/fd/1").open("rb") as log:
        log.seek(start)
        return log.read().decode(errors="replace")


@contextlib.contextmanager
def _noting_tensors(noted: Delegation) -> Iterator[None]:
    """While open, the graph that QNN really builds tells which tensor name stands for which debug handle."""
    official = QnnBackend._build_op_wrappers

    def build_and_note(edge_program: ExportedProgram, *arguments: Any) -> Any:
        _take_schematic(noted)  # of the subgraph before: the next one would overwrite it
        wrappers = official(edge_program, *arguments)
        nodes = edge_program.graph_module.graph.nodes
        for node in nodes:
            _note_node(node, noted)
        noted.built.append([_built(node) for node in nodes if node.op == "call_function"])
        return wrappers

    QnnBackend._build_op_wrappers = staticmethod(build_and_note)  # type: ignore[assignment]
    try:
        yield
        _take_schematic(noted)
    finally:
        QnnBackend._build_op_wrappers = official


def _take_schematic(noted: Delegation) -> None:
    """Keep what profile level 3 makes the compiler leave in the working folder."""
    left = Path("forward_schematic.bin")
    if left.exists():
        noted.schematics.append(left.read_bytes())
        left.unlink()


def _built(node: Node) -> DelegatedNode:
    return DelegatedNode(
        subgraph=None,
        name=node.name,
        debug_handle=handle_of(node),
        users=tuple(user.name for user in node.users),
    )


def _note_node(node: Node, noted: Delegation) -> None:
    handle = handle_of(node)
    for output_index, identifier in node.meta.get(QCOM_TENSOR_NAME, {}).items():
        value = node.meta.get("val")
        tensor = value[output_index] if isinstance(value, tuple | list) else value
        if node.op != "call_function" or not isinstance(tensor, torch.Tensor):
            continue
        speaker = _speaker(node, output_index)
        noted.dumped.append(
            ExpectedTensor(
                identifier=identifier,
                debug_handles=() if handle is None else (handle,),
                output_index=output_index,
                quantization=quantization_of(speaker),
                axis_order=axis_order_of(speaker),
            )
        )
        # A quantized tensor is logged as codes, a boolean or float one as at most four bytes an element.
        noted.logged_bytes += logged_bytes(tensor, max(tensor.element_size(), 4))


def _speaker(node: Node, output_index: int) -> Node:
    """Who knows the grid of one output: the node, or where it gives several and has none the getitem that takes it."""
    if "quant_attrs" in node.meta:
        return node
    taken = (user for user in node.users if user.target is operator.getitem and user.args[1] == output_index)
    return next((user for user in taken if "quant_attrs" in user.meta), node)


def _block_sizes(module: GraphModule, scheme: SchemeConfig) -> dict[str, tuple[int, ...]]:
    """Node name to block shape, for the nodes whose input channels the block divides."""
    sizes: dict[str, tuple[int, ...]] = {}
    for node in module.graph.nodes:
        block = scheme.block_size.get(_kind(node))
        if node.op != "call_function" or block is None:
            continue
        weight = node.args[1].meta["val"]
        if len(block) == weight.dim() and weight.shape[1] % block[1] == 0:
            sizes[node.name] = tuple(block)
    return sizes


def _is_kind(kind: str) -> Callable[[Node], bool]:
    return lambda node: _kind(node) == kind


def _kind(node: Node) -> str:
    """An operator's name without its overload: `conv2d`, `linear`."""
    return getattr(node.target, "__name__", "").split(".")[0]
