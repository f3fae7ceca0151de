"""The parts of a compiled program that ONNX Runtime or a job of AI Hub executes, made from the bytes of the program.

A part is the context binary of a delegate, and an ONNX model with one node that refers to it. The description of a
program is a JSON object, which `program.py` reads on a device:

- `methods`: per method, its `name`, its `inputs` and `outputs` (positions of values), its `values` (per position, the
  `dtype`, the `shape`, and for a constant the `file` with its bytes) and its `calls` in their order.
- A call of a delegate has its `instruction`, the `model`, the `context` binary, the `graph` in it, which has `graphs`
  graphs, the SoC (`soc_model`, `arch`), and its `inputs` and `outputs`: all tensors of the compiled graph, with `name`,
  `dtype`, `shape`, and the position of the `value` or null.
- A call of a kernel has its `instruction`, the `kernel`, and its `arguments`: `{"value": position}` for a tensor,
  `{"list": [...]}` for a list, `{"scalar": ...}` for anything else.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from qnnsweep.tasks.errors import EvidenceError
from qnnsweep.tasks.records import Blob, DelegateFacts, GraphTensor, Parts, ProgramFacts
from qnnsweep.tasks.storage.store import Store
from qnnsweep.tasks.toolchain.backends.qnn.context import context_binary
from qnnsweep.tasks.toolchain.backends.qnn.options import LAYOUT
from qnnsweep.tasks.toolchain.fbs import layout
from qnnsweep.tasks.toolchain.readback.pte import PteInstruction, PteMethod, PteTensor, read_pte

_DTYPES = {
    "float16": "float16", "float32": "float32", "float64": "float64", "bool8": "bool",
    "int8": "int8", "int16": "int16", "int32": "int32", "int64": "int64",
    "uint8": "uint8", "uint16": "uint16", "uint32": "uint32", "uint64": "uint64",
    "sfixed8": "int8", "sfixed16": "int16", "sfixed32": "int32",
    "ufixed8": "uint8", "ufixed16": "uint16", "ufixed32": "uint32",
}  # fmt: skip
"""NumPy's names of QNN's types. The codes of quantized values are integers."""


def parts_of(program: Blob, methods: Mapping[str, ProgramFacts], store: Store) -> Parts:
    """Store the parts of a program. `methods`: the facts of its methods, by name.

    Raises EvidenceError if a delegate's tensors are not known, or if ONNX Runtime has no equivalent of the program.
    """
    files: dict[Blob, None] = {}

    def stored(data: bytes) -> str:
        blob = store.put_bytes(data)
        files[blob] = None
        return blob.sha256

    read = read_pte(store.read(program))
    described = {"methods": [_method(method, methods[method.name], stored) for method in read.methods]}
    description = store.put_bytes(json.dumps(described).encode())
    return Parts(program=program, description=description, files=tuple(files))


def _method(method: PteMethod, facts: ProgramFacts, stored: Callable[[bytes], str]) -> dict[str, Any]:
    contexts = [stored(context_binary(delegate.processed)) for delegate in method.delegates]
    calls = [
        _kernel(method, number, instruction)
        if instruction.delegate is None
        else _delegate(method, number, instruction, facts.delegates[instruction.delegate], contexts, stored)
        for number, instruction in enumerate(method.instructions)
    ]
    values = {
        str(position): {"dtype": value.dtype, "shape": list(value.shape)}
        | ({"file": stored(bytes(value.data))} if value.data is not None else {})
        for position, value in enumerate(method.values)
        if isinstance(value, PteTensor)
    }
    return {
        "name": method.name,
        "inputs": [str(position) for position in method.inputs],
        "outputs": [str(position) for position in method.outputs],
        "values": values,
        "calls": calls,
    }


def _kernel(method: PteMethod, number: int, instruction: PteInstruction) -> dict[str, Any]:
    if not instruction.is_kernel:
        raise EvidenceError(f"{method.name} has the instruction {instruction.target}, which only ExecuTorch executes")
    positions = {id(value): at for at, value in enumerate(method.values) if isinstance(value, PteTensor)}

    def described(value: Any) -> dict[str, Any]:
        if isinstance(value, PteTensor):
            return {"value": str(positions[id(value)])}
        return {"list": [described(entry) for entry in value]} if isinstance(value, tuple) else {"scalar": value}

    arguments = [described(method.values[position]) for position in instruction.arguments]
    return {"instruction": number, "kernel": instruction.target, "arguments": arguments}


def _delegate(
    method: PteMethod,
    number: int,
    instruction: PteInstruction,
    facts: DelegateFacts,
    contexts: Sequence[str],
    stored: Callable[[bytes], str],
) -> dict[str, Any]:
    """Describe the call of a delegate. Its arguments are those of ExecuTorch's `QnnExecuTorchBackend::execute`."""
    if facts.context is None or facts.soc is None:
        raise EvidenceError(f"the tensors of a delegate are not known: {facts.unread or facts.backend}")
    tensors = [tensor for tensor in facts.context.tensors if tensor.graph == method.name]
    inputs = sorted((tensor for tensor in tensors if tensor.role == "input"), key=_number)
    outputs = [tensor for tensor in tensors if tensor.role == "output"]
    if not outputs:
        raise EvidenceError(f"a delegate of {method.name} has no graph of this name; run again with reuse=nothing")
    bound = [*inputs, *(tensor for tensor in outputs if tensor.name.startswith("output_"))]
    if any("mutbuf_" in tensor.name for tensor in tensors) or len(bound) != len(instruction.arguments):
        problem = f"{len(bound)} tensors for {len(instruction.arguments)} arguments"
        raise EvidenceError(f"a delegate of {method.name} has {problem}, which ONNX Runtime has no equivalent for")
    positions = dict(zip((tensor.name for tensor in bound), map(str, instruction.arguments), strict=True))

    def described(tensor: GraphTensor) -> dict[str, Any]:
        shape = list(tensor.shape)
        return {"name": tensor.name, "dtype": _dtype(tensor), "shape": shape, "value": positions.get(tensor.name)}

    assert instruction.delegate is not None, "the call of a delegate"
    return {
        "instruction": number,
        "model": stored(one_node_model(method.name, contexts[instruction.delegate], inputs, outputs)),
        "context": contexts[instruction.delegate],
        "graph": method.name,
        "graphs": len({tensor.graph for tensor in facts.context.tensors}),
        "soc_model": str(_soc_model(facts.soc)),
        "arch": str(facts.arch),
        "inputs": [described(tensor) for tensor in inputs],
        "outputs": [described(tensor) for tensor in outputs],
    }


