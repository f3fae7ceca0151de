"""The names that the configuration and the tasks share, and the names that a configuration can choose from."""

from typing import Literal, get_args

AXES = ("model", "scheme", "soc", "toolchain", "backend", "device")
"""The axes of a sweep; the first varies slowest. A cell is identified by the names of its options on these axes."""

QUANT_DTYPES = ("16a16w", "16a2w", "16a4w", "16a4w_block", "16a8w", "8a4w", "8a8w", "fp16a8w")
"""The members of ExecuTorch's `QuantDtype`, without the prefix `use_`."""
SHIPPED_BACKENDS = {
    "portable": "qnnsweep.tasks.toolchain.backends.portable.backend:Portable",
    "qnn": "qnnsweep.tasks.toolchain.backends.qnn.backend:Qnn",
    "xnnpack": "qnnsweep.tasks.toolchain.backends.xnnpack.backend:Xnnpack",
}
"""Maps the short names that `backend.kind` accepts to the paths of the backends' classes."""
OBSERVERS = ("HistogramObserver", "MinMaxObserver", "MovingAverageMinMaxObserver")
"""torchao's per-tensor observers. Per-channel observers are not accepted, because an activation has one scale."""
DTYPES = ("bool", "float16", "float32", "float64", "int16", "int32", "int64", "int8", "uint8")
"""The torch dtypes that a model's input can have."""

STATE_UPDATES = ("append", "ring", "shift", "replace")
"""The ways in which an output of a step changes an input of a later step."""
TOKENS_READ = ("greedy", "teacher_forced")
"""The tokens that a step of a language model can read: its own choice, or that of eager PyTorch."""

STAGES = ("export", "quantize", "lower", "divide", "bundle", "measure", "compare", "cure")
"""All stages, in the order of the pipeline. A stage's module, function and task in `tasks` have the stage's name.

Few cells need `divide`, after they were measured. Then the stages that follow run again."""
MEASURE_STEPS = ("deploy", "execute", "collect")
"""What `measure` does on one device. The module and the function of a step in `tasks.devices` have the step's name."""
COMPILE_STAGES = ("export", "quantize", "lower")
"""The stages whose worker processes count as toolchain calls. The workers of `compare` only run operators
again, those of `cure` compile at most some operators, and those of `divide` only debug programs."""
WORKER_STAGES = (*COMPILE_STAGES, "divide", "compare", "cure")
"""The stages that run in worker processes. Each call waits for a core."""
CELL_STAGES = ("export", "quantize", "lower", "bundle", *MEASURE_STEPS, "compare")
"""The stages that the outcome of a cell needs, with the steps of `measure` instead of `measure` itself."""
SHOWN_STAGES = (*CELL_STAGES, "cure")
"""What the progress display shows per cell; see `qnnsweep.flows.forecasts.costs.stages_of`."""

OperatorReference = Literal["exported", "quantized", "edge"]
OPERATOR_REFERENCES: tuple[OperatorReference, ...] = get_args(OperatorReference)
"""The graphs that operators can be compared with, in the pipeline's order. `measure.references` accepts these names."""

ENDS_TO_FAIL_ON = ("failed", "infrastructure", "out_of_tolerance", "regressed")
"""The outcomes of cells that `prefect.fail_on` accepts, and `regressed` for a cell that is worse than before."""
METRICS = (
    *("mse", "mean_abs", "max_abs", "snr_db", "cosine", "l1", "nmse", "relative_l1", "psnr_db", "sqnr_db"),
    *("max_ulp", "mean_steps", "max_steps"),
)
"""The metrics that `measure.metrics` accepts by name. `qnnsweep.tasks.numerics.metrics` computes each of them."""
MASKED_NAMES = r"(^|[_-]|api)(tokens?|keys?|credentials?)$|passw|secret"
"""The default of the key `masked_names`."""
DEFAULT_ORACLE = "outcome!=passed"
"""The condition under which a cell of `qnnsweep bisect` is bad, unless another is stated."""

HEADLINES = ("snr_db", "centred_snr_db", "row_snr_db", "top1", "equal")
"""The measures of a final output of which one counts for the cell."""
