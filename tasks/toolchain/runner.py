"""qnnsweep's runner, with the command line and the files of ExecuTorch's `qnn_executor_runner`.

It is copied to devices as a single file and started there as a program, so it imports nothing of qnnsweep.

With `--plan_path`, it runs sequences of steps whose outputs are inputs of later steps. A plan is a JSON object:

- `links`: The output `output` of `method` changes the input `input` of `to_method`, both by position, as `update` says
  (`replace`, `append`, `ring`, `shift`), along `axis`.
- `tokens`: for a `method`, `output`, the position of the scores, and `input`, the position of the input that gets the
  token of the step before. Both can be null.
- `sequences`: per sequence, a list of steps. A step has a `method`, and per input the file with its value, or null for
  a state or a token. `keep` is the number of new columns that count, or null for all. `dump` says whether the inputs of
  the step are written to `inputs_<sequence>_<step>_<index>.raw`.
"""

import argparse
import importlib.util
import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol

Arrays = Sequence[Any]
"""NumPy arrays, in the order of the inputs or the outputs of a method."""

# The dtypes of NumPy, by their numbers in ExecuTorch's ScalarType (schema/scalar_type.fbs).
SCALAR_TYPES = {
    0: "uint8", 1: "int8", 2: "int16", 3: "int32", 4: "int64", 5: "float16", 6: "float32", 7: "float64", 11: "bool",
    27: "uint16", 28: "uint32", 29: "uint64",
}  # fmt: skip


class Program(Protocol):
    """A program in a runtime. Arrays are NumPy arrays."""

    def __init__(self, arguments: argparse.Namespace) -> None: ...

    def methods(self) -> list[str]:
        """Return the names of the methods, in the order of the program."""
        ...

    def inputs(self, method: str) -> Sequence[tuple[str, tuple[int, ...]]]:
        """Return the dtype and the shape of each input of a method."""
        ...

    def prepared(self, method: str, inputs: Arrays) -> Callable[[], Any]:
        """Return a function that runs a method once on `inputs`."""
        ...

    def arrays(self, answer: Any) -> Arrays:
        """Return the outputs of an inference. `answer`: what the function of `prepared` returned."""
        ...

    def expect(self, method: str, samples: Iterable[Arrays]) -> None:
        """Get to know the inputs of all inferences of a method, before the first one."""
        ...

    def mean_ms(self, measured_ms: float, /) -> float | None:
        """Return the time of an inference on the device, which took `measured_ms` here; None if it is not known."""
        ...

    def write_log(self) -> None:
        """Write the times and the logged tensors of all inferences."""
        ...


