"""A comparison of the device with the design and with changes of the design, for a 16a8w capture of MiniLM-L6.

Runs in workers. SNRs are of the final output, in dB.
"""

from __future__ import annotations

from collections import ChainMap, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from fixed_point import MATMUL, SOFTMAX, Array, Host, Values, converted, ratio
from safetensors.numpy import load as load_tensors

from qnnsweep.tasks.comparison.evidence import Evidence
from qnnsweep.tasks.numerics.dequantize import dequantize, fake_quantize, quantize
from qnnsweep.tasks.numerics.metrics import snr_db
from qnnsweep.tasks.records import CapturedMethod, LoweredMethod
from qnnsweep.tasks.records.keys import tensor_key
from qnnsweep.tasks.storage.store import Store
from qnnsweep.tasks.toolchain.readback.etdump import read_etdump, tensor
from qnnsweep.tasks.toolchain.reference.stored_graph import read_graph

NOISE_DB = (-60, -80, -100, -120)
SEEDS = 5
SCORE_ADD = "score add"
KINDS = {
    "aten.add.Tensor": "other add",
    "aten.linear.default": "linear",
    MATMUL: "matmul",
    "aten.mul.Tensor": "mul",
    SOFTMAX: "softmax",
    "aten.gelu.default": "gelu",
    "getitem": "layer norm",
}

