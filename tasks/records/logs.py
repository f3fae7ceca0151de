"""The entries of a runtime's log, as `qnnsweep.tasks.toolchain.readback.etdump` reads them."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class LoggedTensor:
    """A tensor that the runtime copied into the debug buffer."""

    run: int  # the number of the run in the file; loading the program counts as a run too
    chain_index: int  # -1 for a program's final outputs
    instruction_id: int
    delegate_identifier: str | None  # the tensor's name in the delegate (QNN: `<node>@<output index>`); None on the CPU
    name: str | None
    scalar_type: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]  # in elements
    offset: int  # in bytes
    is_output: bool  # a final output of the program
    delegate_argument: bool  # an argument of a delegate call (the inputs, then the outputs), not an operator's value
    list_index: int | None  # position in a list of tensors that was logged as one entry; None outside such a list

    @property
    def description(self) -> str:
        return f"logged tensor {self.delegate_identifier or f'of instruction {self.instruction_id}'} of run {self.run}"


@dataclass(frozen=True, kw_only=True, slots=True)
class TimedEvent:
    """A profiling event. `start` and `end` are ticks of the runtime's clock, or counts if a delegate logs counts."""

    run: int
    run_name: str | None
    name: str | None
    chain_index: int  # -1 for an event of the program as a whole, whose `instruction_id` has no meaning
    instruction_id: int
    delegate_identifier: str | None
    metadata: bytes
    start: int
    end: int
