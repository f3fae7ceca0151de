"""The records of the stages from `bundle` to `measure`: what runs on a device, and what comes back."""

from dataclasses import dataclass, field, replace

from qnnsweep.tasks.records.hints import Seconds
from qnnsweep.tasks.records.stages import IDENTITY_NEUTRAL, IDENTITY_UNLESS_NONE, Blob, Place, TensorSpec
from qnnsweep.tasks.records.vocabulary import ProgramName


@dataclass(frozen=True, kw_only=True, slots=True)
class LaunchedMethod:
    """A method of a program that is launched."""

    name: str | None  # None for a program's only method, forward
    index: int  # its position in the program
    outputs: tuple[TensorSpec, ...]
    positions: tuple[Place, ...] | None = field(default=None, metadata=IDENTITY_UNLESS_NONE)  # of its samples in a plan
    inputs: tuple[TensorSpec, ...] | None = field(default=None, metadata=IDENTITY_UNLESS_NONE)  # of a method in a plan


@dataclass(frozen=True, kw_only=True, slots=True)
class Launch:
    """A start of the runner: the program, the samples, and whether the program dumps intermediate tensors.

    With `driven`, the runner runs the steps of a plan, which is in `input_list`, and `samples` is their number.
    `captured`: of the debug program, the evaluation samples of its inferences, in their order; other programs run all.
    `again`: a further launch of the debug program, for one sample. `part`: the number of the method's debug program,
    from 1, if it has several.
    `events`: the most events and tensors that one inference writes to the ETDump.
    """

    name: ProgramName
    program: Blob
    input_list: Blob  # paths of blobs in the device's work folder, relative to the launch's folder
    samples: int
    debug: bool
    debug_buffer_bytes: int
    events: int
    iterations: int
    warm_up: int
    performance_mode: int = 0  # the runner's `--htp_performance_mode`
    methods: tuple[LaunchedMethod, ...]  # those of the plan, or one
    driven: bool = False
    captured: tuple[int, ...] = ()
    again: bool = False
    part: int | None = None

    @property
    def numbers(self) -> tuple[int, ...]:
        """The evaluation samples of the inferences, in their order."""
        return self.captured if self.debug else tuple(range(self.samples))

    @property
    def inferences(self) -> int:
        """The number of inferences, with those that are repeated."""
        return self.samples * (self.iterations + self.warm_up)

    @property
    def method(self) -> str | None:
        """The name of the only method that is run; None if it has no name, or for a plan."""
        return None if self.driven else self.methods[0].name

    @property
    def title(self) -> str:
        """The launch's name in a message."""
        name = f"{self.name} program" if self.part is None else f"{self.name} program {self.part}"
        return name if self.method is None else f"{name}'s method {self.method}"

    @property
    def folder(self) -> str:
        """The name of the launch's folder."""
        name = self.name if self.part is None else f"{self.name}-{self.part}"
        name = f"{name}-again-{'-'.join(map(str, self.captured))}" if self.again else name
        return name if self.method is None else f"{name}-{self.method}"


