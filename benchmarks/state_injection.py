"""How many faults of a model with states are named: python benchmarks/state_injection.py [--count 30] [KIND …].

Every fault is put into a real program or into the loop on the device, and everything is executed in the simulator:

- `column`: a step writes a wrong column into the cache. Named if the step is `introduced` by its states, and every
  later step of the sequence is `inherited`.
- `position`, `mask`, `cache`: a step gets another position, another mask, or a cache without its newest or its oldest
  column. Named if this step has the lowest introduced SNR, and its mistake is this one.
- `weight`: a weight of `decode` alone is damaged. Named if no step of `prefill` is worse than before, some step of
  `decode` is, and the operator with the lowest introduced SNR has the weight.
- `grid`: one method reads or writes a state on another grid. Named if the cell is refused, and the rows of the audit
  that differ are those of this state and of the methods that write it.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from qnnsweep.conf.load import load
from qnnsweep.conf.models import ModelConfig
from qnnsweep.conf.schema import Request
from qnnsweep.flows.cells.graph import comparison_options, lowering_options
from qnnsweep.flows.cells.resources import Resources, prepare
from qnnsweep.tasks.bundle import bundle
from qnnsweep.tasks.compare import compare
from qnnsweep.tasks.errors import ProgramDiffers
from qnnsweep.tasks.export import export
from qnnsweep.tasks.lower import lower
from qnnsweep.tasks.measure import measure
from qnnsweep.tasks.quantize import quantize
from qnnsweep.tasks.records import Bundle, Comparison, LoweredProgram, QuantizedMethod, QuantizedModel, StepComparison

HERE = Path(__file__).parents[1]
sys.path += [str(HERE), str(HERE / "tests" / "toolchain"), str(HERE / "benchmarks")]

_RUN = "        arrays = run(program, step.method, inputs, arguments, elapsed_ms)\n"
SEQUENCES, STEPS = 4, 3
CLEAN_DB = 35.0
"""The least introduced SNR of a step without a fault, in fp16."""
LEAST_DB = 6.0
"""By how much a damaged weight makes the worst step worse."""


Results = list[tuple[str, bool]]
"""Faults in words, and whether they were named."""


class Bench:
    """The model of the tests with random weights. It is lowered once, in fp16, and calibrated once, for 16a8w."""

    def __init__(self, resources: Resources) -> None:
        from tests.toolchain.test_state import MICRO, request_of

        self.resources = resources
        self.tools: dict[str, Any] = {"store": resources.store, "workers": resources.workers}
        self.model: ModelConfig = replace(MICRO, evaluation=replace(MICRO.evaluation, count=SEQUENCES))
        self.ask: Request = request_of(self.model, "fp16")

    @cached_property
    def lowered(self) -> LoweredProgram:
        return self.compiled(self.model)

    @cached_property
    def packed(self) -> Bundle:
        return bundle(self.lowered, self.ask.measure, store=self.resources.store)

    @cached_property
    def clean(self) -> tuple[StepComparison, ...]:
        return self.steps(self.packed, self.lowered)

    @cached_property
    def quantized(self) -> tuple[Request, QuantizedModel]:
        """The request of the model in 16a8w, and the calibrated model."""
        scheme = load(["model=digits_cnn", "scheme=16a8w"]).cells[0].request.scheme
        ask = replace(self.ask, scheme=scheme)
        return ask, quantize(export(self.model, "", **self.tools), scheme, "qnn", **self.tools)

    def compiled(self, model: ModelConfig) -> LoweredProgram:
        quantized = quantize(export(model, "", **self.tools), self.ask.scheme, "qnn", **self.tools)
        return lower(quantized, self.ask.soc, lowering_options(self.ask), **self.tools)

    def compared(self, packed: Bundle, lowered: LoweredProgram) -> Comparison:
        store, farm = self.resources.store, self.resources.farm
        capture = measure(packed, (self.ask.device,), None, store=store, farm=farm)
        return compare(lowered, capture, comparison_options(self.ask), **self.tools)

    def steps(self, packed: Bundle, lowered: LoweredProgram) -> tuple[StepComparison, ...]:
        """Run the shipping program alone, and compare its steps."""
        only = replace(packed, launches=tuple(launch for launch in packed.launches if launch.driven))
        return self.compared(only, lowered).steps

    def with_runner(self, old: str, new: str) -> Bundle:
        """Return the bundle with a changed runner."""
        source = self.resources.store.read(self.packed.runner).decode()
        assert old in source
        runner = self.resources.store.put_bytes(source.replace(old, new).encode())
        blobs = tuple(runner if blob == self.packed.runner else blob for blob in self.packed.blobs)
        return replace(self.packed, runner=runner, blobs=blobs)


def _at(sequence: int, step: int, statement: str) -> str:
    """Return the lines of the runner's loop that run a statement at one step."""
    return f"        if place == ({sequence}, {step}):\n            {statement}\n"


