"""The options of the stages lower and compare, and of operator cases: on these, the results of a stage depend."""

from dataclasses import dataclass, field

from qnnsweep.conf.models import ModelConfig
from qnnsweep.conf.names import OperatorReference
from qnnsweep.conf.schema import MeasureConfig, SocConfig
from qnnsweep.conf.schemes import SchemeConfig
from qnnsweep.conf.tolerances import OperatorTolerance
from qnnsweep.tasks.records.stages import IDENTITY_NEUTRAL, Toolchain


@dataclass(frozen=True, kw_only=True, slots=True)
class LoweringOptions:
    """The options of `lower`, which do not include the SoC."""

    scheme: SchemeConfig
    kind: str  # the backend's kind
    operator_samples: int  # the most evaluation samples whose operators are recorded and compared
    choosable: int | None = None  # the number of samples of the model, the first ones, among which these are chosen
    dump_operators: bool  # compile the debug program, which logs every operator
    profile_level: int = 0  # the level of the profile program's log; 0 for no profile program
    references: tuple[OperatorReference, ...] = ()  # graphs besides the edge graph whose values are recorded
    backend_code: str = ""  # digest of another vendor's backend, only used as part of the cache key


@dataclass(frozen=True, kw_only=True, slots=True)
class ComparisonOptions:
    """The options of `compare`.

    `tolerances`: the tolerances of operators, of one scheme; see `qnnsweep.tasks.numerics.verdict.of_scheme`.
    `replay`: run operators again on the device's own inputs, to separate introduced from inherited error.
    `budget`: compute the shares of the final outputs' errors; it needs the replay.
    `metrics`: the metrics that are computed in addition to those of every row. Each is a name in
    `qnnsweep.conf.names.METRICS` or has the form `package.module:function`.
    """

    classifier: bool  # whether the index of an output's largest element is the model's answer
    tolerances: dict[str, OperatorTolerance] = field(default_factory=dict[str, OperatorTolerance])
    replay: bool = True
    budget: bool = True
    metrics: tuple[str, ...] = ()
    references: tuple[str, ...] = ()  # graphs besides the edge graph; the lowering must have stored their values
    own_code: str = ""  # digest of the user's own metrics and backend, only used as part of the cache key
    own_backend: str | None = field(default=None, metadata=IDENTITY_NEUTRAL)
    """The kind of another vendor's backend, as the request names it; None for a shipped one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CaseOptions:
    """How the cases of a cell are compiled, executed and compared."""

    model: ModelConfig  # the collection
    soc: SocConfig
    lowering: LoweringOptions
    measure: MeasureConfig
    comparison: ComparisonOptions
    toolchain: Toolchain
    second_runtime: bool = False  # whether ONNX Runtime executes the cases of this machine's simulator, too
