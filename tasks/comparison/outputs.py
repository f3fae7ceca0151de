"""The comparison of the final outputs: of every rung with eager PyTorch, and of each rung with the previous rung."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any

from numpy.typing import NDArray
from safetensors.numpy import load

from qnnsweep.tasks.comparison.evidence import debug_outputs, device_outputs
from qnnsweep.tasks.comparison.metrics import Pair, metric_template
from qnnsweep.tasks.numerics.metrics import top1
from qnnsweep.tasks.numerics.noise import lowest_snr
from qnnsweep.tasks.numerics.operators import Compared, compare_values
from qnnsweep.tasks.numerics.output_measures import Measures, channel_means, measures
from qnnsweep.tasks.records import Blob, CapturedMethod, ExportedMethod, LoweredMethod, OutputComparison
from qnnsweep.tasks.records.keys import tensor_key
from qnnsweep.tasks.records.vocabulary import COMPARED, PREVIOUS_RUNG, RUNGS, Difference, Rung
from qnnsweep.tasks.storage.store import Store

Tensors = Mapping[str, NDArray[Any]]
"""Tensors by the key `<sample>/<output index>`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FinalOutputs:
    """The final outputs of one cell for all evaluation samples, rung by rung."""

    exported: ExportedMethod
    eager: Tensors
    rungs: Mapping[Rung, Tensors]  # without the rungs that the host cannot compute
    debug: Tensors | None  # of the debug program, for the captured samples
    notes: Mapping[Rung, str]  # per rung, why the host cannot compute it, or what its outputs are
    diverged: frozenset[int] = frozenset()  # the samples for which the device read other tokens than eager PyTorch

    @classmethod
    def of(
        cls, lowered: LoweredMethod, capture: CapturedMethod, store: Store, diverged: frozenset[int] = frozenset()
    ) -> "FinalOutputs":
        """Read the final outputs of all rungs."""
        exported = lowered.quantized.exported
        blobs: dict[Rung, Blob | None] = {
            "exported": exported.outputs_exported,
            "lowered": lowered.outputs_lowered,
            "edge": lowered.outputs_edge,
            "designed": lowered.outputs_designed,
            "quantized": lowered.quantized.outputs_quantized,
        }
        notes: dict[Rung, str | None] = {"lowered": lowered.lowered_note, "designed": lowered.designed_unavailable}
        rungs: dict[Rung, Tensors] = {rung: load(store.read(blob)) for rung, blob in blobs.items() if blob is not None}
        return cls(
            exported=exported,
            eager=load(store.read(exported.outputs_eager)),
            rungs={**rungs, "device": device_outputs(lowered, capture.outputs, store)},
            debug=debug_outputs(lowered, capture, store) if capture.debug else None,
            notes={rung: note for rung, note in notes.items() if note is not None},
            diverged=diverged,
        )

    @property
    def design(self) -> Tensors | None:
        """The outputs of the device's design: of the rung designed, otherwise of the nearest rung that rounds."""
        return self.rungs.get("designed", self.rungs.get("quantized"))

    def compare(self, classifier: bool) -> Iterator[OutputComparison]:
        """Yield one row per rung, sample and output. `classifier`: whether the largest element is the answer."""
        exported = self.exported
        means = [self._channel_means(index) for index in range(len(exported.outputs))]
        for rung, sample, index in product(RUNGS, range(len(exported.sample_names)), range(len(exported.outputs))):
            key, previous = tensor_key(sample, index), PREVIOUS_RUNG.get(rung)
            eager, actual = self.eager[key], self._output(rung, key)
            compared, from_previous = self._compared(actual, eager), None
            if rung == "device" and sample in self.diverged:
                compared = from_previous = Compared(status="diverged")
            elif previous is not None:
                from_previous = self._compared(actual, self._output(previous, key))
            measured = Measures()
            if actual is not None and compared.status in COMPARED:
                measured = measures(actual, eager, means[index])
            has_top1 = classifier and eager.size == eager.shape[-1] if eager.ndim else False
            yield OutputComparison(
                rung=rung,
                sample=sample,
                sample_name=exported.sample_names[sample],
                output_index=index,
                output=exported.outputs[index].name,
                shape=tuple(eager.shape if actual is None else actual.shape),
                status=compared.status,
                why=self.notes.get(rung),
                nonfinite_actual=compared.nonfinite_actual,
                nonfinite_reference=compared.nonfinite_reference,
                gap=compared.gap,
                previous_rung=previous,
                previous_status=from_previous.status if from_previous else None,
                previous_snr_db=from_previous.gap.snr_db if from_previous else None,
                label=exported.labels[sample],
                top1_reference=top1(eager) if has_top1 else None,
                top1_actual=top1(actual) if has_top1 and actual is not None else None,
                **asdict(measured),
            )

    def _channel_means(self, output: int) -> NDArray[Any] | None:
        """Return the means of the channels of eager PyTorch's output, over all samples."""
        return channel_means(
            [self.eager[tensor_key(sample, output)] for sample in range(len(self.exported.sample_names))]
        )

    def pairs(self) -> Iterator[Pair]:
        """Yield every final output of every rung with the output of eager PyTorch, for metrics that are requested."""
        samples, outputs = range(len(self.exported.sample_names)), range(len(self.exported.outputs))
        for rung, sample, index in product(RUNGS, samples, outputs):
            key = tensor_key(sample, index)
            if (actual := self._output(rung, key)) is not None:
                subject = metric_template(None, index, sample, rung, "eager")
                label = self.exported.labels[sample]
                yield Pair(subject=subject, actual=actual, reference=self.eager[key], qparams=None, label=label)

    def observer_effect(self) -> tuple[Difference | None, float | None]:
        """Compare the debug program's final outputs with those of the shipping program: see `lowest_snr`."""
        if self.debug is None:
            return None, None
        shipping = self.rungs["device"]
        compared = [compare_values(output, shipping[key]) for key, output in self.debug.items()]
        return lowest_snr([(output.status, output.gap.snr_db) for output in compared])

    def _output(self, rung: Rung, key: str) -> NDArray[Any] | None:
        return self.rungs[rung][key] if rung in self.rungs else None

    @staticmethod
    def _compared(actual: NDArray[Any] | None, reference: NDArray[Any] | None) -> Compared:
        if actual is None or reference is None:
            return Compared(status="no_value")
        return compare_values(actual, reference)
