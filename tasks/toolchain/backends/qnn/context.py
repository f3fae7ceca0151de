"""A reader of the compiler's build, the SoC and the graphs' tensors in QNN context binaries.

It uses QNN's System library. That library is native code that does not check the bytes that it reads, so it is called
only in workers.
"""

import ctypes
import re
from collections.abc import Iterator
from ctypes import POINTER, Structure, c_char_p, c_float, c_int32, c_uint8, c_uint32, c_uint64, c_void_p
from dataclasses import replace
from pathlib import Path

from qnnsweep.tasks.errors import EvidenceError
from qnnsweep.tasks.records import ContextFacts, GraphTensor
from qnnsweep.tasks.toolchain.backends.qnn.options import LAYOUT
from qnnsweep.tasks.toolchain.fbs import layout

# ExecuTorch's header in front of the binary: magic, signature, size, then zeros.
_MAGIC = (0x5678ABCD).to_bytes(4, "little")
_SIZE = slice(12, 20)
_HEADER_BYTES = 256

_SYSTEM_API_MAJOR = 1
_BINARY_INFO_VERSION = 3
_GRAPH_INFO_VERSION = 3
_BLOB_VERSION = 1
_TENSOR_VERSIONS = (1, 2)
_PER_TENSOR = 0
_DEFINED = 1

_SOC_NAMES = layout(LAYOUT).enums["QcomChipset"]

# The kinds by the high byte of a QNN data type. The low byte is the number of bits in decimal digits: 0x16 for 16 bits.
_KINDS = {0: "int", 1: "uint", 2: "float", 3: "sfixed", 4: "ufixed", 5: "bool", 6: "string"}

# A kernel's name, then @ and its result's layout (Flat or Crouton), then the element type as a letter of Python's
# `struct`. The search for a name starts only at the start of a run of name characters, and never goes back in the run:
# its time is linear.
_KERNEL = re.compile(rb"(?<![\w.])[0-9.]*+[A-Za-z_][\w.]{5,}+\Z")
_RESULT = re.compile(rb"@[FC]([BbHhefi])(?=[.*\x00-\x1f]|$)")
_ELEMENTS = {
    b"B": "ufixed8", b"b": "sfixed8", b"H": "ufixed16", b"h": "sfixed16", b"i": "int32",
    b"e": "float16", b"f": "float32",
}  # fmt: skip


class _Version(Structure):
    _fields_ = (("major", c_uint32), ("minor", c_uint32), ("patch", c_uint32))


class _Provider(Structure):
    _fields_ = (
        ("backend", c_uint32),
        ("name", c_char_p),
        ("version", _Version),
        ("create", ctypes.CFUNCTYPE(c_uint64, POINTER(c_void_p))),
        ("get_binary_info", c_void_p),
        ("get_metadata", ctypes.CFUNCTYPE(c_uint64, c_void_p, c_char_p, c_uint64, POINTER(c_void_p))),
        ("free", ctypes.CFUNCTYPE(c_uint64, c_void_p)),
    )


class _Quantization(Structure):
    # The union of all encodings has 32 bytes; only the per-tensor encoding is read.
    _fields_ = (
        ("definition", c_uint32),
        ("encoding", c_uint32),
        ("scale", c_float),
        ("offset", c_int32),
        ("others", c_uint64 * 3),
    )


class _Tensor(Structure):
    _fields_ = (
        ("version", c_uint32), ("padding", c_uint32), ("id", c_uint32), ("name", c_char_p), ("type", c_uint32),
        ("format", c_uint32), ("dtype", c_uint32), ("quantization", _Quantization), ("rank", c_uint32),
        ("dimensions", POINTER(c_uint32)), ("memory", c_uint32), ("buffer", c_uint64 * 2), ("dynamic", c_void_p),
        ("sparse", c_uint32 * 3), ("produced", c_uint8),
    )  # fmt: skip


class _GraphBlob(Structure):
    _fields_ = (
        ("version", c_uint32),
        ("spill_fill_bytes", c_uint64),
        ("vtcm_bytes", c_uint32),
        ("optimization_level", c_uint32),
    )


class _Graph(Structure):
    _fields_ = (
        ("version", c_uint32), ("name", c_char_p), ("input_count", c_uint32), ("inputs", POINTER(_Tensor)),
        ("output_count", c_uint32), ("outputs", POINTER(_Tensor)), ("updateable_count", c_uint32),
        ("updateable", c_void_p), ("blob_size", c_uint32), ("blob", POINTER(_GraphBlob)), ("operators", c_uint32 * 2),
    )  # fmt: skip


class _ContextBlob(Structure):
    _fields_ = (("version", c_uint32), ("arch", c_uint32))


class _BinaryInfo(Structure):
    _fields_ = (
        ("version", c_uint32), ("padding", c_uint32), ("backend", c_uint32), ("build", c_char_p),
        ("core_api", _Version), ("backend_api", _Version), ("soc_version", c_char_p), ("blob_version", _Version),
        ("blob_size", c_uint64), ("tensor_count", c_uint32), ("tensors", c_void_p), ("graph_count", c_uint32),
        ("graphs", POINTER(_Graph)), ("platform", c_void_p), ("context_blob_size", c_uint32),
        ("context_blob", POINTER(_ContextBlob)), ("soc_model", c_uint32),
    )  # fmt: skip


