"""A real capture that can be damaged: a change to one operator spreads to later operators as on the device.

The result is a lowering and a capture like those of a device, so that the comparison gets no other information.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load, save

from qnnsweep.tasks.comparison.evidence import Evidence, captured_value
from qnnsweep.tasks.numerics.dequantize import quantize, undo_layout
from qnnsweep.tasks.numerics.device_run import CHAIN, DeviceRun
from qnnsweep.tasks.numerics.element_use import CapturedValue, Kernels, Value
from qnnsweep.tasks.numerics.introduced import Difference
from qnnsweep.tasks.numerics.replay import Replayed, replay
from qnnsweep.tasks.records import Blob, CapturedMethod, LoweredMethod, Quantization
from qnnsweep.tasks.records.keys import tensor_key
from qnnsweep.tasks.storage.store import Store
from qnnsweep.tasks.toolchain.readback.etdump import tensor

if TYPE_CHECKING:
    from qnnsweep.tasks.toolchain.reference.graph import ReferenceGraph

Array = NDArray[Any]


class ScratchStore(Store):
    """A store in a temporary folder that reads the blobs of another store."""

    def __init__(self, root: Path, base: Store) -> None:
        super().__init__(root)
        self._base = base

    def path(self, blob: Blob) -> Path:
        """Return the path of the blob's file in this store or else in the other store."""
        return super().path(blob) if self.has(blob) else self._base.path(blob)


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """What one damage changes before it spreads."""

    values: Mapping[int, CapturedValue] = field(default_factory=dict[int, CapturedValue])
    """By operator index, the damaged value. If its grid is another one, the lowering has the new grid too."""
    weights: Mapping[str, Array] = field(default_factory=dict[str, Array])
    """By name of a constant of the reference graph, its new value."""
    constants: Mapping[int, Value] = field(default_factory=dict[int, Value])
    """By index of an operator that depends only on constants, its value after the change of `weights`."""


