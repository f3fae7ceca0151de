"""The operator table: what each node of the edge graph is, which subgraph it became a part of, and how it is logged."""

import operator
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import torch
from executorch.devtools.backend_debug.delegation_info import DelegationInfo
from executorch.exir import ExecutorchProgramManager, memory
from executorch.exir.debug_handle_utils import UNSET_DEBUG_HANDLE
from executorch.exir.delegate import executorch_call_delegate
from torch.export import ExportedProgram
from torch.fx import Node

from qnnsweep.tasks.records import DelegationCount, ExpectedTensor, Operator, Quantization
from qnnsweep.tasks.toolchain.backends.compiler import Compiler
from qnnsweep.tasks.toolchain.nodes import handle_of, logged_bytes, module_of, output_index_of
from qnnsweep.tasks.toolchain.overridden import overrides_of, roots
from qnnsweep.tasks.toolchain.tensors import dtype_name

# Calls that do not become kernel calls. A view's debug handle is not replaced by the id of an instruction.
_NO_KERNEL = (executorch_call_delegate, operator.getitem, memory.alloc, memory.view)


def operator_table(edge: ExportedProgram, compiler: Compiler | None = None) -> list[Operator]:
    """Return one row per call of the edge graph, in graph order; then one per tuple element that no getitem call reads.

    `compiler`: reads the qparams and axis orders that its backend's passes wrote. `subgraph` is None in all rows.
    """
    constants = _constants(edge)
    calls = [node for node in edge.graph.nodes if node.op == "call_function"]
    indices = {node: index for index, node in enumerate(calls)}
    rows = [
        replace(
            operator_of(index, node, compiler, constant=node in constants),
            sources=tuple(indices[source] for source in node.all_input_nodes if source in indices),
        )
        for node, index in indices.items()
    ]
    for row, node in zip(tuple(rows), calls, strict=True):
        indices_read = {output_index_of(user) for user in node.users if user.target is operator.getitem}
        for output_index, tensor in enumerate(_tensors(node) if row.shape is None else ()):
            if output_index not in indices_read:
                unused = replace(
                    row,
                    index=len(rows),
                    name=f"{row.name}[{output_index}]",
                    output_index=output_index,
                    shape=tuple(int(size) for size in tensor.shape),
                    dtype=dtype_name(tensor.dtype),
                    quantization=None,
                    axis_order=None,
                    unused=True,
                )
                rows.append(unused)
    return rows


def operator_of(index: int, node: Node, compiler: Compiler | None = None, *, constant: bool = False) -> Operator:
    """Return the row of one call of a graph. In this row, `subgraph` is None and `unused` is False."""
    value = node.meta.get("val")
    tensor = value if isinstance(value, torch.Tensor) else None
    return Operator(
        index=index,
        name=node.name,
        target=getattr(node.target, "__name__", str(node.target)),
        debug_handle=handle_of(node),
        output_index=output_index_of(node),
        source_nodes=tuple(roots(node.meta.get("from_node", ()))),
        module_path=module_of(node),
        stack_trace=node.meta.get("stack_trace") or "",
        shape=None if tensor is None else tuple(int(size) for size in tensor.shape),
        dtype=None if tensor is None else dtype_name(tensor.dtype),
        quantization=compiler.qparams(node) if compiler else None,
        axis_order=compiler.axis_order(node) if compiler else None,
        subgraph=None,
        constant=constant,
        unused=False,
        overrides=overrides_of(node),
    )


def input_qparams(edge: ExportedProgram, compiler: Compiler) -> tuple[Quantization | None, ...]:
    """Return, per input of the program, the qparams with which it is first quantized; None for an unquantized input."""
    nodes = {node.name: node for node in edge.graph.nodes if node.op == "placeholder"}
    return tuple(compiler.qparams(nodes[str(name)]) for name in edge.graph_signature.user_inputs)


def output_operators(edge: ExportedProgram, operators: Sequence[Operator]) -> tuple[int | None, ...]:
    """Return, per output of the program, the operator that computes it; None for an output that is an input."""
    indices = {operator.name: operator.index for operator in operators}
    return tuple(indices.get(str(name)) for name in edge.graph_signature.user_outputs)


def subgraphs(lowered: ExportedProgram) -> dict[int, int]:
    """Map the debug handles of the delegated edge nodes to their subgraph numbers, which follow the graph order."""
    return {
        handle: number
        for number, (_, module) in enumerate(delegate_calls(lowered))
        for node in module.original_module.graph.nodes
        if node.op == "call_function" and (handle := handle_of(node)) is not None
    }


