"""The records of the steps of sequences: tokens, their scores, and the error of the outputs divided by origin."""

from dataclasses import dataclass

from qnnsweep.tasks.records.hints import Decibels, Share
from qnnsweep.tasks.records.vocabulary import StepMistake, StepOrigin, TokenStatistic


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenScores:
    """The scores of the next token on the device, against those of eager PyTorch's own run of the sequence.

    There is one item per token that the step read. A token whose scores are not finite has none. Null without a driver,
    and after the first step whose token differs.
    """

    kl_divergence_nats: tuple[float, ...]
    """Per token, the KL divergence of the device's probabilities of the next token from those of eager PyTorch."""
    same_top1: tuple[bool, ...]
    """Per token, whether the most probable next token is that of eager PyTorch."""
    log_probability_nats: tuple[float, ...]
    """Per token whose next token in the text is known, the logarithm of its probability on the device."""
    log_probability_reference_nats: tuple[float, ...]
    """`log_probability_nats` in eager PyTorch."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ScoreStatistic:
    """A statistic of all tokens of all sequences of a language model.

    The bounds are those of a 95 % interval, by the bootstrap over the sequences; null with fewer than two sequences.
    """

    statistic: TokenStatistic
    """`kl_divergence_…` is in nats and per token. `perplexity` is that of the text on the device, `…_reference` in
    eager PyTorch, and `…_ratio` is the first divided by the second. `probability_difference_…` is the probability of
    the right token on the device, less that in eager PyTorch. `same_top1` is a share of the tokens."""
    value: float | None
    """Null if it is not finite."""
    low: float | None
    """Lower bound of `value`."""
    high: float | None
    """Upper bound of `value`."""
    tokens: int
    """Number of tokens that count."""
    sequences: int
    """Number of sequences with such tokens."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepComparison:
    """A step of a sequence on the device, compared with eager PyTorch in two ways.

    The *total* error is against eager PyTorch's own run of the sequence, with its own state and its own tokens. The
    *introduced* error is against eager PyTorch's step on the state and the token that the device had. The *inherited*
    error is the difference between these two steps of eager PyTorch: what the device's state and token cost. The SNRs
    are those of the step's result: the scores of the next token or, without a driver, the first output that is no
    state.
    """

    sample: int
    """The sequence."""
    sample_name: str
    """The sequence's name."""
    method: str | None = None
    """The method of the step; null for a model with one method."""
    step: int
    """The step's number in the sequence."""
    method_sample: int
    """The step's number among the steps of its method: the `sample` in the tables about outputs and operators."""
    token: int | None
    """The token that the device chose; null without a driver."""
    token_reference: int | None
    """The token that eager PyTorch's own run chose; null without a driver."""
    text: str | None
    """The text of the device's token; null if the module has no attribute `vocabulary`."""
    text_reference: str | None
    """The text of eager PyTorch's token; null like `text`."""
    label: int | None
    """The right token; null if the source of the samples does not state it."""
    margin: float | None
    """Score of the token that eager PyTorch's own run chose, less its second highest score. Where the margin is less
    than twice the error of a score, another token is no sign of a fault."""
    score_error: float | None
    """Largest absolute error that the step introduced into the scores, in the unit of `margin`."""
    total_snr_db: Decibels | None
    """SNR against eager PyTorch's own run; null where both are equal, and after the first step whose token differs,
    because the two runs have read different tokens since."""
    introduced_snr_db: Decibels | None
    """SNR against eager PyTorch's step on the device's state and token; null where both are equal."""
    inherited_snr_db: Decibels | None
    """SNR of eager PyTorch's step on the device's state and token against its own run; null like `total_snr_db`."""
    state_total_snr_db: Decibels | None
    """Lowest `total_snr_db` of the step's outputs that change a state."""
    state_introduced_snr_db: Decibels | None
    """Lowest `introduced_snr_db` of the step's outputs that change a state."""
    origin: StepOrigin
    """Where the larger part of the error began."""
    at_ends: float | None
    """Share of the elements of the step's states that are at an end of their grid: a wider range may have been cut.
    Null without a grid."""
    other_method_differing: Share | None = None
    """Share of the elements of the new columns of the states that differ from those that another method wrote after the
    same tokens, such as a prefill instead of decode steps; null if no other method did."""
    other_method_snr_db: Decibels | None = None
    """Lowest SNR of these columns against those of the other method; null if there are none, or if all are equal."""
    scores: TokenScores | None = None
    mistake: StepMistake | None = None
    """What the step computes with instead of its inputs; null if it is not wrong, if it is not one of the worst, or if
    no known mistake has its result."""
    first_wrong_state: str | None = None
    """The cache, as an input of the program, whose new columns of this step are wrong, of the first layer that has one;
    null like `mistake`, or if all are right."""
    debug_introduced_snr_db: Decibels | None = None
    """`introduced_snr_db` of the debug program on the same inputs; null for a step that was not captured. Where it is
    much higher, the error comes from what the compiler fuses in the shipping program, and no operator shows it."""
