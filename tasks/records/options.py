"""The options of the stages: what a stage computes, as far as the request decides. They have a digest."""

from dataclasses import dataclass, field

from conf.names import OperatorReference
from conf.schema import OperatorTolerance, SchemeConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class LoweringOptions:
    """What `lower` compiles from a quantized model, the SoC apart, and what it records with the programs."""

    scheme: SchemeConfig
    kind: str
    """The backend."""
    operator_samples: int
    """Evaluation samples whose operators are recorded and compared."""
    dump_operators: bool
    """Whether to compile the debug program, which logs every operator."""
    profile_level: int = 0
    """The level of the profile program's log; 0 for no profile program."""
    references: tuple[OperatorReference, ...] = ()
    """Reference graphs besides the edge graph whose values are recorded."""
    backend_code: str = ""
    """The code of a backend of another vendor. It is part of the cache key and has no other use."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ComparisonOptions:
    """What `compare` computes from a lowering and a capture."""

    classifier: bool
    """The index of an output's largest element is the model's answer."""
    tolerances: dict[str, OperatorTolerance] = field(default_factory=dict[str, OperatorTolerance])
    """The tolerances of operators, by the keys of `tolerance.operators`."""
    replay: bool = True
    """Whether operators run again on the device's own inputs, to separate introduced from inherited error."""
    metrics: tuple[str, ...] = ()
    """Metrics besides those of every row: names of `conf.names.METRICS`, or `package.module:function`."""
    references: tuple[str, ...] = ()
    """Reference graphs besides the edge graph. The lowering must have stored their values."""
    own_code: str = ""
    """Digest of the code of the user's own metrics and backend. It is only part of the cache key."""
