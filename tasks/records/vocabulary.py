"""The values of statuses, verdicts, kinds, rungs and references in records and tables, each with its meaning."""

from typing import Literal

from qnnsweep.conf.names import OperatorReference

OperatorStatus = Literal[
    "compared", "exact", "masked", "shape_differs", "dtype_differs", "nonfinite_differs", "ambiguous", "repeated",
    "not_dumped", "superseded", "tuple", "unused", "constant", "no_handle", "no_node", "no_value", "no_operator",
    "diverged",
]  # fmt: skip
OPERATOR_STATUSES: dict[OperatorStatus, str] = {
    "compared": "The device's tensor was compared with the reference's; the gap is their difference.",
    "exact": "Every element equals the reference's.",
    "masked": "Compared only over the elements that some reader uses.",
    "shape_differs": "The device's tensor, transposed to PyTorch's layout, has another shape than the reference's.",
    "dtype_differs": "The device logged integers for a floating-point value, and the lowering recorded no qparams; or "
    "it logged one byte per element of 64-bit integers.",
    "nonfinite_differs": "Infinities or NaNs of the device's and the reference's tensor differ in position or in kind.",
    "ambiguous": "Several tensors or nodes may be this operator's value and cannot be distinguished; none was chosen.",
    "repeated": "The operator was executed several times in one inference; none of its values was chosen.",
    "not_dumped": "The device logged nothing under this operator's debug handle and output index.",
    "superseded": "The value belongs to a later operator that has the same handle, is in the same logged set of "
    "handles, or has the same node of the reference.",
    "tuple": "The value is a tuple; the getitem rows that follow hold its elements.",
    "unused": "No operator reads this output of a call, so the compiler need not compute it.",
    "constant": "The value is computed only from parameters. The compiler folds it, so it does not exist at run time.",
    "no_handle": "The lowering left this operator without a debug handle, so no logged tensor can be matched with it.",
    "no_node": "The operator's ancestry names no node of the reference.",
    "no_value": "The host cannot compute the value: the operator's counterpart in the reference, or the rung's output.",
    "no_operator": "A node of the reference that is the counterpart of no operator: removed, or fused without a trace.",
    "diverged": "An output of a step after the first token that differs: the two runs have read different tokens.",
}
"""Every status of an operator's or an output's comparison."""
COMPARED: frozenset[OperatorStatus] = frozenset({"compared", "exact", "masked"})
"""The statuses of comparisons that have a gap."""

StepOrigin = Literal["none", "introduced", "inherited", "diverged"]
STEP_ORIGINS: dict[StepOrigin, str] = {
    "none": "The step's outputs equal those of eager PyTorch's own run.",
    "introduced": "Most of the error is introduced: eager PyTorch's step on the device's state and token has another "
    "result.",
    "inherited": "Most of the error is inherited: the state or the token that the device had was already wrong.",
    "diverged": "The device chose another token in an earlier step, so that no result of eager PyTorch's own run is "
    "comparable.",
}
"""Every origin of the error of a step."""

StepMistake = Literal[
    "position_later",
    "position_earlier",
    "position_restarts",
    "sees_everything",
    "sees_later_tokens",
    "sees_no_cache",
    "mask_moved",
    "oldest_missing",
    "newest_missing",
    "cache_empty",
    "token_before",
    "other_rotation",
    "text_ignored",
]
STEP_MISTAKES: dict[StepMistake, str] = {
    "position_later": "with positions that are too large by one",
    "position_earlier": "with positions that are too small by one",
    "position_restarts": "with positions that begin at 0",
    "sees_everything": "without a mask",
    "sees_later_tokens": "with a mask that shows later tokens",
    "sees_no_cache": "with a mask that hides the cache",
    "mask_moved": "with a mask that is moved by one place",
    "oldest_missing": "with a cache that lacks its oldest column or is one place too early",
    "newest_missing": "without the newest column of the cache, which is missing, hidden or one place too late",
    "cache_empty": "with an empty cache",
    "token_before": "with the token of the step before",
    "other_rotation": "with another rotation of the keys (RoPE)",
    "text_ignored": "without regard to the tokens that were read",
}
"""What a step computes with instead. Eager PyTorch has the device's result with such inputs, and not with the right
ones; of the last two, the result itself shows it."""

TokenStatistic = Literal[
    "kl_divergence_mean",
    "kl_divergence_median",
    "kl_divergence_p99",
    "kl_divergence_max",
    "same_top1",
    "perplexity",
    "perplexity_reference",
    "perplexity_ratio",
    "probability_difference_mean",
    "probability_difference_median",
    "probability_difference_rms",
    "probability_difference_min",
    "probability_difference_max",
]
"""The statistics of the tokens of a language model."""

SampleRole = Literal["worst", "typical", "spread", "worst on the device"]
SAMPLE_ROLES: dict[SampleRole, str] = {
    "worst": "Of all samples, its final outputs have the most noise at the rung designed, before a device runs. If the "
    "host cannot compute this rung, it is the rung edge.",
    "typical": "The median of all samples by that noise.",
    "spread": "One of the samples between the two by that noise or, if these are not enough, of the others.",
    "worst on the device": "Its final outputs have the most noise on the device. It is captured in addition if the "
    "lowering did not choose it.",
}
"""Why the operators of a sample are captured."""

