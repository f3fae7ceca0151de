"""The names that the configuration and the tasks share: stages, reference graphs and metrics."""

from __future__ import annotations

from typing import Literal, get_args

Stage = Literal["export", "quantize", "lower", "bundle", "deploy", "execute", "collect", "measure", "compare"]
STAGES: tuple[Stage, ...] = get_args(Stage)
"""Every stage in the order of the pipeline. Each is the module, the function and the task of its name in `tasks`."""
MEASURE_STEPS: tuple[Stage, ...] = ("deploy", "execute", "collect")
"""The stages that `measure` runs on one device. Its result contains theirs."""
COMPILE_STAGES: tuple[Stage, ...] = ("export", "quantize", "lower")
"""The stages whose worker processes count as toolchain calls. The workers of other stages only run operators again."""
CACHED_STAGES: tuple[Stage, ...] = tuple(stage for stage in STAGES if stage not in MEASURE_STEPS)
"""The stages whose results are stored under a cache key."""
CELL_STAGES: tuple[Stage, ...] = tuple(stage for stage in STAGES if stage != "measure")
"""The stages that a cell's progress consists of: `measure` is shown as its steps."""

OperatorReference = Literal["exported", "quantized", "edge"]
OPERATOR_REFERENCES: tuple[OperatorReference, ...] = get_args(OperatorReference)
"""The graphs that operators can be compared with, in the order of the pipeline: `measure.references` accepts them."""

METRICS = (
    *("mse", "mean_abs", "max_abs", "snr_db", "cosine", "l1", "nmse", "relative_l1", "psnr_db", "sqnr_db"),
    *("max_ulp", "mean_steps", "max_steps"),
)
"""The metrics that `measure.metrics` accepts by name. `tasks.numerics.metrics` computes each of them."""