@dataclass(frozen=True, kw_only=True, slots=True)
class WorstCheck:
    """What decides, once the shipping program ran, whether one more sample of a method is captured.

    `debug`: the launches of the debug programs on one sample. Their input lists have the lines of all samples.
    """

    outputs_eager: Blob  # safetensors, keys `<sample>/<output index>`; no device gets them
    choosable: int  # the number of samples, the first ones, of which one can be captured
    debug: tuple[Launch, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Parts:
    """A program as its parts, for ONNX Runtime or Qualcomm AI Hub; see `qnnsweep.tasks.toolchain.ort.parts`."""

    program: Blob
    description: Blob
    files: tuple[Blob, ...]  # all files that the description names


@dataclass(frozen=True, kw_only=True, slots=True)
class OnnxRuntime:
    """What a device that executes the parts of programs needs in place of the runner and the programs."""

    runner: Blob
    parts: tuple[Parts, ...]  # of every program
    is_control: bool = False  # whether a device with ExecuTorch's Python runner executes them too


@dataclass(frozen=True, kw_only=True, slots=True)
class Bundle:
    """The blobs that a device needs to run a cell, and the launches of the runner."""

    runner: Blob
    blobs: tuple[Blob, ...]  # all blobs, including the runner, each once
    launches: tuple[Launch, ...]
    checks: tuple[WorstCheck, ...] = ()  # per method, in their order
    # None if no device of the cell needs it.
    onnxruntime: OnnxRuntime | None = field(default=None, metadata=IDENTITY_UNLESS_NONE)

    def for_onnxruntime(self) -> "Bundle":
        """Return the bundle of a device with ONNX Runtime. Its launches have the descriptions of programs.

        A profile program is left out: ONNX Runtime does not log what it is for.
        """
        assert self.onnxruntime is not None, "a device of the cell has ONNX Runtime"
        parts = {part.program: part for part in self.onnxruntime.parts}
        launches = [launch for launch in self.launches if launch.program in parts]
        replaced = {self.runner: (self.onnxruntime.runner,)} | dict.fromkeys(launch.program for launch in self.launches)
        replaced |= {program: (part.description, *part.files) for program, part in parts.items()}

        def divided(launch: Launch) -> Launch:
            return replace(launch, program=parts[launch.program].description)

        return Bundle(
            runner=self.onnxruntime.runner,
            blobs=tuple(dict.fromkeys(new for blob in self.blobs for new in replaced.get(blob, (blob,)) or ())),
            launches=tuple(map(divided, launches)),
            checks=tuple(replace(check, debug=tuple(map(divided, check.debug))) for check in self.checks),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Deployment:
    """A bundle whose blobs are on a device, below `work_folder`."""

    device: str
    work_folder: str
    bundle: Bundle
    bytes_sent: int
    blobs_sent: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Command:
    """A command that ran on a device."""

    argv: tuple[str, ...]
    """The command and its arguments."""
    exit_code: int
    """The exit code. If a signal ended the command, the number of the signal with a minus sign."""
    seconds: Seconds
    """Duration of the command."""
    host_rounds: int = 0
    """How often the program waited until qnnsweep's machine had computed operators on the CPU, because the device has
    no PyTorch. 0 if the device computed all operators. `seconds` leaves these waits out."""
    hire: str | None = None
    """The name of the hire of the device, which is QNNSWEEP_LEASE_NAME of the commands of `device.lease`; null if the
    device was not hired."""
    hired_s: Seconds | None = None
    """Time from the begin of the hire to the end of the command. The largest value of a hire is the time that it cost,
    up to the idle time at its end."""
    jobs: tuple[str, ...] = ()
    """The URLs of the jobs that Qualcomm AI Hub executed for it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LaunchResult:
    """The result of a launch. Its files are still in `folder` on the device."""

    launch: Launch
    folder: str = field(metadata=IDENTITY_NEUTRAL)
    command: Command = field(metadata=IDENTITY_NEUTRAL)
    latencies_ms: tuple[float, ...] = field(metadata=IDENTITY_NEUTRAL)  # the mean per sample, printed by the runner
    log: Blob = field(metadata=IDENTITY_NEUTRAL)
    failure: str | None = None  # why a debug program failed; a failure of another program ends the measurement


@dataclass(frozen=True, kw_only=True, slots=True)
class Execution:
    """The results of all launches of a bundle on one device."""

    device: str
    results: tuple[LaunchResult, ...]
    bytes_sent: int = field(default=0, metadata=IDENTITY_NEUTRAL)  # sent before the launches; 0 if no blob was missing


@dataclass(frozen=True, kw_only=True, slots=True)
class DebugFiles:
    """The files of one launch of a debug program.

    `part`: see `Launch`.
    """

    samples: tuple[int, ...]  # the evaluation samples of its inferences, in their order
    outputs: Blob
    etdump: Blob
    buffer: Blob
    # In a plan: what the captured steps read; safetensors, keys `<sample>/<input name>`.
    inputs: Blob | None = field(default=None, metadata=IDENTITY_UNLESS_NONE)
    part: int | None = field(default=None, metadata=IDENTITY_UNLESS_NONE)


@dataclass(frozen=True, kw_only=True, slots=True)
class CapturedMethod:
    """The files of one method. The outputs are safetensors with keys `<sample>/<output index>`."""

    results: tuple[LaunchResult, ...]  # of the launches that ran the method
    outputs: Blob
    etdump: Blob  # the log of the shipping program; the times of the debug program do not count
    debug: tuple[DebugFiles, ...] = ()  # per launch of the debug program
    outputs_profile: Blob | None = None
    etdump_profile: Blob | None = None

    @property
    def captured(self) -> tuple[int, ...]:
        """The evaluation samples whose operators were captured, in their order."""
        return tuple(sorted({sample for files in self.debug for sample in files.samples}))

    @property
    def failures(self) -> dict[int | None, str]:
        """Why debug programs failed on the device, by their parts. A failure is none if each sample ran alone."""
        ran = {(files.part, sample) for files in self.debug for sample in files.samples}
        return {
            result.launch.part: result.failure
            for result in self.results
            if result.failure is not None
            if any((result.launch.part, sample) not in ran for sample in result.launch.captured)
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Capture:
    """The files from a device, verified on arrival, method by method."""

    device: str
    bytes_sent: int = field(default=0, metadata=IDENTITY_NEUTRAL)
    methods: tuple[CapturedMethod, ...]
    measured_run: str | None = field(default=None, metadata=IDENTITY_NEUTRAL)  # an earlier run if the capture is reused
    device_id: str | None = field(default=None, metadata=IDENTITY_NEUTRAL)
    # The number of tensors that ONNX Runtime returned too, all equal; None if it was not asked.
    equal_tensors: int | None = field(default=None, metadata=IDENTITY_NEUTRAL)

    @property
    def results(self) -> tuple[LaunchResult, ...]:
        """The results of all launches, each once. One launch can be that of all methods."""
        return tuple(dict.fromkeys(result for method in self.methods for result in method.results))
