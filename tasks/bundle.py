"""The stage bundle: LoweredProgram + inputs -> Bundle."""

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

from safetensors.numpy import load

from conf.schema import MeasureConfig
from tasks.devices.runner_cli import blob_path
from tasks.records import Blob, Bundle, ExportedModel, Launch, LaunchedMethod, LoweredProgram
from tasks.records.keys import tensor_key
from tasks.records.methods import methods_of
from tasks.stage import stage
from tasks.storage.store import Store
from tasks.toolchain import runner

_PER_FILE_BYTES = 4096


def bundle(lowered: LoweredProgram, measure: MeasureConfig, *, store: Store) -> Bundle:
    """Store all files that a device needs: the runner, the programs, one raw file per input, and the input lists."""
    program = store.put_file(Path(runner.__file__))
    blobs, launches = [program], list[Launch]()
    for method in methods_of(lowered):
        rows = _rows(method.quantized.exported, store)
        blobs += [blob for row in rows for blob in row]
        launches += _launches(method, measure, rows, store)
    blobs += [blob for launch in launches for blob in (launch.program, launch.input_list)]
    outputs = lowered.quantized.exported.outputs
    return Bundle(runner=program, blobs=tuple(dict.fromkeys(blobs)), launches=tuple(launches), outputs=outputs)


def _rows(exported: ExportedModel, store: Store) -> list[list[Blob]]:
    """Store the inputs of every evaluation sample."""
    tensors = load(store.read(exported.evaluation))
    return [
        [store.put_bytes(tensors[tensor_key(sample, spec.name)].tobytes()) for spec in exported.inputs]
        for sample in range(len(exported.sample_names))
    ]


def _launches(
    lowered: LoweredProgram, measure: MeasureConfig, rows: list[list[Blob]], store: Store
) -> Iterator[Launch]:
    """Yield the launches of one method."""
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


def _input_list(store: Store, rows: list[list[Blob]]) -> Blob:
    """Store an input list: one line per inference, with one file per input in the order of the model's inputs."""
    lines = [" ".join(blob_path(blob) for blob in row) for row in rows]
    return store.put_bytes("".join(f"{line}\n" for line in lines).encode())


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
    return (
        (lowered.program, lowered.debug_program, profile and profile.program),
        (lowered.operator_samples, lowered.debug_buffer_bytes),
        (exported.inputs, exported.outputs, exported.evaluation, len(exported.sample_names)),
        *named,
    )


def _has_this_runner(bundle: Bundle) -> bool:
    """Return whether a bundle has the runner of this installation, and no other program that a device would execute."""
    return bundle.runner.sha256 == _runner_sha256()


@cache
def _runner_sha256() -> str:
    return hashlib.sha256(Path(runner.__file__).read_bytes()).hexdigest()


bundle_task = stage(bundle, version=1, key_inputs=_key_inputs, accepts=_has_this_runner)
