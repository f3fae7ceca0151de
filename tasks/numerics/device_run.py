"""The device's run, operator by operator: what each operator received, and what the host computes from it."""

from collections import ChainMap
from collections.abc import Mapping

import numpy as np

from qnnsweep.tasks.numerics.dequantize import on_grid
from qnnsweep.tasks.numerics.element_use import Array, CapturedValue, Kernels, Value
from qnnsweep.tasks.numerics.introduced import Difference

Requantized = Mapping[tuple[int, int], CapturedValue]
"""The values that readers received on another grid than the producer's, by the indices of reader and producer."""

CHAIN = 3
"""The most operators that a compiler is expected to fuse with a later operator."""


_CLEARLY_LESS = 0.8  # the share of the scatter that is left if a reader is surely merged


class DeviceRun:
    """The values of all operators on the device, and the operators' results on the host from the device's own inputs.

    `values`: per operator, the value that its readers received: the logged value, or the host's if none was logged.
    `on_host`: per captured operator, its result on the device's own inputs, not rounded.
    `spans`: per captured operator, earlier operators whose logged values were not used.
    `unrounded`: the values that merged readers have, by the operators whose logged values were rounded although the
    compiler merged the reader into the operator.
    `received`: the values that readers received on another grid, by the indices of reader and producer.
    """

    def __init__(self, kernels: Kernels, captured: Mapping[int, CapturedValue], requantized: Requantized) -> None:
        self.kernels, self.captured, self.requantized = kernels, captured, requantized
        self.values: dict[int, Value] = {}
        self.on_host: dict[int, Array] = {}
        self._differences: dict[int, Difference] = {}
        self.spans: dict[int, tuple[int, ...]] = {}
        self.unrounded: dict[int, Array] = {}
        self.received: Mapping[tuple[int, int], Value] = {
            pair: np.asarray(value.dequantized(np.float32), np.float32) for pair, value in requantized.items()
        }
        self._readers: dict[int, list[int]] = {}
        uncaptured: dict[int, tuple[int, ...]] = {}
        for index, sources in enumerate(kernels.sources):
            for source in sources:
                self._readers.setdefault(source, []).append(index)
            read = [source for source in sources if (index, source) not in self.received]
            spans = tuple(dict.fromkeys(span for source in read for span in uncaptured.get(source, ())))
            value = captured.get(index)
            if value is None:
                # The kernels have the values of constants.
                if index not in kernels.constants and (result := self.call(index)) is not None:
                    self.values[index] = result
                adds_nothing = index in kernels.constants or index in kernels.data_movement_ops
                uncaptured[index] = spans if adds_nothing else (*spans, index)
                continue
            if index in kernels.getitem_index:  # the value of a getitem is an element of the tuple that it reads
                spans = tuple(span for span in spans if span not in sources)
            self._add(index, value, spans)
        merging = [index for index in self.on_host if self._mergeable_sources(index)]
        while merging:
            # An operator waits for another that it reads and that may be merged too.
            ready = [index for index in merging if not set(merging).intersection(kernels.sources[index])]
            for index in ready:
                self._merge(index)
            merging = [index for index in merging if index not in ready]

    def difference(self, index: int) -> Difference:
        """Return the difference of a captured operator's logged value and `on_host`."""
        if index not in self._differences:
            self._differences[index] = Difference.between(self.captured[index], self.on_host[index])
        return self._differences[index]

    def call(
        self, index: int, instead: Mapping[int, Value] | None = None, *, exact_constants: bool = False
    ) -> Value | None:
        """Compute an operator from the values that it received on the device.

        `instead`: replaces values of other operators, but not logged values that the operator received on another
        grid. Where the device rounds a value without logging the result, the replacement is rounded too.
        `exact_constants`: whether constants are not rounded to float16.
        """
        received = {
            source: self.received_value(index, source, instead or {})
            for source in self.kernels.sources[index]
            if (index, source) in self.received
        }
        values = ChainMap({**(instead or {}), **received}, self.values)
        return self.kernels.call(index, values, exact_constants=exact_constants)

    def received_value(self, index: int, source: int, instead: Mapping[int, Value]) -> Value:
        """Return the value of `source` on the other grid on which operator `index` received it; see `call`."""
        qparams, replacement = self.requantized[index, source].qparams, instead.get(source)
        if self.has_logged_conversion(index, source) or qparams is None or not isinstance(replacement, np.ndarray):
            return self.received[index, source]
        return on_grid(replacement, qparams, dtype=np.float32)

    def has_logged_conversion(self, index: int, source: int) -> bool:
        """Return whether operator `index` received the value of `source` on another grid, and this value was logged."""
        conversion = self.requantized.get((index, source))
        return conversion is not None and not conversion.inferred

    def call_unrounded(self, index: int, depth: int) -> tuple[Value | None, tuple[int, ...]]:
        """Compute an operator from the unrounded results of the operators that it reads, and theirs, `depth` deep.

        A compiler that fuses operators never rounds the values between them, although a debug program logs rounded
        values. Return the result and the operators whose values were not rounded.
        """
        instead: dict[int, Value] = {}
        spans: list[int] = []
        for source in self.kernels.sources[index]:
            value = self.captured.get(source)
            if value is None or value.qparams is None or (index, source) in self.received:
                continue
            result, within = self.call_unrounded(source, depth - 1) if depth > 1 else (self.call(source), ())
            if isinstance(result, np.ndarray):
                instead[source] = result
                spans += [*within, source]
        return self.call(index, instead), tuple(dict.fromkeys(spans))

    def call_on_exact_inputs(self, index: int) -> Value | None:
        """Compute an operator that reads an input of the model as if the device had not rounded this input.

        A compiler may convert an input only after the operators that move its elements, so that the values of these
        operators have no rounding, or only that to their own grid. The device's conversion to float16 may round a value
        up or down.
        """
        received = {
            source: self.received[index, source]
            for source in self.kernels.sources[index]
            if (index, source) in self.received
        }
        return self.kernels.call_on_exact_inputs(index, ChainMap(received, self.values))

    def readers(self, index: int) -> list[int]:
        """Return the operators that read an operator's value."""
        return self._readers.get(index, [])

    def is_fused(self, index: int, spans: Mapping[int, tuple[int, ...]]) -> bool:
        """Return whether an operator's logged value was not used: all readers are computed without it.

        `spans`: per operator, the operators whose logged values were not used. A reader whose own value was not used
        counts as the readers of that value.
        """
        unused = index
        for _ in range(CHAIN):
            if unused in self.kernels.outputs or not self.readers(unused):
                return False
            using = [reader for reader in self.readers(unused) if index not in spans.get(reader, ())]
            if not using:
                return True
            if len(using) > 1:
                return False
            (unused,) = using
        return False

    def differing_picks(self, index: int, difference: Difference) -> Array | None:
        """Return, for an operator whose value is indices, which of them select another element than the right ones.

        Among equal elements, a device may select any. Return None for an operator whose value is no indices.
        """
        picked = self.kernels.picked(index, difference.actual.elements, self.values)
        right = self.kernels.picked(index, difference.expected.elements, self.values)
        if picked is None or right is None:
            return None
        return picked != right

    def _unrounded(self, index: int) -> Array:
        """Return an operator's value without the rounding to its grid, as far as the logged value is the right one."""
        on_host, actual, steps = self.on_host[index], self.values[index], self.difference(index).steps
        assert steps is not None, "a value with a grid"
        assert isinstance(actual, np.ndarray), "a logged value"
        return np.where(np.abs(steps) <= 1, on_host, actual)

    def _add(self, index: int, value: CapturedValue, spans: tuple[int, ...]) -> None:
        with np.errstate(over="ignore"):
            actual = value.dequantized(np.float32)
            self.values[index] = actual = actual.astype(np.float32) if actual.dtype == np.float64 else actual
        result = self.call(index)
        if not isinstance(result, np.ndarray) or result.shape != actual.shape:
            if result is not None:
                shape = result.shape if isinstance(result, np.ndarray) else "of a tuple"
                self.kernels.refusals[index] = f"the host's result has the shape {shape}, and not {actual.shape}"
            return
        self.on_host[index], self.spans[index] = result, spans
        if actual.dtype != result.dtype:
            self.values[index] = value.dequantized(result.dtype).astype(result.dtype)

    def _mergeable_sources(self, index: int) -> list[int]:
        """Return the values that the compiler may have left unrounded, because it merged the operator into theirs.

        These are the values that only clamps read, and the value that a function of one value is computed from,
        element by element, if nothing else reads this value.
        """
        rounded = [
            source
            for source in self.kernels.sources[index]
            if source in self.on_host and self.captured[source].qparams is not None
        ]
        clamped = [source for source in rounded if source in self.kernels.clamped]
        if clamped or index in self.kernels.linear or index in self.kernels.data_movement_ops:
            return clamped
        read = [source for source in self.kernels.sources[index] if source not in self.kernels.constants]
        return [
            source
            for source in rounded
            if read == [source]
            and self.readers(source) == [index]
            and source not in self.kernels.outputs
            and (index, source) not in self.received
            and self.on_host[source].shape == self.on_host[index].shape
        ]

    def _merge(self, index: int) -> None:
        """Replace a result by that from unrounded values, if that explains the device's value better.

        The evidence decides for every pair, because no list of operator types is right for all shapes and releases. A
        clamp is merged in case of doubt, and another operator only if its errors scatter clearly less.
        """
        unrounded = {source: self._unrounded(source) for source in self._mergeable_sources(index)}
        result = self.call(index, unrounded)
        assert isinstance(result, np.ndarray), "the same call"
        difference = self.difference(index)
        merged = Difference.between(self.captured[index], result)
        is_clamp = unrounded.keys() <= self.kernels.clamped
        is_nearer = merged.scatter < _CLEARLY_LESS * difference.scatter
        if is_nearer or (is_clamp and merged.scatter <= difference.scatter):
            self.on_host[index], self._differences[index] = result, merged
            through = (span for source in unrounded for span in (*self.spans[source], source))
            self.spans[index] = tuple(dict.fromkeys((*self.spans[index], *through)))
            self.unrounded |= unrounded