def expected_instructions(program: ExecutorchProgramManager, method: str, logged: set[int]) -> Iterator[ExpectedTensor]:
    """Yield the tensors that the runtime itself logs: the outputs of each kernel and of each delegate call.

    `logged`: the debug handles whose values a delegate logs. If an output of a delegate call has such a handle, the
    output is yielded without the handle. If the node of one handle became several kernels (linear becomes permute and
    addmm), only the last kernel has the handle's value.
    """
    for node, module in delegate_calls(program.exported_program(method)):
        outputs = module.original_module.graph.output_node().args[0]
        for position, output in enumerate(outputs):
            handle = handle_of(output) if isinstance(output, Node) else None
            handles = () if handle is None or handle in logged else (handle,)
            yield _logged(node, position, handles, output_index_of(output))
    kernels = list(kernel_calls(program, method))
    last = {handle: node for node, handles in kernels for handle in handles}
    for node, handles in kernels:
        for position in range(len(_tensors(node)) if handles else 0):
            yield _logged(node, position, tuple(handle for handle in handles if last[handle] is node), position)


def kernel_calls(program: ExecutorchProgramManager, method: str) -> Iterator[tuple[Node, tuple[int, ...]]]:
    """Yield the nodes that became kernel calls, each with the debug handles of the edge nodes that it stands for.

    The emitter has replaced each node's debug handle by the node's instruction id.
    """
    # `debug_handle_map` has one map per method, which its type annotation does not say.
    handles_by_id: Mapping[int, int | list[int]] = cast(Any, program.debug_handle_map)[method]
    for node in program.exported_program(method).graph.nodes:
        if node.op == "call_function" and node.target not in _NO_KERNEL and "debug_handle" in node.meta:
            handles = handles_by_id.get(node.meta["debug_handle"], UNSET_DEBUG_HANDLE)
            yield node, tuple(handle for handle in (handles if isinstance(handles, list) else [handles]) if handle)


def logged_instruction_bytes(lowered: ExportedProgram) -> int:
    """Return an upper bound for the bytes logged per execution: the arguments and results of each instruction."""
    return sum(
        logged_bytes(tensor)
        for node in lowered.graph.nodes
        if node.op in ("call_function", "output")
        for operand in (*node.all_input_nodes, node)
        for tensor in _tensors(operand)
    )


def delegation_counts(
    info: DelegationInfo, lowered: ExportedProgram, refusals: Mapping[str, str]
) -> tuple[DelegationCount, ...]:
    """Return the nodes of each operator type that the delegate runs, and of those that stay on the CPU.

    ExecuTorch also counts the getitem nodes that take the outputs of a delegate call. They compute nothing, so they are
    left out.
    """
    outputs = sum(user.target is operator.getitem for node, _ in delegate_calls(lowered) for user in node.users)
    on_cpu = {kind: count.non_delegated for kind, count in info.delegation_by_operator.items()}
    on_cpu["getitem"] = on_cpu.get("getitem", 0) - outputs
    reasons: dict[str, set[str]] = defaultdict(set)
    for node_name, reason in refusals.items():
        reasons[re.sub(r"_\d+$", "", node_name)].add(f"{node_name}: {reason}")
    return tuple(
        DelegationCount(
            operator=kind, delegated=count.delegated, not_delegated=on_cpu[kind], refusals=tuple(sorted(reasons[kind]))
        )
        for kind, count in sorted(info.delegation_by_operator.items())
        if count.delegated or on_cpu[kind]
    )


def _constants(edge: ExportedProgram) -> set[Node]:
    """Return the nodes whose values depend only on parameters, buffers and constants."""
    inputs = set(edge.graph_signature.user_inputs)
    constants: set[Node] = set()
    for node in edge.graph.nodes:
        is_input = node.op == "placeholder" and node.name in inputs
        if not is_input and all(source in constants for source in node.all_input_nodes):
            constants.add(node)
    return constants


def delegate_calls(lowered: ExportedProgram) -> Iterator[tuple[Node, Any]]:
    """Yield the nodes that call a delegate, each with its lowered module."""
    for node in lowered.graph.nodes:
        if node.op == "call_function" and node.target is executorch_call_delegate:
            yield node, getattr(lowered.graph_module, node.args[0].target)


def _logged(node: Node, position: int, handles: tuple[int, ...], output_index: int) -> ExpectedTensor:
    return ExpectedTensor(
        identifier=f"instruction:{node.meta['debug_handle']}:{position}",
        debug_handles=handles,
        output_index=output_index,
        quantization=None,
        axis_order=None,
    )


def _tensors(node: Node) -> list[torch.Tensor]:
    value = node.meta.get("val")
    values = value if isinstance(value, tuple | list) else [value]
    return [tensor for tensor in values if isinstance(tensor, torch.Tensor)]
