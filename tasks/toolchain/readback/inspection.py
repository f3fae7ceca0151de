"""The contents of a program that anyone has made, read from its bytes alone. Nothing that it contains is executed."""

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from qnnsweep.tasks.errors import EvidenceError
from qnnsweep.tasks.records import (
    InspectedData,
    InspectedDelegate,
    InspectedMethod,
    InspectedOperator,
    InspectedOption,
    InspectedProgram,
    InspectedTensor,
)
from qnnsweep.tasks.toolchain.backends.delegate import CompiledDelegate
from qnnsweep.tasks.toolchain.backends.qnn.isolated import Graphs, graphs_of
from qnnsweep.tasks.toolchain.backends.qnn.options import options_of
from qnnsweep.tasks.toolchain.readback.pte import Pte, PteMethod, PteTensor, read_pte
from qnnsweep.tasks.toolchain.readback.xnnpack import names, read_xnnpack

_QNN, _XNNPACK = "QnnBackend", "XnnpackBackend"
_SOC, _ARCH, _VTCM = "soc_info.soc_model", "soc_info.htp_info.htp_arch", "soc_info.htp_info.vtcm_size_in_mb"


def inspect_program(data: bytes) -> InspectedProgram:
    """Return the contents of a program. QNN's context binaries are read in another process.

    Raises EvidenceError if `data` is no readable program. A subgraph whose bytes are unreadable says why in its row.
    """
    program = read_pte(data)
    inspection = _Inspection(program)
    inspection.read()
    return InspectedProgram(
        bytes=len(data),
        methods=tuple(map(_method, program.methods)),
        delegates=tuple(inspection.delegates),
        options=tuple(inspection.options),
        tensors=tuple(inspection.tensors),
        operators=tuple(inspection.operators),
        named_data=tuple(
            InspectedData(key=key, bytes=len(data), sha256=_digest(data)) for key, data in program.named_data.items()
        ),
    )


class _Inspection:
    """The rows of a program."""

    def __init__(self, program: Pte) -> None:
        self._program = program
        self.delegates: list[InspectedDelegate] = []
        self.options: list[InspectedOption] = []
        self.tensors: list[InspectedTensor] = []
        self.operators: list[InspectedOperator] = []

    def read(self) -> None:
        binaries = dict.fromkeys(
            delegate.processed
            for method in self._program.methods
            for delegate in method.delegates
            if delegate.id == _QNN
        )
        graphs = dict(zip(binaries, graphs_of([*binaries]), strict=True)) if binaries else {}
        owners: dict[bytes, str] = {}
        for method in self._program.methods:
            self.tensors += _own_tensors(method)
            self.operators += _own_operators(method)
            calls = Counter(instruction.delegate for instruction in method.instructions)
            for subgraph, delegate in enumerate(method.delegates):
                owner = owners.setdefault(delegate.processed, method.name)
                nodes, unread = None, None
                try:
                    nodes = self._subgraph(method.name, subgraph, delegate, graphs)
                except EvidenceError as error:
                    unread = str(error)
                self.delegates.append(
                    InspectedDelegate(
                        method=method.name,
                        subgraph=subgraph,
                        backend=delegate.id,
                        nodes=nodes,
                        bytes=len(delegate.processed),
                        sha256=_digest(delegate.processed),
                        shared_with=None if owner == method.name else owner,
                        calls=calls[subgraph],
                        unread=unread,
                    )
                )

    def _subgraph(
        self, method: str, subgraph: int, delegate: CompiledDelegate, graphs: Mapping[bytes, Graphs | str]
    ) -> int | None:
        """Add the rows of a delegated subgraph. Return the number of its nodes, if it is known."""
        if delegate.id == _XNNPACK:
            return self._xnnpack(method, subgraph, delegate)
        if delegate.id == _QNN:
            asked = dict(_flat(options_of(delegate)))
            answer = graphs[delegate.processed]
            if isinstance(answer, str):
                self._add_options(method, subgraph, asked, {})
                raise EvidenceError(answer)
            self._qnn(method, subgraph, asked, answer)
        return None

    def _qnn(self, method: str, subgraph: int, asked: dict[str, str], graphs: Graphs) -> None:
        name = method if method in graphs else min(graphs, key=lambda graph: not graph.startswith(method))
        facts = graphs[name]
        got = {
            _SOC: facts["soc"],
            _ARCH: f"V{facts['arch']}",
            _VTCM: str(facts["vtcm_mib"]),
            "QNN build": facts["build"],
            "optimization level": str(facts["optimization_level"]),
            "element types of the kernels": ", ".join(facts["kernel_elements"]) or "none found",
            "graphs of the context": ", ".join(graphs),
        }
        self._add_options(method, subgraph, asked, got)
        for tensor in facts["tensors"]:
            is_quantized = tensor["scale"] is not None
            self.tensors.append(
                InspectedTensor(
                    method=method,
                    subgraph=subgraph,
                    role=tensor["role"],
                    name=tensor["name"],
                    dtype=tensor["dtype"],
                    shape=tuple(tensor["shape"]),
                    scale=(tensor["scale"],) if is_quantized else None,
                    zero_point=(tensor["zero_point"],) if is_quantized else None,
                    bytes=None,
                    sha256=None,
                )
            )

    def _add_options(self, method: str, subgraph: int, asked: Mapping[str, str], got: Mapping[str, str]) -> None:
        for option in dict.fromkeys((*asked, *got)):
            self.options.append(
                InspectedOption(
                    method=method, subgraph=subgraph, option=option, asked=asked.get(option), got=got.get(option)
                )
            )

    def _xnnpack(self, method: str, subgraph: int, delegate: CompiledDelegate) -> int:
        graph = read_xnnpack(delegate.processed, self._program.named_data)
        named = names(graph)
        ends = dict.fromkeys(graph.inputs, "input") | dict.fromkeys(graph.outputs, "output")
        for tensor in graph.tensors:
            role = "constant" if tensor.data is not None else ends.get(tensor.number, "value")
            self.tensors.append(
                InspectedTensor(
                    method=method,
                    subgraph=subgraph,
                    role=role,
                    name=named.get(tensor.number, f"tensor {tensor.number}"),
                    dtype=tensor.dtype,
                    shape=tensor.shape,
                    scale=tensor.scale,
                    zero_point=tensor.zero_point,
                    bytes=None if tensor.data is None else len(tensor.data),
                    sha256=None if tensor.data is None else _digest(tensor.data),
                )
            )
        for number, node in enumerate(graph.nodes):
            arguments = " ".join(f"{name}={value}" for name, value in node.arguments.items())
            self.operators.append(
                InspectedOperator(
                    method=method, subgraph=subgraph, number=number, operator=node.operator, arguments=arguments
                )
            )
        return len(graph.nodes)


