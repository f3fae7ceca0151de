"""One side of compare.py, run in a separate process, which prints its time, its memory and its results as JSON.

python benchmarks/compare_side.py {inspector,total,replay,budget} FOLDER
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

if TYPE_CHECKING:
    from qnnsweep.conf.schema import Request
    from qnnsweep.tasks.records import Capture, LoweredMethod, LoweredProgram
    from qnnsweep.tasks.storage.store import Store

MIB = 2**20

Metrics = dict[str, dict[str, float | None]]
"""Maps `<debug handle>/<output index>` to MSE, L1 (a sum) and SNR in dB."""
Prepared = tuple[Callable[[], Any], Callable[[Any], Metrics]]
"""The function that is timed, and the function that reads the metrics from its result."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Inputs:
    """The lowering and the capture that `compare.py` has written."""

    folder: Path
    store: Store
    request: Request

    @classmethod
    def at(cls, folder: Path) -> Inputs:
        from qnnsweep.conf.load import load
        from qnnsweep.tasks.storage.store import Store

        described = json.loads((folder / "request.json").read_text())
        request = load(described["overrides"]).cells[0].request
        return cls(folder=folder, store=Store(Path(described["store"])), request=request)

    def records(self) -> tuple[LoweredProgram, Capture]:
        """Return the records of the cell, with the first launch of the debug program alone: it has one sample."""
        from qnnsweep.tasks.records import Capture, LoweredProgram
        from qnnsweep.tasks.storage.codec import decode

        lowered = decode((self.folder / "lowered.parquet").read_bytes())
        capture = decode((self.folder / "capture.parquet").read_bytes())
        assert isinstance(lowered, LoweredProgram)
        assert isinstance(capture, Capture)
        (captured,) = capture.methods
        return lowered, replace(capture, methods=(replace(captured, debug=captured.debug[:1]),))


def main() -> None:
    side, folder = sys.argv[1], Path(sys.argv[2])
    work, read = SIDES[side](folder)
    gc.collect()
    start = _status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # reset the peak
    wall, cpu = time.perf_counter(), _cpu_seconds()
    answer = work()
    seconds, cpu_seconds = time.perf_counter() - wall, _cpu_seconds() - cpu
    peak = _status("VmHWM")
    figures = {"seconds": seconds, "cpu_seconds": cpu_seconds, "peak_mib": peak, "start_mib": start}
    print(json.dumps({**figures, "imports": asdict(_imports), "operators": read(answer)}))


