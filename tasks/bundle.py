"""The stage bundle: LoweredProgram + inputs -> Bundle."""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

from safetensors.numpy import load

from qnnsweep.conf.schema import MeasureConfig
from qnnsweep.tasks.devices.runner_cli import blob_path, dumped_input
from qnnsweep.tasks.records import Blob, Bundle, Driven, ExportedModel, Launch, LaunchedMethod, LoweredProgram
from qnnsweep.tasks.records.keys import METHOD, tensor_key
from qnnsweep.tasks.records.methods import methods_of
from qnnsweep.tasks.stage import stage
from qnnsweep.tasks.storage.store import Store
from qnnsweep.tasks.toolchain import runner

_PER_FILE_BYTES = 4096


def bundle(lowered: LoweredProgram, measure: MeasureConfig, *, store: Store) -> Bundle:
    """Store all files that a device needs: the runner, the programs, one raw file per input, and the input lists."""
    program, methods = store.put_file(Path(runner.__file__)), methods_of(lowered)
    blobs, launches = [program], list[Launch]()
    if lowered.quantized.exported.driven is not None:
        plan, files = _plan(methods, lowered.quantized.exported.driven, store)
        blobs += files
        launches.append(_driven_launch(methods, plan, measure))
    for method in methods:
        exported = method.quantized.exported
        if exported.driven is None:
            stored = _rows(exported, store)
            blobs += [blob for row in stored for blob in row]
            launches += _launches(method, measure, [[blob_path(blob) for blob in row] for row in stored], store)
        else:  # the other programs run on the inputs that the shipping program had
            indices = range(len(exported.inputs))
            rows = [[dumped_input(place, index) for index in indices] for place in exported.driven.positions]
            launches += list(_launches(method, measure, rows, store))[1:]
    blobs += [blob for launch in launches for blob in (launch.program, launch.input_list)]
    outputs = lowered.quantized.exported.outputs
    return Bundle(runner=program, blobs=tuple(dict.fromkeys(blobs)), launches=tuple(launches), outputs=outputs)


def _plan(methods: Sequence[LoweredProgram], driven: Driven, store: Store) -> tuple[Blob, list[Blob]]:
    """Store the plan of the sequences with the paths of its files. Return the plan and the files."""
    fixed = load(store.read(driven.fixed))
    plan = json.loads(store.read(driven.plan))
    files: list[Blob] = []
    dumped = {
        (place.sequence, place.step)
        for method in methods
        for place in _driven_of(method).positions[: None if _has_profile(method) else method.operator_samples]
    }
    for sequence, steps in enumerate(plan["sequences"]):
        for number, step in enumerate(steps):
            for index, name in enumerate(step["inputs"]):
                if name is not None:
                    files.append(store.put_bytes(fixed[f"{sequence}/{number}/{name}"].tobytes()))
                    step["inputs"][index] = blob_path(files[-1])
            step["dump"] = (sequence, number) in dumped
    return store.put_bytes(json.dumps(plan).encode()), files


def _driven_of(method: LoweredProgram) -> Driven:
    driven = method.quantized.exported.driven
    assert driven is not None, "all methods of a model have states, or none has"
    return driven


def _driven_launch(methods: Sequence[LoweredProgram], plan: Blob, measure: MeasureConfig) -> Launch:
    """Return the launch of the shipping program on all steps of the plan."""
    driven = tuple(
        LaunchedMethod(
            name=method.quantized.exported.method or METHOD,
            index=method.facts.method_index or 0,
            outputs=method.quantized.exported.outputs,
            positions=_driven_of(method).positions,
            inputs=method.quantized.exported.inputs,
        )
        for method in methods
    )
    return Launch(
        name="shipping",
        program=methods[0].program,
        input_list=plan,
        samples=sum(len(method.positions or ()) for method in driven),
        debug=False,
        debug_buffer_bytes=0,
        iterations=measure.iterations,
        warm_up=measure.warm_up,
        performance_mode=measure.performance_mode.value,
        driven=driven,
    )


