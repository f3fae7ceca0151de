"""The stage bundle: LoweredProgram + inputs -> Bundle."""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

from safetensors.numpy import load

from qnnsweep.conf.schema import MeasureConfig
from qnnsweep.tasks.devices.runner_cli import blob_path, dumped_input
from qnnsweep.tasks.records import (
    Blob,
    Bundle,
    DebugProgram,
    Driven,
    ExportedMethod,
    Launch,
    LaunchedMethod,
    LoweredMethod,
    LoweredProgram,
    OnnxRuntime,
    Place,
    PlannedStep,
    WorstCheck,
)
from qnnsweep.tasks.records.keys import METHOD, tensor_key
from qnnsweep.tasks.stage import stage
from qnnsweep.tasks.storage.store import Store
from qnnsweep.tasks.toolchain import runner
from qnnsweep.tasks.toolchain.ort.archive import onnx_runner
from qnnsweep.tasks.toolchain.ort.parts import parts_of

_PER_FILE_BYTES = 4096


def bundle(lowered: LoweredProgram, measure: MeasureConfig, with_onnxruntime: bool = False, *, store: Store) -> Bundle:
    """Store all files that a device needs: the runner, the programs, one raw file per input, and the input lists.

    `with_onnxruntime`: whether a device of the cell executes the parts of programs, in ONNX Runtime or in jobs of
    Qualcomm AI Hub. Raises EvidenceError if a program cannot be divided.
    """
    program, driven = store.put_file(Path(runner.__file__)), lowered.model.driven
    blobs, launches, checks = [program], list[Launch](), list[WorstCheck]()
    if driven is not None:
        plan, files = _plan(lowered, driven, store)
        blobs += files
        launches.append(_driven_launch(lowered, plan, measure))
    for method in lowered.methods:
        exported = method.exported
        if exported.positions is None:
            stored = _rows(exported, store)
            blobs += [blob for row in stored for blob in row]
            rows = [[blob_path(blob) for blob in row] for row in stored]
        else:  # the other programs run on the inputs that the shipping program had
            rows = [
                [dumped_input(place, index) for index in range(len(exported.inputs))] for place in exported.positions
            ]
        shipping, *others = _launches(lowered.program, method, measure, rows, store)
        launches += [shipping, *others] if exported.positions is None else others
        programs = {debug.program: debug for debug in method.debug_programs}
        again = tuple(
            _on_one_sample(launch, programs[launch.program], measure, shipping.input_list)
            for launch in others
            if launch.debug
        )
        checks.append(WorstCheck(outputs_eager=exported.outputs_eager, choosable=method.choosable, debug=again))
    blobs += [blob for launch in launches for blob in (launch.program, launch.input_list)]
    return Bundle(
        runner=program,
        blobs=tuple(dict.fromkeys(blobs)),
        launches=tuple(launches),
        checks=tuple(checks),
        onnxruntime=_for_onnxruntime(lowered, measure, store) if with_onnxruntime or measure.second_runtime else None,
    )


def _for_onnxruntime(lowered: LoweredProgram, measure: MeasureConfig, store: Store) -> OnnxRuntime:
    """Store the runner for ONNX Runtime, and the parts of every program."""
    named = [(method, method.exported.method or METHOD) for method in lowered.methods]
    programs = {lowered.program: {name: method.facts for method, name in named}} | {
        debug.program: {name: debug.facts}
        for method, name in named
        for debug in method.debug_programs
        if debug.program is not None and debug.facts is not None
    }
    parts = (parts_of(program, facts, store) for program, facts in programs.items())
    runner_blob = store.put_bytes(onnx_runner())
    return OnnxRuntime(runner=runner_blob, parts=tuple(parts), is_control=measure.second_runtime)


def _plan(lowered: LoweredProgram, driven: Driven, store: Store) -> tuple[Blob, list[Blob]]:
    """Store the plan of the sequences with the paths of its files. Return the plan and the files."""
    files = {key: store.put_bytes(value.tobytes()) for key, value in load(store.read(driven.fixed)).items()}
    dumped = {
        place
        for method in lowered.methods
        for place in (method.exported.positions or ())
        if _has_profile(method) or _is_dumped(method)  # any sample may be captured
    }

    def sent(step: PlannedStep, place: Place) -> PlannedStep:
        paths = (None if key is None else blob_path(files[key]) for key in step.inputs)
        return replace(step, inputs=tuple(paths), dump=place in dumped)

    sequences = tuple(
        tuple(sent(step, Place(sequence=sequence, step=number)) for number, step in enumerate(steps))
        for sequence, steps in enumerate(driven.plan.sequences)
    )
    plan = json.dumps(asdict(replace(driven.plan, sequences=sequences)))
    return store.put_bytes(plan.encode()), [*files.values()]


def _driven_launch(lowered: LoweredProgram, plan: Blob, measure: MeasureConfig) -> Launch:
    """Return the launch of the shipping program on all steps of the plan."""
    methods = tuple(
        replace(_launched(method), positions=method.exported.positions, inputs=method.exported.inputs)
        for method in lowered.methods
    )
    samples = sum(len(method.positions or ()) for method in methods)
    events = max(map(_events, lowered.methods))
    return replace(_shipping(lowered.program, plan, samples, measure, methods, events), driven=True)


def _launched(lowered: LoweredMethod) -> LaunchedMethod:
    exported = lowered.exported
    return LaunchedMethod(name=exported.method, index=lowered.facts.method_index or 0, outputs=exported.outputs)