def _method(method: PteMethod) -> InspectedMethod:
    constants = [method.values[position] for position in method.outputs]
    is_constant = not method.instructions and bool(constants)
    values = [
        f"{value.dtype}{list(value.shape)}" if isinstance(value, PteTensor) else repr(value) for value in constants
    ]
    return InspectedMethod(
        method=method.name,
        kernels=sum(instruction.is_kernel for instruction in method.instructions),
        delegates=len(method.delegates),
        buffer_bytes=method.buffer_bytes,
        returns=", ".join(values) if is_constant else None,
    )


def _own_tensors(method: PteMethod) -> Iterator[InspectedTensor]:
    """Yield the inputs and outputs of a method, then its constants."""
    for role, positions in (("input", method.inputs), ("output", method.outputs)):
        for number, tensor in enumerate(method.tensors(positions)):
            yield _row(method, role, tensor.name or f"{role} {number}", tensor)
    readers: dict[int, str] = {}
    for number, instruction in enumerate(method.instructions):
        for place, position in enumerate(instruction.arguments):
            readers.setdefault(position, f"{instruction.target} {number}, argument {place}")
    for position, tensor in enumerate(method.values):
        if isinstance(tensor, PteTensor) and tensor.is_constant:
            yield _row(method, "constant", tensor.name or readers.get(position, f"value {position}"), tensor)


def _row(method: PteMethod, role: str, name: str, tensor: PteTensor) -> InspectedTensor:
    return InspectedTensor(
        method=method.name,
        subgraph=None,
        role=role,
        name=name,
        dtype=tensor.dtype,
        shape=tensor.shape,
        scale=None,
        zero_point=None,
        bytes=None if tensor.data is None else len(tensor.data),
        sha256=None if tensor.data is None else _digest(tensor.data),
    )


def _own_operators(method: PteMethod) -> Iterator[InspectedOperator]:
    for number, instruction in enumerate(method.instructions):
        values = [method.values[position] for position in instruction.arguments] if instruction.is_kernel else []
        scalars = [repr(value) for value in values if not _has_tensors(value)]
        yield InspectedOperator(
            method=method.name, subgraph=None, number=number, operator=instruction.target, arguments=" ".join(scalars)
        )


def _has_tensors(value: Any) -> bool:
    return isinstance(value, PteTensor) or (isinstance(value, tuple) and any(map(_has_tensors, value)))


def _flat(options: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield every option as a path and a text. What was not written is left out."""
    for name, value in options.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        elif value not in (None, "", ()):
            yield f"{prefix}{name}", str(value)


def _digest(data: bytes | memoryview) -> str:
    return hashlib.sha256(data).hexdigest()