def _has_profile(lowered: LoweredProgram) -> bool:
    return lowered.profile is not None and lowered.profile.program is not None


def _rows(exported: ExportedModel, store: Store) -> list[list[Blob]]:
    """Store the inputs of every evaluation sample."""
    tensors = load(store.read(exported.evaluation))
    return [
        [store.put_bytes(tensors[tensor_key(sample, spec.name)].tobytes()) for spec in exported.inputs]
        for sample in range(len(exported.sample_names))
    ]


def _launches(lowered: LoweredProgram, measure: MeasureConfig, rows: list[list[str]], store: Store) -> Iterator[Launch]:
    """Yield the launches of one method. `rows`: the files of every sample, relative to the folder of a launch."""
    exported, index = lowered.quantized.exported, lowered.facts.method_index
    method = None
    if exported.method is not None:
        method = LaunchedMethod(name=exported.method, index=index or 0, outputs=exported.outputs)
    shipping = Launch(
        name="shipping",
        program=lowered.program,
        input_list=_input_list(store, rows),
        samples=len(rows),
        debug=False,
        debug_buffer_bytes=0,
        iterations=measure.iterations,
        warm_up=measure.warm_up,
        performance_mode=measure.performance_mode.value,
        method=method,
    )
    yield shipping
    only = None if method is None else replace(method, index=0)  # the other programs have one method
    if lowered.debug_program is not None:
        debug_rows = rows[: lowered.operator_samples]
        needed_bytes = lowered.debug_buffer_bytes * len(debug_rows) + _PER_FILE_BYTES
        yield replace(
            shipping,
            name="debug",
            program=lowered.debug_program,
            input_list=_input_list(store, debug_rows),
            samples=len(debug_rows),
            debug=True,
            debug_buffer_bytes=needed_bytes if measure.debug_buffer_bytes is None else measure.debug_buffer_bytes,
            iterations=1,
            warm_up=0,
            method=only,
        )
    if lowered.profile is not None and lowered.profile.program is not None:
        # Samples and iterations are those of `shipping`, so that outputs and times of both programs can be compared.
        yield replace(shipping, name="profile", program=lowered.profile.program, method=only)


def _input_list(store: Store, rows: list[list[str]]) -> Blob:
    """Store an input list: one line per inference, with one file per input in the order of the model's inputs."""
    return store.put_bytes("".join(" ".join(row) + "\n" for row in rows).encode())


def _key_inputs(lowered: LoweredProgram, measure: MeasureConfig) -> object:
    """Return the source of the runner, and those parts of the arguments that the stage reads."""
    first, *further = map(_read_of, methods_of(lowered))
    return (
        *first,
        (measure.iterations, measure.warm_up, measure.performance_mode, measure.debug_buffer_bytes),
        Path(runner.__file__).read_text(encoding="utf-8"),
        *further,
    )


def _read_of(lowered: LoweredProgram) -> tuple[object, ...]:
    """Return the parts of a method's record that the stage reads."""
    exported, profile = lowered.quantized.exported, lowered.profile
    named = () if exported.method is None else (exported.method, lowered.facts.method_index)
    driven = () if exported.driven is None else (exported.driven,)
    return (
        (lowered.program, lowered.debug_program, profile and profile.program),
        (lowered.operator_samples, lowered.debug_buffer_bytes),
        (exported.inputs, exported.outputs, exported.evaluation, len(exported.sample_names)),
        *named,
        *driven,
    )


def _has_this_runner(bundle: Bundle) -> bool:
    """Return whether a bundle has the runner of this installation, and no other program that a device would execute."""
    return bundle.runner.sha256 == _runner_sha256()


@cache
def _runner_sha256() -> str:
    return hashlib.sha256(Path(runner.__file__).read_bytes()).hexdigest()


bundle_task = stage(bundle, version=1, key_inputs=_key_inputs, accepts=_has_this_runner)