class ExecutorchProgram:
    """A program in ExecuTorch's runtime."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        reexec_with_qnn()
        import executorch.kernels.quantized  # noqa: F401 - registers the quantize and dequantize kernels
        import torch  # noqa: F401 - its libraries must be loaded before the runtime's

        # `portable_lib` is avoided: to get one warning class, it imports all of ExecuTorch's compiler, which takes 4 s.
        from executorch.extension.pybindings import _C

        self._arguments = arguments
        self._runtime = _C
        self._module = _C._load_for_executorch(
            arguments.model_path,
            enable_etdump=True,
            debug_buffer_size=arguments.debug_buffer_size if arguments.dump_intermediate_outputs else 0,
        )

    def methods(self) -> list[str]:
        names: list[str] = self._module.method_names()
        if len(names) == 1:
            return names
        # The module names its methods in no order; only the program has the order.
        program = self._runtime._load_program(self._arguments.model_path)
        return [program.get_method_name(index) for index in range(len(names))]

    def inputs(self, method: str) -> Sequence[tuple[str, tuple[int, ...]]]:
        meta = self._module.method_meta(method)
        tensors = [meta.input_tensor_meta(index) for index in range(meta.num_inputs())]
        return [(SCALAR_TYPES[tensor.dtype()], tuple(tensor.sizes())) for tensor in tensors]

    def prepared(self, method: str, inputs: Arrays) -> Callable[[], Any]:
        import torch

        tensors = [torch.from_numpy(array) for array in inputs]
        return lambda: self._module.run_method(method, tensors)

    def arrays(self, answer: Any) -> Arrays:
        return [tensor.contiguous().numpy() for tensor in answer]

    def expect(self, method: str, samples: Iterable[Arrays]) -> None:
        """Nothing is done before the first inference."""

    def mean_ms(self, measured_ms: float, /) -> float | None:
        return measured_ms

    def write_log(self) -> None:
        arguments = self._arguments
        debug_output = arguments.debug_output_path if arguments.dump_intermediate_outputs else ""
        self._module.write_etdump_result_to_file(arguments.etdump_path, debug_output)


def main(load: type[Program] = ExecutorchProgram) -> int:
    """Run the program on every line of the input list. Return 0. After an error, write it to stderr and return 1."""
    arguments = parse(sys.argv[1:])
    model = Path(arguments.model_path)
    listed = Path(arguments.input_list_path)
    outputs = Path(arguments.output_folder_path)
    # These checks are first because the imports of a runtime take seconds.
    if not model.is_file():
        return fail(f"no program at {model}")
    plan = None if arguments.plan_path is None else Path(arguments.plan_path)
    if plan is not None and not plan.is_file():
        return fail(f"no plan at {plan}")
    if plan is None and not listed.is_file():
        return fail(f"no input list at {listed}")
    if not outputs.is_dir():
        return fail(f"no output folder at {outputs}")

    program = load(arguments)
    say(f"Model file {model} is loaded.")
    if plan is not None:
        return run_plan(plan_of(plan.read_text()), program, arguments, outputs)
    names = program.methods()
    if not 0 <= arguments.method_index < len(names):
        return fail(f"Method index {arguments.method_index} is too large: the program has {len(names)} methods")
    method = names[arguments.method_index]
    specs = program.inputs(method)
    elapsed_ms: list[float] = []
    lines = [line.split(" ") for line in listed.read_text().splitlines() if line.strip()]
    for files in lines:
        if len(files) != len(specs):
            return fail(f"Number of inputs ({len(specs)}) mismatch with input files ({len(files)})")

    def read(files: Sequence[str]) -> Arrays:
        return [array_from(Path(file), *spec) for file, spec in zip(files, specs, strict=True)]

    program.expect(method, map(read, lines))
    for number, files in enumerate(lines):
        answer = run(program, method, read(files), arguments, elapsed_ms)
        for index, array in enumerate(answer):
            Path(outputs, f"output_{number}_{index}.raw").write_bytes(array.tobytes())
    finish(program, arguments, elapsed_ms)
    return 0


def run(
    program: Program, method: str, inputs: Arrays, arguments: argparse.Namespace, elapsed_ms: list[float]
) -> Arrays:
    """Run a method, after its warm-ups, and return its last outputs. Print the time, and append it to `elapsed_ms`.

    A time that is not known is left out.
    """
    infer = program.prepared(method, inputs)
    for _ in range(arguments.warm_up):
        infer()
    answer: Any = ()
    before = time.perf_counter()
    for _ in range(arguments.iteration):
        answer = infer()
    mean_ms = program.mean_ms((time.perf_counter() - before) * 1000.0 / arguments.iteration)
    if mean_ms is not None:
        elapsed_ms.append(mean_ms * arguments.iteration)
        say(f"{arguments.iteration} inference took {elapsed_ms[-1]:f} ms, avg {mean_ms:f} ms")
    return program.arrays(answer)


def finish(program: Program, arguments: argparse.Namespace, elapsed_ms: list[float]) -> None:
    """Print the mean time, and write the program's log and its logged tensors."""
    if elapsed_ms:
        average_ms = sum(elapsed_ms) / len(elapsed_ms)
        say(f"Total {len(elapsed_ms)} inference took {sum(elapsed_ms):f} ms, avg {average_ms:f} ms")
        Path(arguments.performance_output_path).write_text(f"{average_ms:g}")
    program.write_log()


def plan_of(text: str) -> Any:
    """Return the plan in a JSON text. Its objects have their keys as attributes, like the records of a plan."""
    return json.loads(text, object_hook=lambda fields: SimpleNamespace(**fields))


def run_plan(plan: Any, program: Program, arguments: argparse.Namespace, outputs: Path) -> int:
    """Run every step of a plan, and write the outputs of each step to `output_<sequence>_<step>_<index>.raw`."""
    import numpy as np

    elapsed_ms: list[float] = []
    specs = {method: program.inputs(method) for method in program.methods()}

    def read(method: str, index: int, file: str | None) -> Any:
        dtype, shape = specs[method][index]
        return np.zeros(shape, dtype) if file is None else array_from(Path(file), dtype, shape)

    def call(place: tuple[int, int], step: Any, inputs: Arrays) -> Arrays:
        if step.dump:
            for index, array in enumerate(inputs):
                Path("inputs_{}_{}_{}.raw".format(*place, index)).write_bytes(array.tobytes())
        arrays = run(program, step.method, inputs, arguments, elapsed_ms)
        for index, array in enumerate(arrays):
            Path(outputs, "output_{}_{}_{}.raw".format(*place, index)).write_bytes(array.tobytes())
        return arrays

    for _ in steps_of(plan, read, call):
        pass
    finish(program, arguments, elapsed_ms)
    return 0