def _cpu_seconds() -> float:
    """Return the processor time of this process and of its forks that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


@dataclass(slots=True)
class Imports:
    """The time from the start of the process until everything is imported."""

    seconds: float = 0.0
    cpu_seconds: float = 0.0

    def done(self) -> None:
        self.seconds = time.time() - psutil.Process().create_time()
        self.cpu_seconds = time.process_time()


_imports = Imports()


def total(folder: Path) -> Prepared:
    return _qnnsweep(folder, with_replay=False, with_budget=False)


def replay(folder: Path) -> Prepared:
    return _qnnsweep(folder, with_replay=True, with_budget=False)


def budget(folder: Path) -> Prepared:
    return _qnnsweep(folder, with_replay=True, with_budget=True)


def _qnnsweep(folder: Path, *, with_replay: bool, with_budget: bool) -> Prepared:
    """Do what the stage `compare` does in its worker, and read the records. A fork server has imported `preload`."""
    from qnnsweep.tasks.comparison.methods import compare_methods
    from qnnsweep.tasks.records.options import ComparisonOptions

    inputs = Inputs.at(folder)
    _imports.done()
    ask = inputs.request

    def work() -> Any:
        from qnnsweep.tasks.numerics.verdict import of_scheme

        tolerances = of_scheme(ask.tolerance.operators, ask.scheme.name)
        options = ComparisonOptions(
            classifier=ask.model.classifier, tolerances=tolerances, replay=with_replay, budget=with_budget
        )
        return compare_methods(*inputs.records(), options, inputs.store)

    def read(comparison: Any) -> Metrics:
        return {
            f"{row.operator.debug_handle}/{row.operator.output_index}": {
                "mse": row.gap.mse,
                "l1": row.gap.mean_abs * _elements(row.operator.shape),
                "snr_db": row.gap.snr_db,
            }
            for row in comparison.operators
            if row.gap.mse is not None and row.gap.mean_abs is not None
        }

    return work, read


def inspector(folder: Path) -> Prepared:
    """Do what ExecuTorch's `build_executorch_binary` and `qnn_intermediate_debugger_demo.py` do, without the plots.

    They keep the edge program in memory, because the quantization and the layout in the metadata of its nodes are lost
    when it is saved. Here the quantization and the layout are restored from the operator table,
    which was written before.
    """
    from executorch.backends.qualcomm.debugger.qcom_numerical_comparator_base import QcomNumericalComparatorBase
    from executorch.backends.qualcomm.debugger.qcom_numerical_comparator_sample import QcomMSEComparator
    from executorch.backends.qualcomm.debugger.qnn_intermediate_debugger import QNNIntermediateDebugger
    from executorch.devtools.etrecord import parse_etrecord
    from executorch.devtools.inspector.numerical_comparator import L1Comparator, SNRComparator

    class Qcom(QcomNumericalComparatorBase):
        """A metric of ExecuTorch that the Qualcomm backend lacks (L1, SNR), with that backend's preprocessing."""

        def __init__(self, edge_ep: Any, metric: Any) -> None:
            super().__init__(edge_ep)
            self.metric = metric

        def metric_name(self) -> str:
            return type(self.metric).__name__

        def is_valid_score(self, score: float) -> bool:  # noqa: ARG002 - used for plots only
            return True

        def element_compare(self, a: Any, b: Any) -> float:
            return self.metric.element_compare(a, b)

    inputs = Inputs.at(folder)
    _imports.done()
    lowered, capture = (record.methods[0] for record in inputs.records())
    assert lowered.etrecord is not None
    (debug,) = capture.debug
    paths = [str(inputs.store.path(blob)) for blob in (lowered.etrecord, debug.etdump, debug.buffer)]
    etrecord, etdump, debug_buffer = paths
    debugger = QNNIntermediateDebugger(sample_input=None)
    debugger.set_edge_ep(_annotated(parse_etrecord(etrecord).graph_map[debugger.reference_graph_name], lowered))
    debugger.set_etrecord_file_path(etrecord)
    comparators = {
        "mse": debugger.create_comparator(QcomMSEComparator),
        "l1": debugger.create_comparator(Qcom, metric=L1Comparator()),
        "snr_db": debugger.create_comparator(Qcom, metric=SNRComparator()),
    }

    def work() -> Any:
        debugger.setup_inspector(etdump, debug_buffer)
        reference = debugger.reference_graph_name
        return {
            name: debugger.inspector.calculate_numeric_gap(distance=comparator, reference_graph=reference)
            for name, comparator in comparators.items()
        }

    def read(frames: Any) -> Metrics:
        metrics: Metrics = {}
        for name, frame in frames.items():
            for handles, gaps in zip(frame["runtime_debug_handle"], frame["gap"], strict=True):
                (handle,) = handles
                for index, gap in enumerate(gaps):
                    metrics.setdefault(f"{handle}/{index}", {})[name] = gap
        return metrics

    return work, read


def _annotated(program: Any, lowered: LoweredMethod) -> Any:
    """Restore the metadata that is lost when a program is saved."""
    operators = {operator.name: operator for operator in lowered.operators}
    for node in program.graph_module.graph.nodes:
        operator = operators.get(node.name)
        if operator is None:
            continue
        if operator.axis_order is not None:
            node.meta["axis_order"] = operator.axis_order
        if operator.quantization is not None and operator.quantization.axis is None:
            (scale,), (zero_point,) = operator.quantization.scale, operator.quantization.zero_point
            node.meta["quant_attrs"] = {"scale": scale, "zero_point": zero_point}
    return program


def _elements(shape: tuple[int, ...] | None) -> int:
    assert shape is not None, "a compared operator is a tensor"
    elements = 1
    for size in shape:
        elements *= size
    return elements


def _status(name: str) -> float:
    """Return an entry of /proc/self/status in MiB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) / 1024
    raise AssertionError(name)


SIDES = {"inspector": inspector, "total": total, "replay": replay, "budget": budget}

if __name__ == "__main__":
    main()
