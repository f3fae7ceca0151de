"""The facts of a finished program, read back from its bytes by ExecuTorch's own deserializers. Runs in a worker."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import cast

from executorch.backends.qualcomm.utils.constants import QCOM_QNN_COMPILE_SPEC
from executorch.exir._serialize._program import deserialize_pte_binary
from executorch.exir.schema import BackendDelegate, DelegateCall, ExecutionPlan, KernelCall, Tensor

from tasks.errors import EvidenceError
from tasks.records import Blob, DelegateFacts, ProgramFacts, ProgramTensor
from tasks.storage.store import Store
from tasks.toolchain.backends.qnn_sdk import LIBRARY_FOLDER
from tasks.toolchain.readback.etdump import SCALAR_TYPES
from tasks.toolchain.readback.qnn_context import read_context
from tasks.toolchain.readback.qnn_options import read_options

QNN = "QnnBackend"
_METHOD = "forward"


def program_facts(program: Blob, store: Store) -> ProgramFacts:
    """Return the facts of the program's one method. A QNN context that cannot be read is a fact, not an error."""
    read = deserialize_pte_binary(store.read(program)).program
    (plan,) = (plan for plan in read.execution_plan if plan.name == _METHOD)
    calls = [instruction.instr_args for chain in plan.chains for instruction in chain.instructions]
    called = Counter(call.delegate_index for call in calls if isinstance(call, DelegateCall))
    return ProgramFacts(
        inputs=_tensors(plan, plan.inputs),
        outputs=_tensors(plan, plan.outputs),
        delegates=tuple(
            # The deserializer has put the data of a segment into the program.
            _delegate(delegate, read.backend_delegate_data[delegate.processed.index].data, called[index])
            for index, delegate in enumerate(plan.delegates)
        ),
        kernel_calls=sum(isinstance(call, KernelCall) for call in calls),
    )


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


def _delegate(delegate: BackendDelegate, processed: bytes, calls: int) -> DelegateFacts:
    options = context = unread = None
    if delegate.id == QNN:
        (spec,) = (spec.value for spec in delegate.compile_specs if spec.key == QCOM_QNN_COMPILE_SPEC)
        options = read_options(spec)
        try:
            context = read_context(processed, _system_library())
        except EvidenceError as error:
            unread = str(error)
    return DelegateFacts(
        backend=delegate.id,
        size=len(processed),
        calls=calls,
        soc=options.soc if options else None,
        arch=options.arch if options else None,
        vtcm_mib=options.vtcm_mib if options else None,
        precision=options.precision if options else None,
        dumps=options.dumps if options else None,
        context=context,
        unread=unread,
    )


def _system_library() -> Path:
    return Path(os.environ["QNN_SDK_ROOT"], LIBRARY_FOLDER, "libQnnSystem.so")