def steps_of(
    plan: Any, read: Callable[[str, int, str | None], Any], call: Callable[[tuple[int, int], Any, Arrays], Arrays]
) -> Iterator[tuple[tuple[int, int], Arrays, Arrays, int | None]]:
    """Run a plan. Yield, per step, its sequence and number, its inputs, its outputs, and the token that it chooses.

    `plan`: see `plan_of`; what concerns the outputs of a step is read after the step.
    `read`: returns the value of an input of a method, by its position, from what the plan has for it; for None, zeros.
    `call`: returns the outputs of a step.
    """
    for number, sequence in enumerate(plan.sequences):
        states: dict[tuple[str, int], Any] = {}
        written: dict[tuple[str, int], int] = {}
        token: int | None = None
        for position, step in enumerate(sequence):
            method, of_token = step.method, token_position(plan, step.method, "input")
            inputs = []
            for index, fixed in enumerate(step.inputs):
                if fixed is not None or (method, index) not in states:
                    value = read(method, index, fixed)
                    if fixed is None and index == of_token and token is not None:
                        value[...] = token
                    states[method, index] = value
                inputs.append(states[method, index])
            if of_token is not None:
                del states[method, of_token]  # the next step reads another token
            outputs = call((number, position), step, inputs)
            scores = token_position(plan, method, "output")
            token = None if scores is None else chosen(outputs[scores], step.keep)
            for link in plan.links:
                if link.method == method:
                    key = link.to_method, link.input
                    old = states[key].copy() if key in states else read(*key, None)
                    new, at = outputs[link.output], written.get(key, 0)
                    states[key] = changed(old, new, link.update, link.axis, at, step.keep)
                    written[key] = at + (new.shape[link.axis] if step.keep is None else step.keep)
            yield (number, position), inputs, outputs, token


def token_position(plan: Any, method: str, side: str) -> int | None:
    """Return the position of a method's `input` that gets a token, or of its `output` with scores; None without one."""
    return next((getattr(rule, side) for rule in plan.tokens if rule.method == method), None)


def chosen(scores: Any, keep: int | None) -> int:
    """Return the index of the highest score in the last row that counts."""
    rows = scores.reshape(-1, scores.shape[-1])
    return int(rows[(len(rows) if keep is None else keep) - 1].argmax())


def changed(old: Any, new: Any, update: str, axis: int, at: int, keep: int | None) -> Any:
    """Return a state after an update. `at`: the number of columns that earlier steps have written.

    Columns after the end of an appended state are left out: the step that would read them has no place for them either.
    """
    import numpy as np

    if update == "replace":
        return new.reshape(old.shape).copy()
    columns = new.shape[axis] if keep is None else keep
    new, size = new.take(range(columns), axis), old.shape[axis]
    if update == "shift":
        return np.concatenate([old, new], axis).take(range(columns, columns + size), axis)
    positions = [(at + column) % size if update == "ring" else at + column for column in range(columns)]
    fitting = [column for column, place in enumerate(positions) if place < size]
    if fitting:
        index: list[Any] = [slice(None)] * old.ndim
        index[axis] = [positions[column] for column in fitting]
        old[tuple(index)] = new.take(fitting, axis)
    return old


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
    parser.add_argument("--plan_path", help="steps whose outputs are inputs of later steps; see above")
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


def array_from(file: Path, dtype: str, shape: tuple[int, ...]) -> Any:
    """Return a file's content as the array of an input. Exit with 1 if the file is missing or its size is wrong."""
    import numpy as np

    if not file.is_file():
        sys.exit(fail(f"no input at {file}"))
    data = bytearray(file.read_bytes())
    expected = math.prod(shape) * np.dtype(dtype).itemsize
    if len(data) != expected:
        sys.exit(fail(f"Input {file} size mismatch. file bytes: {len(data)}, tensor bytes: {expected}"))
    return np.frombuffer(data, dtype).reshape(shape)


def say(text: str) -> None:
    print(f"I executorch:qnnsweep_runner.py] {text}", flush=True)


def fail(text: str) -> int:
    print(f"E executorch:qnnsweep_runner.py] {text}", file=sys.stderr, flush=True)
    return 1


if __name__ == "__main__":
    sys.exit(main())
