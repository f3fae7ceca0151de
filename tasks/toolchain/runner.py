"""qnnsweep's runner for x86_64 hosts, with the command line and the files of ExecuTorch's `qnn_executor_runner`.

It is copied to devices as a single file and started there as a program, so it imports nothing of qnnsweep.
"""

import argparse
import importlib.util
import os
import sys
import time
from pathlib import Path
from typing import Any

# The dtypes that an input can have, by their numbers in ExecuTorch's ScalarType (schema/scalar_type.fbs).
SCALAR_TYPES = {
    0: "uint8", 1: "int8", 2: "int16", 3: "int32", 4: "int64", 5: "float16", 6: "float32", 7: "float64", 11: "bool",
    27: "uint16",
}  # fmt: skip


def main() -> int:
    """Run the program on every line of the input list. Return 0. After an error, write it to stderr and return 1."""
    arguments = parse(sys.argv[1:])
    model = Path(arguments.model_path)
    listed = Path(arguments.input_list_path)
    outputs = Path(arguments.output_folder_path)
    # These checks are first because the imports below take seconds.
    if not model.is_file():
        return fail(f"no program at {model}")
    if not listed.is_file():
        return fail(f"no input list at {listed}")
    if not outputs.is_dir():
        return fail(f"no output folder at {outputs}")

    reexec_with_qnn()
    import executorch.kernels.quantized  # noqa: F401 - registers the quantize and dequantize kernels
    import torch  # noqa: F401 - its libraries must be loaded before the runtime's

    # `portable_lib` is avoided: to get one warning class, it imports all of ExecuTorch's compiler, which takes 4 s.
    from executorch.extension.pybindings import _C

    module = _C._load_for_executorch(
        str(model),
        enable_etdump=True,
        debug_buffer_size=arguments.debug_buffer_size if arguments.dump_intermediate_outputs else 0,
    )
    say(f"Model file {model} is loaded.")
    names = module.method_names()
    if not 0 <= arguments.method_index < len(names):
        return fail(f"Method index {arguments.method_index} is too large: the program has {len(names)} methods")
    # The module names its methods in no order; only the program has the order.
    method = names[0] if len(names) == 1 else _C._load_program(str(model)).get_method_name(arguments.method_index)
    meta = module.method_meta(method)
    elapsed_ms: list[float] = []
    lines = listed.read_text().splitlines()
    for number, line in enumerate(line for line in lines if line.strip()):
        files = line.split(" ")
        if len(files) != meta.num_inputs():
            return fail(f"Number of inputs ({meta.num_inputs()}) mismatch with input files ({len(files)})")
        inputs = [tensor_from(Path(file), meta.input_tensor_meta(index)) for index, file in enumerate(files)]
        for _ in range(arguments.warm_up):
            module.run_method(method, inputs)
        answer: list[Any] = []
        before = time.perf_counter()
        for _ in range(arguments.iteration):
            answer = module.run_method(method, inputs)
        took_ms = (time.perf_counter() - before) * 1000.0
        elapsed_ms.append(took_ms)
        say(f"{arguments.iteration} inference took {took_ms:f} ms, avg {took_ms / arguments.iteration:f} ms")
        for index, tensor in enumerate(answer):
            Path(outputs, f"output_{number}_{index}.raw").write_bytes(tensor.contiguous().numpy().tobytes())
    if elapsed_ms:
        average_ms = sum(elapsed_ms) / len(elapsed_ms)
        say(f"Total {len(elapsed_ms)} inference took {sum(elapsed_ms):f} ms, avg {average_ms:f} ms")
        Path(arguments.performance_output_path).write_text(f"{average_ms:g}")
    debug_output = arguments.debug_output_path if arguments.dump_intermediate_outputs else ""
    module.write_etdump_result_to_file(arguments.etdump_path, debug_output)
    return 0


def reexec_with_qnn() -> None:
    """Restart this process with the wheel's libraries on `LD_LIBRARY_PATH`, unless `QNN_SDK_ROOT` is set.

    The dynamic linker reads `LD_LIBRARY_PATH` only when a process starts.
    """
    if "QNN_SDK_ROOT" in os.environ:
        return
    wheel = importlib.util.find_spec("onnxruntime_qnn")
    if wheel is None or not wheel.submodule_search_locations:
        return
    package = Path(next(iter(wheel.submodule_search_locations)))
    inherited = os.environ.get("LD_LIBRARY_PATH")
    search = [str(package), str(package.with_name("onnxruntime_qnn.libs")), *([inherited] if inherited else [])]
    changes = {"QNN_SDK_ROOT": str(package), "LD_LIBRARY_PATH": os.pathsep.join(search)}
    os.execve(sys.executable, sys.orig_argv, os.environ | changes)  # noqa: S606 - this program


def parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(allow_abbrev=False, description=__doc__)
    parser.add_argument("--model_path", default="model.pte")
    parser.add_argument(
        "--input_list_path", default="input_list.txt", help="one inference per line, one file per input"
    )
    parser.add_argument("--output_folder_path", default="outputs", help="an existing folder for output_<i>_<j>.raw")
    parser.add_argument("--iteration", type=int, default=1)
    parser.add_argument("--warm_up", type=int, default=0)
    parser.add_argument("--etdump_path", default="etdump.etdp")
    parser.add_argument("--dump_intermediate_outputs", type=flag, nargs="?", const=True, default=False)
    parser.add_argument("--debug_output_path", default="debug_output.bin")
    parser.add_argument("--debug_buffer_size", type=int, default=100_000_000)
    parser.add_argument("--performance_output_path", default="inference_speed.txt")
    parser.add_argument("--method_index", type=int, default=0, help="the position of the method in the program")
    # Settings of the HTP driver. They are ignored here; a device and the simulator get the same command line.
    for name in ("log_level", "htp_performance_mode", "profile_level"):
        parser.add_argument(f"--{name}", type=int, default=0)
    parser.add_argument("--shared_buffer", type=flag, nargs="?", const=True, default=False)
    return parser.parse_args(argv)


def flag(word: str) -> bool:
    """Parse a boolean as gflags does: `--name`, `--name=true`, `--name=false`."""
    if word.lower() in ("true", "t", "yes", "y", "1"):
        return True
    if word.lower() in ("false", "f", "no", "n", "0"):
        return False
    raise argparse.ArgumentTypeError(f"{word!r} is neither true nor false")


def tensor_from(file: Path, meta: Any) -> Any:
    """Return a file's content as the tensor of an input. Exit with 1 if the file is missing or its size is wrong."""
    import torch

    if not file.is_file():
        sys.exit(fail(f"no input at {file}"))
    data = bytearray(file.read_bytes())
    if len(data) != meta.nbytes():
        sys.exit(fail(f"Input {file} size mismatch. file bytes: {len(data)}, tensor bytes: {meta.nbytes()}"))
    dtype = getattr(torch, SCALAR_TYPES[meta.dtype()])
    return torch.frombuffer(data, dtype=dtype).reshape(tuple(meta.sizes()))


def say(text: str) -> None:
    print(f"I executorch:qnnsweep_runner.py] {text}", flush=True)


def fail(text: str) -> int:
    print(f"E executorch:qnnsweep_runner.py] {text}", file=sys.stderr, flush=True)
    return 1


if __name__ == "__main__":
    sys.exit(main())