class Scene:
    """The first sample of an undamaged capture, and the values that the host computes from the device's values."""

    def __init__(self, lowered: LoweredMethod, capture: CapturedMethod, store: Store) -> None:
        from qnnsweep.tasks.toolchain.reference.stored_graph import read_graph  # only workers import ExecuTorch

        self.lowered, self.capture, self.store = lowered, capture, store
        self.evidence = Evidence(lowered, capture, store)
        self.sample = self.evidence.samples[0]
        kernels, _ = next(self.evidence.kernels([self.sample]))
        self.kernels: Kernels = kernels
        self.captured = self.evidence.captured_values(self.sample)
        self._conversions = self.evidence.requantized_values(self.sample, kernels.sources, self.captured)
        """The values that readers received on another grid, by the indices of reader and source."""
        self.graph: ReferenceGraph = read_graph(store, lowered.reference_calls, lowered.reference_constants)
        self.outputs: dict[int, int] = {
            encoded["operator"]: position
            for position, encoded in enumerate(self.graph.outputs)
            if isinstance(encoded, dict) and "operator" in encoded
        }
        """The positions of final outputs, by the index of the operator that computes the output."""
        self.on_host: dict[int, Value] = {}
        """The results on the device's own inputs, not rounded."""
        self._values: dict[int, Value] = {}
        self._unrounded: dict[int, Value] = {}
        """The results that clamps read. The device does not round these."""
        self._fused: set[int] = set()
        for index, sources in enumerate(kernels.sources):
            self._add(index, sources)
        reference = partial(self.evidence.reference, self.sample)
        self._replayed: dict[int, Replayed] = replay(
            DeviceRun(kernels, self.captured, self._conversions), lambda *_: False, reference
        )

    def used(self, index: int) -> Array | None:
        """Return which elements of an operator's value some reader uses; None if all are used."""
        return self._replayed[index].used_mask if index in self._replayed else None

    def counted(self, index: int) -> Array:
        """Return the mask of the elements of a captured value that some reader uses."""
        used = self.used(index)
        return np.ones(self.captured[index].elements.shape, np.bool_) if used is None else used

    def real(self, index: int) -> Array:
        """Return a captured value, with the host's result at elements that no reader uses.

        A damage may bring these elements into use. The device's error at these elements is no error of the device.
        """
        captured, used, on_host = self.captured[index], self.used(index), self.on_host.get(index)
        if used is None or not isinstance(on_host, np.ndarray):
            return captured.dequantized()
        return np.where(used, captured.dequantized(), requantized(on_host, captured).dequantized())

    def weight_names(self, index: int) -> list[str]:
        """Return the names of the quantized weights that an operator reads, possibly through other constants."""
        names: list[str] = []
        constants = [source for source in self.kernels.sources[index] if source in self.kernels.constants]
        for source in constants:
            call = self.graph.calls[source]
            first = call.arguments[0] if call.arguments else None
            if ".dequantize_" in call.target and isinstance(first, dict) and "constant" in first:
                names.append(first["constant"])
            names += self.weight_names(source)
        return names

    def with_weight(self, name: str, codes: Array) -> Change:
        """Return the change of a constant of the reference graph, with the constants that depend on it."""
        import torch

        graph = self._graph_with({name: codes})
        before: dict[int, Any] = {}
        after: dict[int, Any] = {}
        with torch.no_grad():
            for index in graph.constant_calls:
                before[index], after[index] = (
                    of.call(index, values, ()) for of, values in ((self.graph, before), (graph, after))
                )
        changed = {index: value.numpy() for index, value in after.items() if not torch.equal(value, before[index])}
        return Change(weights={name: codes}, constants=changed)

    def spread(self, change: Change) -> dict[int, CapturedValue]:
        """Return the captured values after a change: those of the damaged operators, and of operators that depend on
        them.

        The device's error of a dependent operator is kept, in quantized values: its value changes by the same amount as
        the result of its reference operator. The device's error is not kept at elements that were unused, because it is
        no error of the device, but the change may bring them into use. For the same reason, an index that selected one
        of several equal elements is replaced once these are not equal any more.
        """
        after: dict[int, Value] = dict(change.constants)
        unrounded: dict[int, Value] = {}
        changed: dict[int, CapturedValue] = {}
        for index, sources in enumerate(self.kernels.sources):
            original = self.captured.get(index)
            if index in change.values:
                assert original is not None, "only a captured operator can be damaged"
                changed[index] = change.values[index]
                after[index] = _single(changed[index].dequantized())
                if index in self._unrounded:
                    unrounded[index] = self._unrounded[index] + (after[index] - _single(self.real(index)))
                continue
            if index in self.kernels.constants or not any(source in after for source in sources):
                continue
            fused = index in self._fused
            received = self._received(index, changed)
            values = ChainMap(received, *((unrounded, after, self._unrounded) if fused else (after,)), self._values)
            on_host = self.kernels.call(index, values)
            if on_host is None:
                continue
            if original is None or not isinstance(on_host, np.ndarray):
                after[index] = on_host
                continue
            if index in self._unrounded:
                unrounded[index] = on_host
            moved = _moved(original, self.on_host[index], on_host)
            changed[index] = replace(moved, elements=self._corrected(index, moved, on_host, values))
            after[index] = _single(changed[index].dequantized())
        return changed

    def spreads(self, index: int, changed: Mapping[int, CapturedValue]) -> bool:
        """Return whether the damage of operator `index` changes a final output, or a used element of another value."""
        return index in self.outputs or any(
            bool((value.elements != self.captured[other].elements)[self.counted(other)].any())
            for other, value in changed.items()
            if other != index
        )

    def undoes(self, index: int, changed: Mapping[int, CapturedValue]) -> bool:
        """Return whether a change brings a value nearer to the host's result from inputs that were not rounded.

        Such a change undoes an error of one of the operators before this one. The values then say that the log of that
        operator is wrong.
        """
        counted = self.counted(index)
        for depth in range(1, CHAIN + 1):
            right = self._from_unrounded(index, depth)
            if not isinstance(right, np.ndarray) or right.dtype.kind != "f":
                return False
            after, before = (
                float(np.square(value.dequantized().astype(np.float64) - right)[counted].sum())
                for value in (changed[index], self.captured[index])
            )
            if after < before:
                return True
        return False

    def _from_unrounded(self, index: int, depth: int) -> Value | None:
        """Return an operator's result from the unrounded results of the operators before it, `depth` deep."""
        unrounded: dict[int, Value] = {}
        for source in self.kernels.sources[index]:
            if source in self.on_host:
                result = self._from_unrounded(source, depth - 1) if depth > 1 else self.on_host[source]
                unrounded |= {} if result is None else {source: result}
        return self.kernels.call(index, ChainMap(unrounded, self._values))

    def written(
        self, change: Change, changed: Mapping[int, CapturedValue], store: Store
    ) -> tuple[LoweredMethod, CapturedMethod]:
        """Return the lowering and the capture after a change. Their new blobs are in `store`."""
        grids = {
            index: value.qparams
            for index, value in change.values.items()
            if value.qparams is not None and value.qparams != self.captured[index].qparams
        }
        lowered = self._with_grids(grids) if grids else self.lowered
        if change.weights:
            lowered = self._with_weights(lowered, change.weights, store)
        capture = replace(
            self.capture,
            debug=(
                replace(self.capture.debug[0], buffer=store.put_bytes(self._debug_buffer(changed))),
                *self.capture.debug[1:],
            ),
            outputs=store.put_bytes(save(self._final_outputs(changed))),
        )
        return lowered, capture

    def _add(self, index: int, sources: Any) -> None:
        original = self.captured.get(index)
        received = self._received(index, {})
        on_host = self.kernels.call(index, ChainMap(received, self._values))
        if on_host is None:
            if original is not None:
                self._values[index] = _single(original.dequantized())
            return
        if original is not None and isinstance(on_host, np.ndarray):
            if any(source in self._unrounded for source in sources):
                merged = self.kernels.call(index, ChainMap(received, self._unrounded, self._values))
                assert isinstance(merged, np.ndarray), "the same call"
                scatters = [Difference.between(original, result).scatter for result in (merged, on_host)]
                if scatters[0] <= scatters[1]:
                    on_host = merged
                    self._fused.add(index)
            if index in self.kernels.clamped:
                self._unrounded[index] = on_host
        self.on_host[index] = on_host
        self._values[index] = on_host if original is None else _single(original.dequantized())

    def _received(self, index: int, changed: Mapping[int, CapturedValue]) -> dict[int, Value]:
        """Return the values that an operator receives on another grid, by source, after a change of the sources."""
        return {
            source: _single(self._converted(self._conversions[index, source], source, changed).dequantized())
            for source in self.kernels.sources[index]
            if (index, source) in self._conversions
        }

    def _converted(self, conversion: CapturedValue, source: int, changed: Mapping[int, CapturedValue]) -> CapturedValue:
        if source not in changed:
            return conversion
        return _moved(conversion, self.captured[source].dequantized(), changed[source].dequantized())

    def _corrected(self, index: int, moved: CapturedValue, on_host: Array, values: Mapping[int, Value]) -> Array:
        """Return the elements of an operator's changed value, with the host's result where the old value was no error.

        `on_host`: the host's result from the changed `values`, not rounded.
        """
        elements, original, right = moved.elements, self.captured[index], requantized(on_host, moved).elements
        used = self.used(index)
        if used is not None:
            elements = np.where(used, elements, right)
        picked = self.kernels.picked(index, original.elements, values) if on_host.dtype.kind in "iu" else None
        if picked is not None:
            equal = picked == self.kernels.picked(index, on_host, values)
            elements = np.where(equal, original.elements, right)
        return elements

    def _with_grids(self, grids: Mapping[int, Quantization]) -> LoweredMethod:
        logged = self.evidence.logged_operators(self.sample)
        expected = {logged[index].match.expected.identifier: qparams for index, qparams in grids.items()}
        return replace(
            self.lowered,
            operators=tuple(
                replace(operator, quantization=grids.get(operator.index, operator.quantization))
                for operator in self.lowered.operators
            ),
            expected_tensors=tuple(
                replace(item, quantization=expected.get(item.identifier, item.quantization))
                for item in self.lowered.expected_tensors
            ),
        )

    def _with_weights(self, lowered: LoweredMethod, weights: Mapping[str, Array], store: Store) -> LoweredMethod:
        """Return the lowering of a graph with other constants, with the graph's own run on the first sample."""
        import torch

        from qnnsweep.tasks.toolchain.tensors import put_tensors, read_samples

        graph = self._graph_with(weights)
        exported = lowered.quantized.exported
        (inputs,) = read_samples(self.store, exported.evaluation, [spec.name for spec in exported.inputs], 1)
        with torch.no_grad():
            answer, values = graph.walk(inputs), graph.tensors(inputs)
        blobs = [*lowered.reference]
        number = [choice.sample for choice in lowered.chosen].index(self.sample)
        reference = load(self.store.read(blobs[number]))
        reference |= {
            key: values[index].numpy()
            for index in range(len(graph.calls))
            if (key := tensor_key(self.sample, index)) in reference
        }
        blobs[number] = store.put_bytes(save({key: np.ascontiguousarray(value) for key, value in reference.items()}))
        outputs = load(self.store.read(lowered.outputs_edge))
        outputs |= {tensor_key(self.sample, position): output.numpy() for position, output in enumerate(answer)}
        return replace(
            lowered,
            reference_constants=put_tensors(store, graph.constants),
            reference=tuple(blobs),
            outputs_edge=store.put_bytes(save({key: np.ascontiguousarray(value) for key, value in outputs.items()})),
        )

    def _graph_with(self, constants: Mapping[str, Array]) -> ReferenceGraph:
        import torch

        from qnnsweep.tasks.toolchain.reference.graph import ReferenceGraph

        changed = {name: torch.from_numpy(value) for name, value in constants.items()}
        return ReferenceGraph(self.graph.calls, self.graph.outputs, {**self.graph.constants, **changed})

    def _debug_buffer(self, changed: Mapping[int, CapturedValue]) -> bytes:
        buffer = np.frombuffer(self.store.read(self.capture.debug[0].buffer), np.uint8).copy()
        logged = self.evidence.logged_operators(self.sample)
        for index, captured in changed.items():
            match = logged[index].match
            elements = tensor(match.event, buffer)
            elements.flags.writeable = True
            undo_layout(elements, match.expected.axis_order)[...] = captured.elements
        for record, _, conversion in self.evidence.requantized(self.sample):
            value = None if conversion is None else captured_value(record.operator, conversion)
            if conversion is None or value is None or record.source not in changed:
                continue
            elements = tensor(conversion.match.event, buffer)
            elements.flags.writeable = True
            order = conversion.match.expected.axis_order
            undo_layout(elements, order)[...] = self._converted(value, record.source, changed).elements
        return buffer.tobytes()

    def _final_outputs(self, changed: Mapping[int, CapturedValue]) -> dict[str, Array]:
        """Return the device's final outputs of all samples, those of the first sample after the change."""
        outputs = load(self.store.read(self.capture.outputs))
        for index, position in self.outputs.items():
            if index not in changed:
                continue
            key = tensor_key(self.sample, position)
            before, after = (value.dequantized() for value in (self.captured[index], changed[index]))
            output = outputs[key]
            moved = output + (after - before) if output.dtype.kind == "f" else np.where(after == before, output, after)
            outputs[key] = np.ascontiguousarray(moved.reshape(output.shape).astype(output.dtype))
        return outputs