Scores = list[float | None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Replayed:
    """The device's results minus the host's, on the device's own inputs, for all operators of a kind and all samples.

    `equal` is a share of elements; `largest` and `mean` are in steps. The fields with `htp` are for HTP's arithmetic on
    the host, the others for exact rounding. Of scores, only the unmasked ones in the rows of tokens count.
    """

    operators: int
    elements: int
    equal: float
    largest: float
    mean: float
    equal_htp: float | None
    largest_htp: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class ScoreAddition:
    """An addition of the mask. Only unmasked scores in the rows of tokens count."""

    step: float
    multiplier: float
    """The step of the scores, in steps of the sum, times 2**15."""
    elements: int
    unlike_design: int
    unlike_exact_rounding: int
    """The number of elements that differ from exact rounding on the device's own inputs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Study:
    against_eager: dict[str, Scores]
    against_device: dict[str, Scores]
    noise: dict[str, Scores]
    """The design with noise before the first norm, against the design."""
    alone: dict[str, Scores]
    """The design with the device's own errors of one kind of operators, against the design."""
    replayed: dict[str, Replayed]
    additions: tuple[ScoreAddition, ...]


def study(lowered: LoweredMethod, capture: CapturedMethod, store: Store) -> Study:
    blobs = lowered.quantized.exported.outputs_eager, lowered.outputs_edge, capture.outputs
    eager, edge, device = (load_tensors(store.read(blob)) for blob in blobs)
    against_eager, against_device, noise, alone = (defaultdict[str, Scores](list) for _ in range(4))
    differences = defaultdict[str, list[tuple[int, Array, Array | None]]](list)
    counts: dict[int, np.ndarray] = {}
    grids: dict[int, tuple[float, float]] = {}
    for sample, (host, captured, requantized, live) in enumerate(_samples(lowered, capture, store)):
        key = tensor_key(sample, 0)
        design = host.run()
        for name, outputs in (("edge", edge[key]), ("design", host.answer(design)), ("device", device[key])):
            against_eager[name].append(snr_db(outputs, eager[key]))
        own_errors = _replay(host, captured, requantized, live, differences)
        for name, values in _changes(host, captured, own_errors):
            against_device[name].append(snr_db(host.answer(values), device[key]))
        for name, score in _noise(host, design, sample):
            noise[name].append(score)
        for kind, rows in differences.items():
            added = {index: own_errors[index] for index, *_ in rows}
            alone[kind].append(snr_db(host.answer(host.run(added=added)), host.answer(design)))
        for add in host.score_adds:
            qparams = host.qparams(add)
            unlike = quantize(captured[add], qparams) != quantize(design[add], qparams)
            row = [live.sum(), unlike[live].sum(), (own_errors[add] != 0)[live].sum()]
            counts[add] = counts.get(add, 0) + np.array(row)
            grids[add] = qparams.scale[0], ratio(host.qparams(host.operand(add, 0)), qparams) * 2**15
    return Study(
        against_eager=dict(against_eager),
        against_device=dict(against_device),
        noise=dict(noise),
        alone=dict(alone),
        replayed={kind: _replayed(rows) for kind, rows in differences.items()},
        additions=tuple(
            ScoreAddition(
                step=grids[add][0],
                multiplier=grids[add][1],
                elements=int(row[0]),
                unlike_design=int(row[1]),
                unlike_exact_rounding=int(row[2]),
            )
            for add, row in counts.items()
        ),
    )


def _samples(
    lowered: LoweredMethod, capture: CapturedMethod, store: Store
) -> Iterator[tuple[Host, dict[int, Array], dict[int, Array], Array]]:
    """Yield, per sample: the host, the device's values, its converted operands, and which scores count."""
    (debug,) = capture.debug[:1]
    evidence = Evidence(lowered, capture, store)
    graph = read_graph(store, lowered.reference_calls, lowered.reference_constants)
    tokens = load_tensors(store.read(lowered.quantized.exported.evaluation))
    buffer = np.frombuffer(store.read(debug.buffer), np.uint8)
    grids = {
        row.identifier: row.quantization
        for row in lowered.expected_tensors
        if not row.debug_handles and row.quantization is not None and row.quantization.quant_min < 0
    }
    logged = defaultdict[int, dict[str, Array]](dict)
    for event in read_etdump(store.read(debug.etdump)).tensors:
        if event.delegate_identifier in grids:
            logged[event.run][event.delegate_identifier] = tensor(event, buffer).astype(np.float64)
    samples = debug.samples
    for sample, (kernels, run) in zip(
        samples, zip(evidence.kernels(samples), sorted(logged), strict=True), strict=True
    ):
        host = Host(lowered.operators, graph, kernels, list(grids.values()))
        captured = {index: value.dequantized() for index, value in evidence.captured_values(sample).items()}
        operands = {}
        for (operand, qparams), name in zip(host.requantized.items(), grids, strict=True):
            operands[converted(operand)] = logged[run][name]
            score = snr_db(dequantize(logged[run][name], qparams), captured[operand])
            assert (score or 0) > 60, "the converted operands are logged in graph order"
        sums = captured[host.score_adds[0]]
        mask = np.broadcast_to(captured[host.operand(host.score_adds[0], 1)], sums.shape)
        rows = tokens[tensor_key(sample, "attention_mask")][0] > 0
        yield host, captured, operands, (mask > mask.min() / 2) & rows[None, None, :, None]


def _replay(
    host: Host,
    captured: Mapping[int, Array],
    requantized: Mapping[int, Array],
    live: Array,
    differences: dict[str, list[tuple[int, Array, Array | None]]],
) -> dict[int, Array]:
    """Return, per operator, the device's result minus exact rounding on the device's own inputs, in steps.

    Adds the differences from both arithmetics to `differences`.
    """
    values: Values = {}
    own_errors: dict[int, Array] = {}
    for index in range(len(host.kernels.sources)):
        reads: Mapping[int, Any] = values
        if host.operators[index].target == MATMUL and index not in host.kernels.constants:
            right = host.operand(index, 1)
            operand = dequantize(requantized[converted(right)], host.requantized[right])
            reads = ChainMap({right: operand.astype(np.float32)}, values)
        value = host.kernels.call(index, reads)
        if index in captured:
            actual = captured[index]
            values[index] = actual.astype(np.float32) if actual.dtype.kind == "f" else actual
        elif isinstance(value, np.ndarray) and host.rounds(index, value) and index not in host.kernels.constants:
            values[index] = fake_quantize(value, host.qparams(index)).astype(np.float32)
        else:
            values[index] = value
        if index not in captured or not isinstance(value, np.ndarray) or not host.rounds(index, value):
            continue
        codes = quantize(captured[index], host.qparams(index))
        own_errors[index] = codes - quantize(value, host.qparams(index))
        kind = SCORE_ADD if index in host.score_adds else KINDS.get(host.operators[index].target)
        if kind is not None:
            counted = live if kind in (SCORE_ADD, "softmax") else np.ones_like(codes, bool)
            formula = host.formulas.get(index)
            rest = None if formula is None else codes - formula(ChainMap(values, dict(requantized)))
            differences[kind].append((index, own_errors[index][counted], None if rest is None else rest[counted]))
    return own_errors


def _changes(
    host: Host, captured: Mapping[int, Array], own_errors: Mapping[int, Array]
) -> Iterator[tuple[str, Values]]:
    """Yield the design and changes of the design."""
    adds = host.score_adds
    others = {index: steps for index, steps in own_errors.items() if index not in adds}
    yield "design", host.run()
    yield "HTP's arithmetic: additions of the mask", host.run(formulas=adds)
    yield "HTP's arithmetic: other additions, linear, matmul", host.run(formulas=host.formulas.keys() - adds)
    yield "HTP's arithmetic: all additions, linear, matmul", host.run(formulas=host.formulas)
    yield "the device's own errors: additions of the mask", host.run(added={add: own_errors[add] for add in adds})
    yield "the device's own errors: all other operators", host.run(added=others)
    yield "the device's values: additions of the mask", host.run(replaced={add: captured[add] for add in adds})


def _noise(host: Host, design: Values, sample: int) -> Iterator[tuple[str, float | None]]:
    source = host.operand(host.all_of("aten.native_layer_norm.default")[0], 0)
    value = design[source].astype(np.float64)
    unrounded = host.run(unrounded=host.score_adds)
    for level in NOISE_DB:
        for seed in range(SEEDS):
            noise = np.random.default_rng((sample, seed)).standard_normal(value.shape)
            noisy = {source: value + noise * np.sqrt((value**2).mean()) * 10 ** (level / 20)}
            yield f"{level} dB", snr_db(host.answer(host.run(replaced=noisy)), host.answer(design))
            changed = host.run(replaced=noisy, unrounded=host.score_adds)
            yield f"{level} dB, sums with the mask not rounded", snr_db(host.answer(changed), host.answer(unrounded))


def _replayed(rows: list[tuple[int, Array, Array | None]]) -> Replayed:
    exact = np.concatenate([steps for _, steps, _ in rows])
    rests = [steps for *_, steps in rows if steps is not None]
    rest = np.concatenate(rests) if rests else None
    return Replayed(
        operators=len({index for index, *_ in rows}),
        elements=exact.size,
        equal=float((exact == 0).mean()),
        largest=float(np.abs(exact).max()),
        mean=float(exact.mean()),
        equal_htp=None if rest is None else float((rest == 0).mean()),
        largest_htp=None if rest is None else float(np.abs(rest).max()),
    )
