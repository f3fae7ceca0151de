"""The command line and the output of a runner, which are the same for the native and for the Python runner."""

import re
from collections.abc import Mapping, Sequence

from qnnsweep.tasks.records import Blob, Launch, Place, hosted
from qnnsweep.tasks.storage.digest import digest

ETDUMP = "etdump.etdp"
DEBUG_OUTPUT = "debug_output.bin"
OUTPUT_FOLDER = "outputs"
_LATENCY = re.compile(r"\] [0-9]{1,12} inference took [0-9.]{1,40} ms, avg ([0-9]{1,20}(?:\.[0-9]{1,20})?) ms")
_JOB = re.compile(rf"\] {hosted.JOB} (https?://[\w./:-]{{1,200}})")


def blob_path(blob: Blob) -> str:
    """Return the path of a blob, relative to a launch's folder on any device."""
    return f"../../../blobs/{blob.sha256}"


def native_folder(files: Mapping[str, Blob]) -> str:
    """Return the native runner's folder, relative to the work folder. Each build of the runner has its own folder."""
    return f"native/{digest(sorted(files.items()))[:16]}"


def runner_arguments(launch: Launch) -> list[str]:
    """Return the flags of `qnn_executor_runner`. All paths, including outputs, are relative to the launch's folder."""
    flags = [
        f"--model_path={blob_path(launch.program)}",
        f"--{'plan' if launch.driven else 'input_list'}_path={blob_path(launch.input_list)}",
        f"--output_folder_path={OUTPUT_FOLDER}",
        f"--etdump_path={ETDUMP}",
        f"--iteration={launch.iterations}",
        f"--warm_up={launch.warm_up}",
        f"--htp_performance_mode={launch.performance_mode}",
    ]
    if launch.method is not None:
        flags.append(f"--method_index={launch.methods[0].index}")
    if launch.debug:
        flags += [
            "--dump_intermediate_outputs",
            f"--debug_output_path={DEBUG_OUTPUT}",
            f"--debug_buffer_size={launch.debug_buffer_bytes}",
        ]
    return flags


def latencies_ms(printed: str) -> tuple[float, ...]:
    """Return the mean latency per inference, in ms, for each line of the input list, in the order of the lines."""
    return tuple(float(mean) for mean in _LATENCY.findall(printed))


def job_urls(printed: str) -> tuple[str, ...]:
    """Return the URLs of the jobs that a runner asked Qualcomm AI Hub for, each once."""
    return tuple(dict.fromkeys(_JOB.findall(printed)))


def output_file(sample: int, index: int) -> str:
    """Return the path of an output of a sample, relative to the launch's folder."""
    return f"{OUTPUT_FOLDER}/output_{sample}_{index}.raw"


def step_output_file(place: Place, index: int) -> str:
    """Return the path of an output of a step of a plan, relative to the launch's folder."""
    return f"{OUTPUT_FOLDER}/output_{place.sequence}_{place.step}_{index}.raw"


def step_input_file(place: Place, index: int) -> str:
    """Return the path of an input of a step of a plan, relative to the folder of the shipping program's launch."""
    return f"inputs_{place.sequence}_{place.step}_{index}.raw"


def dumped_input(place: Place, index: int) -> str:
    """Return the path of an input of a step that the shipping program ran, relative to the folder of any launch."""
    return f"../shipping/{step_input_file(place, index)}"


def last_lines(lines: Sequence[str], count: int = 8) -> str:
    """Return the last lines of a runner's output for an error message. They probably explain the failure."""
    relevant = [line.strip() for line in lines if line.strip() and not line.startswith("Extension modules:")]
    return "\n".join(line[:300] for line in relevant[-count:])