def regridded(scene: Scene, index: int, qparams: Quantization) -> CapturedValue:
    """Return an operator's value on another grid. The device's own error, in steps, is kept."""
    captured, on_host = scene.captured[index], scene.on_host[index]
    assert captured.qparams is not None, "a value with a grid"
    assert isinstance(on_host, np.ndarray), "a captured value"
    own_steps = np.clip(captured.elements - quantize(on_host, captured.qparams), -1, 1)
    codes = np.clip(quantize(on_host, qparams) + own_steps, qparams.quant_min, qparams.quant_max)
    return CapturedValue(elements=codes.astype(captured.elements.dtype), qparams=qparams)


def requantized(real: Array, like: CapturedValue) -> CapturedValue:
    """Return `real` as a device with the same grid would log it."""
    elements = real if like.qparams is None else quantize(real, like.qparams)
    return replace(like, elements=np.ascontiguousarray(elements.astype(like.elements.dtype)))


def _single(real: Array) -> Array:
    return real.astype(np.float32) if real.dtype == np.float64 else real


def _moved(original: CapturedValue, before: Value, after: Array) -> CapturedValue:
    assert isinstance(before, np.ndarray), "the same call"
    if original.qparams is not None:
        steps = quantize(after, original.qparams) - quantize(before, original.qparams)
        elements = np.clip(original.elements + steps, original.qparams.quant_min, original.qparams.quant_max)
    elif before.dtype.kind == "f":
        elements = original.elements + (after - before)
    else:
        elements = np.where(after == before, original.elements, after)
    return replace(original, elements=elements.astype(original.elements.dtype))