def _shipping(
    program: Blob,
    input_list: Blob,
    samples: int,
    measure: MeasureConfig,
    methods: tuple[LaunchedMethod, ...],
    events: int,
) -> Launch:
    return Launch(
        name="shipping",
        program=program,
        input_list=input_list,
        samples=samples,
        debug=False,
        debug_buffer_bytes=0,
        events=events,
        iterations=measure.iterations,
        warm_up=measure.warm_up,
        performance_mode=measure.performance_mode.value,
        methods=methods,
    )


def _events(lowered: LoweredMethod) -> int:
    """Return the most events of one inference: its start and end, and those of each instruction."""
    return 2 + 3 * len(lowered.instructions)


def _is_dumped(lowered: LoweredMethod) -> bool:
    return lowered.debug_unavailable is None and bool(lowered.chosen)


def _has_profile(lowered: LoweredMethod) -> bool:
    return lowered.profile is not None and lowered.profile.program is not None


def _rows(exported: ExportedMethod, store: Store) -> list[list[Blob]]:
    """Store the inputs of every evaluation sample."""
    tensors = load(store.read(exported.evaluation))
    return [
        [store.put_bytes(tensors[tensor_key(sample, spec.name)].tobytes()) for spec in exported.inputs]
        for sample in range(len(exported.sample_names))
    ]


def _launches(
    program: Blob, lowered: LoweredMethod, measure: MeasureConfig, rows: list[list[str]], store: Store
) -> Iterator[Launch]:
    """Yield the launches of one method. `rows`: the files of every sample, relative to the folder of a launch."""
    method = _launched(lowered)
    events = _events(lowered)
    shipping = _shipping(program, _input_list(store, rows), len(rows), measure, (method,), events)
    yield shipping
    only = (replace(method, index=0),)  # the other programs have one method
    captured = tuple(choice.sample for choice in lowered.chosen)
    for number, debug in enumerate(lowered.debug_programs, start=1):
        if debug.program is None or not captured:
            continue
        yield replace(
            shipping,
            name="debug",
            part=None if debug.span is None else number,
            program=debug.program,
            input_list=_input_list(store, [rows[sample] for sample in captured]),
            samples=len(captured),
            captured=captured,
            debug=True,
            debug_buffer_bytes=_debug_buffer_bytes(debug, measure, len(captured)),
            events=events + 4 * len(lowered.operators),  # of which QNN renames some, and returns others in parts
            iterations=1,
            warm_up=0,
            methods=only,
        )
    if lowered.profile is not None and lowered.profile.program is not None:
        # Samples and iterations are those of `shipping`, so that outputs and times of both programs can be compared.
        measured = events + 8 * len(lowered.operators) + 64  # QNN also times its own steps
        yield replace(shipping, name="profile", program=lowered.profile.program, events=measured, methods=only)


def _on_one_sample(launch: Launch, debug: DebugProgram, measure: MeasureConfig, input_list: Blob) -> Launch:
    """Return a launch of a debug program on a sample that is not known yet. `input_list`: that of all samples."""
    size = _debug_buffer_bytes(debug, measure, 1)
    return replace(launch, input_list=input_list, samples=1, captured=(), debug_buffer_bytes=size, again=True)


def _debug_buffer_bytes(debug: DebugProgram, measure: MeasureConfig, samples: int) -> int:
    if measure.debug_buffer_bytes is not None:
        return measure.debug_buffer_bytes
    return debug.buffer_bytes * samples + _PER_FILE_BYTES


def _input_list(store: Store, rows: list[list[str]]) -> Blob:
    """Store an input list: one line per inference, with one file per input in the order of the model's inputs."""
    return store.put_bytes("".join(" ".join(row) + "\n" for row in rows).encode())


def _key_inputs(lowered: LoweredProgram, measure: MeasureConfig, with_onnxruntime: bool = False) -> object:
    """Return the source of the runner, and those parts of the arguments that the stage reads."""
    return (
        (lowered.program, lowered.model.driven, [_read_of(method) for method in lowered.methods]),
        (measure.iterations, measure.warm_up, measure.performance_mode, measure.debug_buffer_bytes),
        Path(runner.__file__).read_text(encoding="utf-8"),
        _onnx_runner_sha256() if with_onnxruntime or measure.second_runtime else None,
        measure.second_runtime,
    )


def _read_of(lowered: LoweredMethod) -> object:
    """Return the parts of a method's record that the stage reads."""
    exported, profile = lowered.exported, lowered.profile
    return (
        (
            [(debug.program, debug.span, debug.buffer_bytes) for debug in lowered.debug_programs],
            profile and profile.program,
        ),
        (len(lowered.instructions), len(lowered.operators)),
        (lowered.chosen, lowered.choosable, exported.outputs_eager),
        (exported.inputs, exported.outputs, exported.evaluation, len(exported.sample_names), exported.positions),
        (exported.method, lowered.facts.method_index),
    )


def has_this_runner(bundle: Bundle) -> bool:
    """Return whether a bundle has the runner of this installation, and no other program that a device would execute."""
    other = bundle.onnxruntime
    if other is not None and other.runner.sha256 != _onnx_runner_sha256():
        return False
    return bundle.runner.sha256 == _runner_sha256()


def _runner_sha256() -> str:
    return hashlib.sha256(Path(runner.__file__).read_bytes()).hexdigest()


def _onnx_runner_sha256() -> str:
    return hashlib.sha256(onnx_runner()).hexdigest()


bundle_task = stage(bundle, version=6, key_inputs=_key_inputs, accepts=has_this_runner)