def column(bench: Bench, chance: random.Random) -> Results:
    sequence, step, output = chance.randrange(SEQUENCES), chance.randrange(STEPS - 1), chance.choice((1, 2))
    size = chance.choice((0.1, 0.3, 1.0))
    fault = _at(sequence, step, f"arrays[{output}] = arrays[{output}] + {size}")
    ran = bench.steps(bench.with_runner(_RUN, _RUN + fault), bench.lowered)
    steps = [row for row in ran if row.sample == sequence]
    named = steps[step].origin == "introduced" and (steps[step].state_introduced_snr_db or 0) < CLEAN_DB
    later = all(row.origin == "inherited" for row in steps[step + 1 :])
    earlier = all((row.state_introduced_snr_db or 0) > CLEAN_DB for row in steps[:step])
    return [(f"sequence {sequence}, step {step}, output {output}, by {size}", named and later and earlier)]


def position(bench: Bench, chance: random.Random) -> Results:
    by = chance.choice((-1, 1))
    return _altered(
        bench, chance, "position_later" if by > 0 else "position_earlier", 2, f"value + value.dtype.type({by})"
    )


def mask(bench: Bench, chance: random.Random) -> Results:
    mistake = chance.choice(("sees_no_cache", "sees_everything", "mask_moved"))
    changed = {
        "sees_no_cache": "numpy.where(numpy.arange(value.shape[-1]) < value.shape[-1] - 1, value.min(), value)",
        "sees_everything": "value * 0 + value.max()",
        "mask_moved": "numpy.roll(value, 1, -1)",
    }
    return _altered(bench, chance, mistake, 1, changed[mistake])


def cache(bench: Bench, chance: random.Random) -> Results:
    mistake = chance.choice(("oldest_missing", "cache_empty"))
    earlier = "numpy.concatenate([value[..., 1:], value[..., :1] * 0], -1)"
    changed = {"oldest_missing": earlier, "cache_empty": "value * 0"}[mistake]
    other = changed.replace("value[..., 1:]", "value[:, :, 1:]").replace("value[..., :1]", "value[:, :, :1]")
    return _altered(bench, chance, mistake, 3, changed, other.replace(", -1)", ", 2)"))


def _altered(
    bench: Bench, chance: random.Random, mistake: str, number: int, changed: str, next_one: str = "value"
) -> Results:
    """Change the input with the number `number` of one decode step on the device, and the one after it."""
    sequence, step = chance.randrange(SEQUENCES), chance.randrange(1, STEPS)
    values = f"(lambda value: {changed})(inputs[{number}]), (lambda value: {next_one})(inputs[{number + 1}])"
    statement = f"import numpy; inputs = [*inputs[:{number}], {values}, *inputs[{number + 2}:]]"
    steps = bench.steps(bench.with_runner(_RUN, _at(sequence, step, statement) + _RUN), bench.lowered)
    worst = min(steps, key=_introduced)
    fault = f"sequence {sequence}, step {step}, {mistake}; named {worst.mistake} of step {worst.step}"
    return [(fault, (worst.sample, worst.step, worst.mistake) == (sequence, step, mistake))]


def _introduced(row: StepComparison) -> float:
    """Return the lowest introduced SNR of a step's scores and states."""
    return min(value for value in (row.introduced_snr_db, row.state_introduced_snr_db, 200.0) if value is not None)


def weight(bench: Bench, chance: random.Random) -> Results:
    name = chance.choice(["query", "key", "value", "out", "gate", "up", "down", "head"])
    model = bench.model
    assert model.methods is not None
    arguments: dict[str, Any] = {"damaged": name, "seed": chance.randrange(1000)}
    decode = replace(model.methods[1], factory="state_injection:damaged", arguments={"tokens": 1, **arguments})
    bad = bench.compiled(replace(model, methods=[model.methods[0], decode]))
    methods = (
        replace(right, **{field: getattr(wrong, field) for field in ("debug_programs", "facts")})
        for right, wrong in zip(bench.lowered.methods, bad.methods, strict=True)
    )
    lowered = replace(bench.lowered, program=bad.program, methods=tuple(methods))
    comparison = bench.compared(bundle(lowered, bench.ask.measure, store=bench.resources.store), lowered)
    steps = comparison.steps
    clean = all(_introduced(row) > CLEAN_DB for row in steps if row.method == "prefill")
    before = min(map(_introduced, bench.clean))
    wrong = min(_introduced(row) for row in steps if row.method == "decode") < before - LEAST_DB
    rows = [row for row in comparison.operators if row.parts.introduced_snr_db is not None]
    worst = min(rows, key=lambda row: row.parts.introduced_snr_db or 0.0)
    named = worst.operator.method == "decode" and name in worst.operator.module_path
    fault = f"{name} of decode; named {worst.operator.name} of {worst.operator.module_path}"
    return [(fault, clean and wrong and named)]


