"""The operator table: what each node of the reference is, where it went, and under which name it will be logged."""

import math
import operator
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Protocol, cast

import torch
from executorch.devtools.backend_debug.delegation_info import DelegationInfo
from executorch.exir import ExecutorchProgramManager, memory
from executorch.exir.debug_handle_utils import UNSET_DEBUG_HANDLE
from executorch.exir.delegate import executorch_call_delegate
from torch.export import ExportedProgram
from torch.fx import Node

from tasks.records import DelegationCount, ExpectedTensor, Operator, Quantization
from tasks.records.keys import METHOD
from tasks.toolchain.export import dtype_name

_LOG_ALIGNMENT_BYTES = 64
# Nodes that become no instruction of their own; a view keeps its debug handle, which is no instruction's id.
NO_KERNEL = (executorch_call_delegate, operator.getitem, memory.alloc, memory.view)


class Annotations(Protocol):
    """What a backend's passes wrote into the nodes of a graph; its compiler reads it."""

    def qparams(self, node: Node) -> Quantization | None: ...
    def axis_order(self, node: Node) -> tuple[int, ...] | None: ...


def operator_table(edge: ExportedProgram, annotations: Annotations | None = None) -> list[Operator]:
    """One row a call of the edge graph, in graph order, then one for each output of a call that no other call takes.

    `subgraph` is still None everywhere.
    """
    constants = _constants(edge)
    calls = [node for node in edge.graph.nodes if node.op == "call_function"]
    rows = [operator_of(index, node, annotations, constant=node in constants) for index, node in enumerate(calls)]
    for row, node in zip(tuple(rows), calls, strict=True):
        taken = {_output_index(user) for user in node.users if user.target is operator.getitem}
        for output_index, tensor in enumerate(_tensors(node) if row.shape is None else ()):
            if output_index not in taken:
                rows.append(_unused(row, len(rows), output_index, tensor))
    return rows


def operator_of(index: int, node: Node, annotations: Annotations | None = None, *, constant: bool = False) -> Operator:
    """A call of a graph, as far as the call itself knows."""
    value = node.meta.get("val")
    tensor = value if isinstance(value, torch.Tensor) else None
    modules = list(node.meta.get("nn_module_stack", {}).values())
    return Operator(
        index=index,
        name=node.name,
        target=getattr(node.target, "__name__", str(node.target)),
        debug_handle=handle_of(node),
        output_index=_output_index(node),
        source_nodes=tuple(_roots(node.meta.get("from_node", []))),
        module_path=str(modules[-1][0]) if modules else "",
        stack_trace=node.meta.get("stack_trace") or "",
        shape=None if tensor is None else tuple(int(size) for size in tensor.shape),
        dtype=None if tensor is None else dtype_name(tensor.dtype),
        quantization=annotations.qparams(node) if annotations else None,
        axis_order=annotations.axis_order(node) if annotations else None,
        subgraph=None,
        constant=constant,
        unused=False,
    )


def input_qparams(edge: ExportedProgram, annotations: Annotations) -> tuple[Quantization | None, ...]:
    """The grid that each input of the program is put on before anything is computed; None leaves it as it is."""
    nodes = {node.name: node for node in edge.graph.nodes if node.op == "placeholder"}
    return tuple(annotations.qparams(nodes[str(name)]) for name in edge.graph_signature.user_inputs)


def subgraphs(lowered: ExportedProgram) -> dict[int, int]:
    """Debug handle to delegated subgraph, counted in graph order, of the edge nodes that went into a delegate."""
    return {
        handle: number
        for number, (_, module) in enumerate(delegate_calls(lowered))
        for node in module.original_module.graph.nodes
        if node.op == "call_function" and (handle := handle_of(node)) is not None
    }