def one_node_model(graph: str, context: str, inputs: Sequence[GraphTensor], outputs: Sequence[GraphTensor]) -> bytes:
    """Return an ONNX model whose only node is a graph of the context binary in the file `context` beside the model.

    The node is that of ONNX Runtime's execution provider contexts (onnxruntime.ai/docs/execution-providers, EPContext).
    """
    from onnx import helper

    def described(tensor: GraphTensor) -> Any:
        element = helper.np_dtype_to_tensor_dtype(np.dtype(_dtype(tensor)))
        return helper.make_tensor_value_info(tensor.name, element, list(tensor.shape))

    node = helper.make_node(
        "EPContext",
        [tensor.name for tensor in inputs],
        [tensor.name for tensor in outputs],
        name=graph,
        domain="com.microsoft",
        embed_mode=0,
        main_context=1,
        ep_cache_context=context,
        source="QNNExecutionProvider",
        partition_name=graph,
    )
    made = helper.make_graph([node], graph, [*map(described, inputs)], [*map(described, outputs)])
    domains = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(made, ir_version=9, opset_imports=domains).SerializeToString(deterministic=True)


def _dtype(tensor: GraphTensor) -> str:
    if tensor.dtype not in _DTYPES:
        raise EvidenceError(f"{tensor.name} has the type {tensor.dtype}, which ONNX Runtime does not give back")
    return _DTYPES[tensor.dtype]


def _number(tensor: GraphTensor) -> int:
    """Return the position of a graph's input among the delegate's arguments, which is the first number in its name."""
    number = tensor.name.partition("_")[2].partition("_")[0]
    if not number.isdecimal():
        raise EvidenceError(f"the input {tensor.name} of a delegate has no position in its name")
    return int(number)


def _soc_model(soc: str) -> int:
    """Return Qualcomm's number of an SoC."""
    numbers = {name: number for number, name in layout(LAYOUT).enums["QcomChipset"].items()}
    return numbers[soc]