Verdict = Literal["exact", "within_grid", "introduced", "biased", "contradicted", "grid", "inherited", "blind"]
VERDICTS: dict[Verdict, str] = {
    "exact": "Every element that some reader uses equals the reference's.",
    "within_grid": "The value differs by no more than the tolerance of this scheme and operator.",
    "introduced": "On the device's own inputs the reference operator gives another result: the error begins here.",
    "biased": "The errors that the operator introduces are small, but systematic: their mean or the gain is off.",
    "contradicted": "The readers follow from the host's value and not from the logged value: the log is wrong.",
    "grid": "The value is beyond the tolerance because of its own grid, which clips it or is too coarse for it.",
    "inherited": "The value is beyond the tolerance, but right for the operator's inputs: the error began before it.",
    "blind": "The value was not compared, or not computed again on the host: the error's origin is unknown.",
}
"""Every verdict on one operator's error."""

OWN_ERROR: frozenset[Verdict] = frozenset({"introduced", "biased"})
"""The verdicts on operators that the device computes wrongly."""

Cause = Literal["graph", "weights", "bias", "clipping", "resolution", "overflow", "device", "observer", "unexplained"]
CAUSES: dict[Cause, str] = {
    "graph": "The edge graph with nothing rounded computes something else than eager PyTorch.",
    "weights": "The rounding of the weights to their grid or to float16; 16-bit weights that saturate on the device.",
    "bias": "A bias that does not fit its grid: it saturates 32 bits, or has the grid of another call that shares it.",
    "clipping": "Elements of the operator's value beyond the ends of its grid.",
    "resolution": "The rounding of the operator's value to the steps of its grid, or to float16.",
    "overflow": "Elements of the operator's value beyond the largest float16, which become infinite.",
    "device": "What the device computes differently from the operator's definition.",
    "observer": "The difference of the shipping program and the debug program, whose operators are logged.",
    "unexplained": "The part of the final error that the other causes do not account for.",
}
"""Every cause of a final output's error."""
CAUSE_NAMES: dict[Cause, str] = {
    "weights": "rounding of the weights",
    "bias": "the grid of the bias",
    "clipping": "clipping at the ends of the grid",
    "resolution": "rounding to the steps of the grid",
    "overflow": "overflow of float16",
    "device": "arithmetic of the device",
}
"""The causes that arise at an operator, in words."""
CAUSE_STAGES: dict[Cause, str] = {
    "weights": "quantize",
    "bias": "quantize",
    "clipping": "quantize",
    "resolution": "quantize",
    "overflow": "lower",
    "device": "execute",
}
"""The stage in which the error of a cause arises."""

EventKind = Literal["program", "kernel", "operator_call", "delegate_call", "operator", "accelerator"]
EVENT_KINDS: dict[EventKind, str] = {
    "program": "The program as a whole: its loading, its initialisation, or one execution.",
    "kernel": "A kernel of the runtime, without the overhead of its call.",
    "operator_call": "A kernel and the overhead of its call.",
    "delegate_call": "A whole delegated subgraph, timed by the runtime.",
    "operator": "An operator inside a delegate, or the graph's input or output, counted by the delegate.",
    "accelerator": "A total or a counter that the delegate itself logs, in the unit that the delegate names.",
}
"""Every kind of timed event."""

Rung = Literal["exported", "lowered", "edge", "designed", "device", "quantized"]
RUNGS: dict[Rung, str] = {
    "exported": "The program of torch.export on the host.",
    "lowered": "The edge graph after the backend's passes, with float weights and nothing rounded, on the host.",
    "edge": "The edge graph with rounded weights and floating-point activations, on the host.",
    "designed": "The edge graph on the host, with every value rounded to the grid that the lowering recorded for it, "
    "except values that only clamps read. Kernels that are known to write another grid do so here, too.",
    "device": "The program that ships, on the device.",
    "quantized": "The graph that pt2e converted, with its integers simulated in floating point, on the host; it also "
    "rounds where the compiler does not, so it is beside the path to the device.",
}
"""Every rung. Each is compared with eager fp32, and each but the first also with the previous rung."""
SHIPPING_RUNGS: tuple[Rung, ...] = ("exported", "lowered", "edge", "designed", "device")
"""The rungs on the path from eager fp32 to the device, in order. Each adds one kind of error to the rung before it."""
PREVIOUS_RUNG: dict[Rung, Rung] = {
    "lowered": "exported",
    "edge": "lowered",
    "designed": "edge",
    "device": "designed",
    "quantized": "exported",
}
"""Per rung but the first, the rung to whose error it adds its own. For `quantized`, which is beside the path, the
last rung that is not quantized."""

