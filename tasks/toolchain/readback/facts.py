"""The facts of a finished program, read back from its bytes by ExecuTorch's own deserializer. Runs in a worker."""

from collections import Counter
from typing import cast

from executorch.exir._serialize._program import deserialize_pte_binary
from executorch.exir.schema import BackendDelegate, DelegateCall, ExecutionPlan, KernelCall, Tensor

from qnnsweep.tasks.records import Blob, DelegateFacts, ProgramFacts, ProgramTensor
from qnnsweep.tasks.records.keys import METHOD
from qnnsweep.tasks.storage.store import Store
from qnnsweep.tasks.toolchain.backends.backend import Backend
from qnnsweep.tasks.toolchain.readback.etdump import SCALAR_TYPES


def program_facts(program: Blob, backend: Backend, store: Store, method: str = METHOD) -> ProgramFacts:
    """Return the facts of a method of the program. `backend` compiled the program, and reads its delegates."""
    read = deserialize_pte_binary(store.read(program)).program
    names = [plan.name for plan in read.execution_plan]
    plan = read.execution_plan[names.index(method)]
    calls = [instruction.instr_args for chain in plan.chains for instruction in chain.instructions]
    called = Counter(call.delegate_index for call in calls if isinstance(call, DelegateCall))
    return ProgramFacts(
        inputs=_tensors(plan, plan.inputs),
        outputs=_tensors(plan, plan.outputs),
        delegates=tuple(
            # The deserializer has moved the data of delegates from the file's segments into the program.
            _delegate(backend, delegate, read.backend_delegate_data[delegate.processed.index].data, called[index])
            for index, delegate in enumerate(plan.delegates)
        ),
        kernel_calls=sum(isinstance(call, KernelCall) for call in calls),
        method_index=names.index(method) if len(names) > 1 else None,
    )


def _delegate(backend: Backend, delegate: BackendDelegate, processed: bytes, calls: int) -> DelegateFacts:
    if delegate.id == backend.delegate:
        return backend.read_delegate(delegate, processed, calls)
    return DelegateFacts(backend=delegate.id, size=len(processed), calls=calls)


def _tensors(plan: ExecutionPlan, positions: list[int]) -> tuple[ProgramTensor, ...]:
    tensors = [cast(Tensor, plan.values[position].val) for position in positions]
    return tuple(
        ProgramTensor(
            shape=tuple(tensor.sizes),
            dtype=SCALAR_TYPES[tensor.scalar_type],
            dim_order=tuple(map(int, tensor.dim_order)),
        )
        for tensor in tensors
    )