def damaged(tokens: int, damaged: str, seed: int) -> torch.nn.Module:
    """Return the model of the tests with one element of one weight changed."""
    from tests.toolchain.state_model import micro_llama

    model = micro_llama(tokens)
    weights = {name: value for name, value in model.named_parameters() if value.ndim == 2}
    weight = next(value for name, value in weights.items() if name.endswith(f"{damaged}.weight"))
    chance = random.Random(seed)  # noqa: S311 - not for cryptography
    row, at = chance.randrange(weight.shape[0]), chance.randrange(weight.shape[1])
    with torch.no_grad():
        weight[row, at] += 8 * weight.abs().max()
    return model


def state_grid(bench: Bench, chance: random.Random) -> Results:
    """Give both states other grids in one program, each in a method and on a side of its own."""
    ask, quantized = bench.quantized
    methods = {str(method.exported.method): method for method in quantized.methods}
    expected: dict[str, set[tuple[str, str]]] = {}
    for name in ("k_0", "v_0"):
        factor = chance.choice((0.5, 0.8, 1.25, 2.0))
        method, reads = chance.choice((("prefill", False), ("decode", False), ("decode", True)))
        methods[method] = _with_grid(bench, methods[method], name, factor, reads=reads)
        # What decode reads is written by both methods.
        writers = ("prefill", "decode") if reads else (method,)
        fault = f"{name} that {method} {'reads' if reads else 'writes'}, its scale times {factor}"
        expected[fault] = {(writer, f"{name} as {name} of decode") for writer in writers}
    try:
        lower(replace(quantized, methods=tuple(methods.values())), ask.soc, lowering_options(ask), **bench.tools)
    except ProgramDiffers as refused:
        differing = {(check.method, check.subject) for check in refused.checks if check.status == "differs"}
        alone = differing == set().union(*expected.values())
        return [(fault, alone and rows <= differing) for fault, rows in expected.items()]
    return [(f"{fault}: not refused", False) for fault in expected]


def _with_grid(bench: Bench, method: QuantizedMethod, name: str, factor: float, *, reads: bool) -> QuantizedMethod:
    """Return a method with another scale of the state that it reads or writes."""
    from qnnsweep.tasks.toolchain.quantize import load_program  # imports the operators that the program has

    program = load_program(bench.resources.store, method.program)
    signature, nodes = program.graph_signature, {node.name: node for node in program.graph.nodes}
    if reads:
        index = [spec.name for spec in method.exported.inputs].index(name)
        quantizing = [*nodes[str([*signature.user_inputs][index])].users]
    else:
        index = [spec.name for spec in method.exported.outputs].index(name)
        quantizing = [*nodes[str([*signature.user_outputs][index])].all_input_nodes]
    for node in quantizing:
        for rounding in (node, *node.users):
            assert "quantize_per_tensor" in str(rounding.target)
            value, scale, *others = rounding.args
            rounding.args = (value, scale * factor, *others)
    with tempfile.NamedTemporaryFile(suffix=".pt2") as file:
        torch.export.save(program, file.name)
        return replace(method, program=bench.resources.store.put_file(Path(file.name)))


KINDS: dict[str, Callable[[Bench, random.Random], Results]] = {
    "column": column,
    "position": position,
    "mask": mask,
    "cache": cache,
    "weight": weight,
    "grid": state_grid,
}


@contextmanager
def _resources() -> Iterator[Resources]:
    with tempfile.TemporaryDirectory() as folder:
        yield prepare(load([f"artifacts={folder}", "limits.parallel=2"]))


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python benchmarks/state_injection.py", description=__doc__)
    parser.add_argument("kinds", nargs="*", choices=[[], *KINDS], default=[])
    parser.add_argument("--count", type=int, default=30)
    options = parser.parse_args(argv)
    with _resources() as resources:
        bench = Bench(resources)
        for kind in options.kinds or KINDS:
            chance, results = random.Random(kind), Results()  # noqa: S311 - not for cryptography
            while len(results) < options.count:
                for fault, is_named in KINDS[kind](bench, chance):
                    results.append((fault, is_named))
                    print(f"{kind}: {'named' if is_named else 'NOT NAMED'}: {fault}", flush=True)
            print(f"{kind}: {sum(is_named for _, is_named in results)} of {len(results)} named", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