def expected_instructions(program: ExecutorchProgramManager, logged: set[int]) -> Iterator[ExpectedTensor]:
    """Yield what the runtime itself logs: the outputs of each kernel and of each delegate call.

    `logged`: handles that a delegate logs itself; its output of such a handle is not expected a second time.
    Where one handle became several kernels (linear: permute, addmm) the last of them has its value. The emitter has
    replaced each node's debug handle by its instruction id.
    """
    # The annotation of `debug_handle_map` leaves out that it is kept per method.
    handles: Mapping[int, int | list[int]] = cast(Any, program.debug_handle_map)[METHOD]
    lowered = program.exported_program()
    for node, module in delegate_calls(lowered):
        outputs = module.original_module.graph.output_node().args[0]
        for position, output in enumerate(outputs):
            handle = handle_of(output) if isinstance(output, Node) else None
            known = () if handle is None or handle in logged else (handle,)
            yield _logged(node, position, known, _output_index(output))
    kernels: list[tuple[Node, tuple[int, ...]]] = []
    for node in lowered.graph.nodes:
        if node.op != "call_function" or node.target in NO_KERNEL:
            continue
        handle = handles.get(node.meta.get("debug_handle", -1), UNSET_DEBUG_HANDLE)
        kernels.append((node, tuple(each for each in (handle if isinstance(handle, list) else [handle]) if each)))
    last = {handle: node for node, known in kernels for handle in known}
    for node, known in kernels:
        own = tuple(handle for handle in known if last[handle] is node)
        for position in range(len(_tensors(node)) if known else 0):
            yield _logged(node, position, own, position)


def logged_instruction_bytes(lowered: ExportedProgram) -> int:
    """What the runtime's own log of one execution takes at most: arguments and results of each instruction."""
    total = 0
    for node in lowered.graph.nodes:
        if node.op in ("call_function", "output"):
            taken = [tensor for source in node.all_input_nodes for tensor in _tensors(source)]
            total += sum(logged_bytes(tensor) for tensor in (*taken, *_tensors(node)))
    return total


def logged_bytes(tensor: torch.Tensor, code_bytes: int | None = None) -> int:
    """Bytes a tensor takes in the debug buffer at most, with the padding before it."""
    size = tensor.numel() * (code_bytes or tensor.element_size())
    return math.ceil(size / _LOG_ALIGNMENT_BYTES) * _LOG_ALIGNMENT_BYTES + _LOG_ALIGNMENT_BYTES


def delegation_counts(info: DelegationInfo, refusals: Mapping[str, str]) -> tuple[DelegationCount, ...]:
    said: dict[str, set[str]] = defaultdict(set)
    for node_name, reason in refusals.items():
        said[re.sub(r"_\d+$", "", node_name)].add(f"{node_name}: {reason}")
    return tuple(
        DelegationCount(
            operator=kind,
            delegated=count.delegated,
            not_delegated=count.non_delegated,
            refusals=tuple(sorted(said[kind])),
        )
        for kind, count in sorted(info.delegation_by_operator.items())
    )


def handle_of(node: Node) -> int | None:
    """The debug handle that export gave a node; None where it gave none."""
    handle = node.meta.get("debug_handle")
    return None if handle in (None, UNSET_DEBUG_HANDLE) else int(handle)


def _unused(call: Operator, index: int, output_index: int, tensor: torch.Tensor) -> Operator:
    return replace(
        call,
        index=index,
        name=f"{call.name}[{output_index}]",
        output_index=output_index,
        shape=tuple(int(size) for size in tensor.shape),
        dtype=dtype_name(tensor.dtype),
        quantization=None,
        axis_order=None,
        unused=True,
    )


def _constants(edge: ExportedProgram) -> set[Node]:
    """Nodes whose value follows from parameters, buffers and constants alone."""
    inputs = set(edge.graph_signature.user_inputs)
    fixed: set[Node] = set()
    for node in edge.graph.nodes:
        if node.op == "placeholder":
            if node.name not in inputs:
                fixed.add(node)
        elif node.op == "get_attr" or all(source in fixed for source in node.all_input_nodes):
            fixed.add(node)
    return fixed


def _roots(sources: list[Any]) -> list[str]:
    """Names of the exported graph's nodes a node descends from, in order, each once."""
    names: dict[str, None] = {}
    for source in sources:
        for name in _roots(source.from_node) or [source.name]:
            names[name] = None
    return list(names)


def delegate_calls(lowered: ExportedProgram) -> Iterator[tuple[Node, Any]]:
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


def _output_index(node: object) -> int:
    return cast(int, node.args[1]) if isinstance(node, Node) and node.target is operator.getitem else 0


def _tensors(node: Node) -> list[torch.Tensor]:
    value = node.meta.get("val")
    values = value if isinstance(value, tuple | list) else [value]
    return [tensor for tensor in values if isinstance(tensor, torch.Tensor)]
