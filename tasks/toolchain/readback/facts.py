"""The facts of a finished program, read back from its bytes. Runs in a worker, because QNN's reader is native code."""

from collections import Counter

from qnnsweep.tasks.records import Blob, DelegateFacts, ProgramFacts, ProgramTensor
from qnnsweep.tasks.records.keys import METHOD
from qnnsweep.tasks.storage.store import Store
from qnnsweep.tasks.toolchain.backends.backend import Backend
from qnnsweep.tasks.toolchain.backends.delegate import CompiledDelegate
from qnnsweep.tasks.toolchain.readback.pte import PteTensor, read_pte


def program_facts(program: Blob, backend: Backend, store: Store, method: str = METHOD) -> ProgramFacts:
    """Return the facts of a method of the program. `backend` compiled the program, and reads its delegates."""
    read = read_pte(store.read(program))
    plan = read.method(method)
    called = Counter(instruction.delegate for instruction in plan.instructions)
    return ProgramFacts(
        inputs=tuple(map(_tensor, plan.tensors(plan.inputs))),
        outputs=tuple(map(_tensor, plan.tensors(plan.outputs))),
        delegates=tuple(_delegate(backend, delegate, called[index]) for index, delegate in enumerate(plan.delegates)),
        kernel_calls=sum(instruction.is_kernel for instruction in plan.instructions),
        method_index=read.methods.index(plan) if len(read.methods) > 1 else None,
    )


def _delegate(backend: Backend, delegate: CompiledDelegate, calls: int) -> DelegateFacts:
    if delegate.id == backend.delegate:
        return backend.read_delegate(delegate, calls)
    return DelegateFacts(backend=delegate.id, size=len(delegate.processed), calls=calls)


def _tensor(tensor: PteTensor) -> ProgramTensor:
    return ProgramTensor(shape=tensor.shape, dtype=tensor.dtype, dim_order=tensor.dim_order)