def read_context(processed: bytes, library: Path) -> ContextFacts:
    """Return the facts in a context binary.

    `processed`: the bytes to which ExecuTorch's QNN backend compiled a subgraph. `library`: path of libQnnSystem.so.
    Raises EvidenceError if the bytes are not a context binary, or if this reader does not support their version.
    """
    graphs = tuple(read_graphs(processed, library).values())
    return replace(
        graphs[0],
        vtcm_mib=max(graph.vtcm_mib for graph in graphs),
        optimization_level=min(graph.optimization_level for graph in graphs),
        tensors=tuple(tensor for graph in graphs for tensor in graph.tensors),
    )


def read_graphs(processed: bytes, library: Path) -> dict[str, ContextFacts]:
    """Return the facts of every graph in a context binary, by the graph's name; see `read_context`."""
    binary = context_binary(processed)
    provider = _provider(library)
    handle = c_void_p()
    _require(provider.create(ctypes.byref(handle)), "QNN creates no reader")
    try:
        address = c_void_p()
        _require(provider.get_metadata(handle, binary, len(binary), ctypes.byref(address)), "QNN cannot read it")
        if not address.value:
            raise _refusal("QNN finds nothing in it")
        return _facts(_BinaryInfo.from_address(address.value), binary)
    finally:
        provider.free(handle)


def kernel_elements(binary: bytes) -> tuple[str, ...]:
    """Return the sorted element types of the kernels' results, which are parts of the kernel names in the binary."""
    elements: set[str] = set()
    end = 0  # of the last kernel
    for result in _RESULT.finditer(binary):
        start = max(end, binary.rfind(b"@", 0, result.start()) + 1)
        if _KERNEL.search(binary, start, result.start()):
            elements.add(_ELEMENTS[result[1]])
            end = result.end()
    return tuple(sorted(elements))


def context_binary(processed: bytes) -> bytes:
    """Return the context binary, without ExecuTorch's header in front of it. Raises EvidenceError."""
    if processed[:4] != _MAGIC:
        raise _refusal(f"it begins with {processed[:4]!r}, not {_MAGIC!r}")
    size = int.from_bytes(processed[_SIZE], "little")
    if size > len(processed) - _HEADER_BYTES:
        raise _refusal(f"{size} bytes announced, {max(len(processed) - _HEADER_BYTES, 0)} present; it was cut short")
    return processed[_HEADER_BYTES : _HEADER_BYTES + size]


def _provider(library: Path) -> _Provider:
    providers = POINTER(POINTER(_Provider))()
    count = c_uint32()
    loaded = ctypes.CDLL(str(library))
    _require(loaded.QnnSystemInterface_getProviders(ctypes.byref(providers), ctypes.byref(count)), "no QNN System API")
    for index in range(count.value):
        if providers[index].contents.version.major == _SYSTEM_API_MAJOR:
            return providers[index].contents
    raise _refusal(f"{library.name} has no System API of version {_SYSTEM_API_MAJOR}")


def _facts(info: _BinaryInfo, binary: bytes) -> dict[str, ContextFacts]:
    _require_version("binary info", info.version, (_BINARY_INFO_VERSION,))
    if not info.graphs or not info.graph_count or not info.context_blob:
        raise _refusal("it contains no graph or no architecture")
    _require_version("context blob", info.context_blob.contents.version, (_BLOB_VERSION,))
    elements = kernel_elements(binary)
    return {
        _text(graph.name): ContextFacts(
            build=_text(info.build),
            soc=_SOC_NAMES.get(info.soc_model, f"SoC model {info.soc_model}"),
            arch=info.context_blob.contents.arch,
            vtcm_mib=_blob(graph).vtcm_bytes // 2**20,
            optimization_level=_blob(graph).optimization_level,
            kernel_elements=elements,
            tensors=tuple(_tensors(graph)),
        )
        for graph in info.graphs[: info.graph_count]
    }


def _blob(graph: _Graph) -> _GraphBlob:
    _require_version("graph info", graph.version, (_GRAPH_INFO_VERSION,))
    if not graph.blob:
        raise _refusal("its graph contains no VTCM size")
    _require_version("graph blob", graph.blob.contents.version, (_BLOB_VERSION,))
    return graph.blob.contents


def _tensors(graph: _Graph) -> Iterator[GraphTensor]:
    inputs, outputs = ("input", graph.input_count, graph.inputs), ("output", graph.output_count, graph.outputs)
    for role, count, tensors in (inputs, outputs):
        for tensor in tensors[:count] if count else ():
            _require_version("tensor", tensor.version, _TENSOR_VERSIONS)
            qparams = tensor.quantization
            is_per_tensor = qparams.definition == _DEFINED and qparams.encoding == _PER_TENSOR
            yield GraphTensor(
                name=_text(tensor.name),
                role=role,
                dtype=_dtype(tensor.dtype),
                shape=tuple(tensor.dimensions[: tensor.rank]) if tensor.rank else (),
                scale=float(qparams.scale) if is_per_tensor else None,
                zero_point=-qparams.offset if is_per_tensor else None,
                graph=_text(graph.name),
            )


def _dtype(code: int) -> str:
    kind = _KINDS.get(code >> 8)
    return f"type {code:#x}" if kind is None else f"{kind}{code & 0xFF:x}"


def _text(name: bytes | None) -> str:
    return "" if name is None else name.decode(errors="replace")


def _require_version(noun: str, version: int, supported: tuple[int, ...]) -> None:
    if version not in supported:
        raise _refusal(f"its {noun} has version {version}; this reader supports {list(supported)}")


def _require(result: int, problem: str) -> None:
    if result:
        raise _refusal(f"{problem} (QNN error {result & 0xFFFF})")


def _refusal(problem: str) -> EvidenceError:
    return EvidenceError(f"not a readable QNN context binary: {problem}")