Difference = Literal["none", "finite", "infinite"]
DIFFERENCES: dict[Difference, str] = {
    "none": "All final outputs are equal, element by element.",
    "finite": "Final outputs differ, and every output that differs has an SNR; the lowest is in the column of the SNR.",
    "infinite": "A final output is so different that it has no finite SNR: NaNs or infinities are at other elements, "
    "the shape differs, or the output is not zero although the reference is all zeros; the column of the SNR is null.",
}
"""How the final outputs of two programs differ. An SNR that is null because outputs are equal, and an SNR that is null
because the noise is infinite, cannot be confused."""

TimedOn = Literal["simulator", "device"]
TIMED_ON: dict[TimedOn, str] = {
    "simulator": "A simulator of the accelerator: its times say nothing about a device, and are not judged.",
    "device": "The device itself, which may be this machine's CPU.",
}
"""What ran a program while its times were measured."""

Reference = Literal["eager", OperatorReference]
REFERENCES: dict[Reference, str] = {
    "eager": "The eager fp32 module, for final outputs.",
    "exported": "The program of torch.export, for operators.",
    "quantized": "The graph that pt2e converted, for operators.",
    "edge": "The edge graph after the backend's passes, for operators.",
}
"""What a tensor is compared with."""

Outcome = Literal["passed", "out_of_tolerance", "failed", "impossible", "infrastructure"]
OUTCOMES: dict[Outcome, str] = {
    "passed": "Every stage succeeded, and the final outputs are within the tolerance.",
    "out_of_tolerance": "Every stage succeeded, and the device's results are beyond the tolerance.",
    "failed": "A stage failed, the lowered graph is another function than the model, or the program takes its inputs "
    "or gives its outputs in another way than the model: another order, a dead part, or the buffer of another output.",
    "impossible": "The plan itself shows that this cell cannot run.",
    "infrastructure": "The device, the machine or the stored evidence failed, not the cell.",
}
"""Every outcome of a cell."""

CertificateSide = Literal["before", "after"]
"""The schemes that a certificate compares: before and after the repair."""

ProgramName = Literal["shipping", "debug", "profile"]
"""The programs of one cell."""

ProbeSide = Literal["input", "output"]
ProbeStatus = Literal["passed", "failed", "coarse", "blind", "unclear", "refused"]
PROBE_STATUSES: dict[ProbeStatus, str] = {
    "passed": "The model itself explains the device's outputs clearly better than the mistake does.",
    "failed": "The mistake explains the device's outputs, and clearly better than the model itself does.",
    "coarse": "A part of the output is constant on the device because it varies by less than the noise or the steps of "
    "its grid: a loss by resolution, and no mistake.",
    "blind": "The mistake cannot be detected: it changes the model's outputs too little on every sample.",
    "unclear": "Neither the model itself nor the mistake explains the device's outputs clearly better.",
    "refused": "The model cannot be run on the inputs that result from the mistake.",
}
"""Every result of a check for one mistake at the program's inputs or outputs."""

CheckStatus = Literal["met", "differs", "unread"]
CHECK_STATUSES: dict[CheckStatus, str] = {
    "met": "The program has the requested value, or an equal value in another form, which the reason names.",
    "differs": "The program has another value than the requested value.",
    "unread": "The program's bytes do not contain the value, or could not be read; the reason names the cause.",
}
"""Every result of a check of a finished program against the request."""

TrendVerdict = Literal["steady", "regressed", "still_bad", "improved", "new", "no_baseline", "undefined"]
TREND_VERDICTS: dict[TrendVerdict, str] = {
    "steady": "The value is within the limit of its baseline.",
    "regressed": "The value is worse than its baseline by more than the limit, for the first time.",
    "still_bad": "The value has not recovered from an earlier regression.",
    "improved": "The value is better than its baseline by more than the limit.",
    "new": "The series has no earlier night.",
    "no_baseline": "Too few earlier nights can be used as a baseline.",
    "undefined": "The value is not defined tonight, or is the latency of a simulator, which is not judged.",
}
"""Every verdict on one night of a series."""

CaseState = Literal["exact", "delegated", "cpu", "refused", "wrong", "aborted", "not_exported", "not_tried"]
CASE_STATES: dict[CaseState, str] = {
    "exact": "The delegate runs all nodes, and the outputs equal those of the same program on the host, bit by bit.",
    "delegated": "The delegate runs all nodes, and their error is within the tolerance of the scheme.",
    "cpu": "The compiler leaves a node to the CPU.",
    "refused": "The toolchain raised an error, so there is no program.",
    "wrong": "A node introduces more error than the tolerance of the scheme allows, an output is not finite, or the "
    "lowered graph is another function than the model.",
    "aborted": "The toolchain or the program was ended by a signal, or by the deadline of a call.",
    "not_exported": "There is no exported model: the collection skips the case, or its export fails.",
    "not_tried": "The run has tried as many new cases as `limits.new_cases` allows; a later run tries the case.",
}
"""The values of the column `state` of the table `atlas`, from the best to the worst."""
CaseEnding = Literal["failed", "killed", "wrong output"]
"""How a case failed on a device: by an exit code, by a signal or a deadline, or with an output of another size."""
