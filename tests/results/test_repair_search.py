"""The search for a repair: what it tries, accepts, reverts and says, with cells whose accuracy a table gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from qnnsweep.conf.repair import BudgetConfig, TargetConfig
from qnnsweep.conf.schema import Request
from qnnsweep.conf.schemes import SchemeConfig, SchemeOverride
from qnnsweep.tasks.errors import ToolchainError
from qnnsweep.tasks.records import Allocation, Cures, Trial, Weight, WeightBits
from qnnsweep.tasks.repair.candidates import candidates
from qnnsweep.tasks.results.outcome import CellResult
from qnnsweep.tasks.results.repair import measurement, shortfalls
from qnnsweep.tasks.results.repair_search import Aim, Search, Step
from tests.repair.sample_cells import ADD, CONVOLUTION, cell, operator, scheme
from tests.sample_records import COMPARISON, EXPORTED, PROBED, blob, passed_cell, with_method

DAMAGE = (SchemeOverride(node="node_conv", quant_dtype="8a4w"), SchemeOverride(node="node_add", range=[0.0, 10.0]))
BEFORE = scheme("8a8w", *DAMAGE)
FINER_WEIGHTS, WIDER_RANGE = scheme("8a8w", DAMAGE[1]), scheme("8a8w", DAMAGE[0])
UNDAMAGED = scheme("8a8w")
DEAD = replace(PROBED, mistake="a part of output logits is constant", status="failed", of_the_scheme=True)


def text(tried: SchemeConfig) -> str:
    return str([str(override) for override in tried.overrides])


class Cells:
    """The cells of all schemes, on one or more SoCs. `snr_db`: what each scheme reaches; other schemes fail.

    `dead`: the schemes that round a part of the output to a constant.
    """

    def __init__(
        self,
        request: Request,
        snr_db: Sequence[tuple[SchemeConfig, float]],
        sizes: Sequence[tuple[SchemeConfig, int]] = (),
        socs: Sequence[str] = ("SM8650",),
        target: TargetConfig | None = None,
        dead: Sequence[SchemeConfig] = (),
    ) -> None:
        self._dead = {text(tried) for tried in dead}
        self._request, self._socs, self._target = request, socs, target
        self._snr_db: Mapping[str, float] = {text(tried): reached for tried, reached in snr_db}
        self._sizes: Mapping[str, int] = {text(tried): size for tried, size in sizes}
        self.asked: list[SchemeConfig] = []
        self.aims: list[Aim] = []

    def measure(self, tried: SchemeConfig, aim: Aim | None) -> list[CellResult]:
        cells = [self._cell(tried, soc) for soc in self._socs]
        if aim is None:
            self.asked.append(tried)
            return cells
        self.aims.append(aim)
        return [replace(cell, cures=self._trials(cell, aim)) for cell in cells]

    def _trials(self, cell: CellResult, aim: Aim) -> Cures:
        """Return the trial of the first candidate, which halves the noise of the only sample of the search."""
        assert cell.comparison is not None
        assert cell.lowered is not None
        is_coarse = any(row.element_bits == 4.0 for row in cell.lowered.methods[0].weights)
        best = WeightBits(operator="conv", element_bits=4)
        allocations = () if is_coarse or self._target is None else (Allocation(change="other bits", bits=(best,)),)
        given = cell.comparison, cell.lowered, cell.request.scheme, aim.target, allocations, aim.measured
        designed = [row for row in cell.comparison.outputs if row.rung == "designed" and row.sample == 0]
        noise = tuple(0.5 * 10 ** (-(row.gap.snr_db or 0.0) / 10) for row in designed)
        return Cures(
            trials=tuple(
                Trial(cause=new.cause, change=new.change, operators=new.operators, noise=noise, refused=None)
                for new in candidates(*given)[:1]
            ),
            allocations=allocations,
        )

    def _cell(self, tried: SchemeConfig, soc: str) -> CellResult:
        request = replace(self._request, scheme=tried, soc=replace(self._request.soc, name=soc))
        reached = self._snr_db.get(text(tried))
        if reached is None:
            failed = ToolchainError("lower failed: no such kernel\nmore", stage="lower", cause="abort", log="8" * 64)
            return CellResult(request=request, exported=EXPORTED, stage="lower", error=failed)
        comparison, lowered = cell(
            [operator("conv", CONVOLUTION), operator("add", ADD)],
            {("weights", "conv"): 0.5, ("clipping", "add"): 0.4},
            add={"least_value": 0.0, "largest_value": 20.0, "clipped_elements": 9},
        )
        outputs = tuple(
            replace(row, gap=replace(row.gap, snr_db=reached - 2 * row.sample)) for row in COMPARISON.outputs
        )
        program = blob("1", self._sizes.get(text(tried), 1_000_000))
        return passed_cell(
            request,
            comparison=replace(
                comparison,
                outputs=(*(replace(row, rung="designed") for row in outputs), *outputs),
                io_checks=(DEAD,) if text(tried) in self._dead else (),
            ),
            lowered=with_method(
                replace(lowered, program=program), compile_facts=(), choosable=1, weights=(_weight(tried),)
            ),
        )


def _weight(tried: SchemeConfig) -> Weight:
    """Return the weight of the convolution, with the bits that a scheme gives it."""
    is_coarse = any(override.node == "node_conv" and override.quant_dtype for override in tried.overrides)
    return Weight(readers=(0,), elements=100_000, element_bits=4.0 if is_coarse else 8.0)


def searched(
    cells: Cells, target: TargetConfig, before: SchemeConfig = BEFORE, **budget: float
) -> tuple[Search, list[Step]]:
    """Run a search that uses the first sample only. Return it and the steps that it reported."""
    search = Search(target=target, budget=BudgetConfig(**budget), samples=range(1))  # type: ignore[arg-type]
    steps: list[Step] = []
    search.run(before, cells.measure, steps.append)
    assert steps == search.steps
    return search, steps


def test_changes_that_help_are_accepted_until_the_target_is_reached(planned: Request) -> None:
    cells = Cells(planned, [(BEFORE, 20.0), (FINER_WEIGHTS, 23.0), (WIDER_RANGE, 22.0), (UNDAMAGED, 40.0)])
    search, steps = searched(cells, TargetConfig(final_snr_db=35.0))
    assert (search.reached, search.reason) == (True, "the target is reached")
    assert cells.asked == [step.scheme for step in steps] == [BEFORE, FINER_WEIGHTS, UNDAMAGED]
    assert [(step.accepted, step.why, step.measured_db, step.compilations) for step in steps] == [
        (True, "the scheme before the repair", None, 1),
        (True, "the lowest SNR rises", 3.0, 2),
        (True, "the lowest SNR rises", 17.0, 3),
    ]
    assert [step.candidate.description for step in search.changes if step.candidate] == [
        "the scheme's weights for the convolution layers.conv",
        "the calibrated range for the addition layers.add",
    ]


def test_a_change_that_does_not_help_is_reverted_and_not_tried_again(planned: Request) -> None:
    cells = Cells(planned, [(BEFORE, 20.0), (FINER_WEIGHTS, 20.05), (WIDER_RANGE, 24.0)])
    search, steps = searched(cells, TargetConfig(final_snr_db=23.0))
    assert search.reached
    assert cells.asked == [BEFORE, FINER_WEIGHTS, WIDER_RANGE]
    assert [step.accepted for step in steps] == [True, False, True]
    assert steps[1].why == "the lowest SNR rises by less than 0.1 dB"
    assert search.accepted.scheme == WIDER_RANGE


def test_a_part_that_the_scheme_rounds_to_a_constant_must_vary_again_and_no_step_may_lose_one(planned: Request) -> None:
    reached = [(BEFORE, 30.0), (FINER_WEIGHTS, 30.0), (UNDAMAGED, 40.0)]
    search, steps = searched(Cells(planned, reached, dead=[BEFORE]), TargetConfig(final_snr_db=25.0))
    assert (search.reached, search.accepted.scheme) == (True, FINER_WEIGHTS)
    assert steps[1].why == "cured: a part of output logits is constant"
    search, steps = searched(Cells(planned, reached, dead=[BEFORE, FINER_WEIGHTS]), TargetConfig(final_snr_db=25.0))
    assert not search.reached
    assert search.reason.endswith("; a part of output logits is constant")
    search, steps = searched(Cells(planned, reached, dead=[FINER_WEIGHTS]), TargetConfig(final_snr_db=35.0))
    assert [(step.accepted, step.why) for step in steps[1:2]] == [(False, "a part of output logits is constant")]


def test_a_program_whose_outputs_no_scheme_makes_right_is_not_repaired(planned: Request) -> None:
    exchanged = replace(DEAD, mistake="outputs exchanged", detail=None, of_the_scheme=False)
    (damaged,) = Cells(planned, [(BEFORE, 30.0)], dead=[BEFORE]).measure(BEFORE, None)
    assert damaged.comparison is not None
    assert measurement(damaged) is not None
    both = replace(damaged, comparison=replace(damaged.comparison, io_checks=(DEAD, exchanged)))
    assert measurement(both) is None


def test_a_change_that_only_just_reaches_the_target_is_accepted(planned: Request) -> None:
    cells = Cells(planned, [(BEFORE, 20.0), (FINER_WEIGHTS, 20.05)])
    search, steps = searched(cells, TargetConfig(final_snr_db=20.02))
    assert search.reached
    assert steps[1].why == "the target is reached"


def test_an_impossible_target_ends_with_the_best_scheme_and_the_reason_when_nothing_helps(planned: Request) -> None:
    cells = Cells(planned, [(BEFORE, 20.0), (FINER_WEIGHTS, 26.0)])
    search, steps = searched(cells, TargetConfig(final_snr_db=90.0), compilations=100)
    assert not search.reached
    assert search.reason == (
        "nothing helps: no other candidate is predicted to gain 0.1 dB; final SNR 26.0 dB is below 90 dB"
    )
    assert search.accepted.scheme == FINER_WEIGHTS
    reverted = {step.why for step in steps if not step.accepted}
    assert reverted == {"failed in lower on SM8650: lower failed: no such kernel"}
    assert len({text(step.scheme) for step in steps}) == len(steps), "no scheme is tried twice"


def test_the_search_ends_before_a_step_that_would_exceed_the_number_of_compilations(planned: Request) -> None:
    socs = ("SM8550", "SM8650")
    cells = Cells(planned, [(BEFORE, 20.0), (FINER_WEIGHTS, 26.0), (UNDAMAGED, 40.0)], socs=socs)
    search, steps = searched(cells, TargetConfig(final_snr_db=39.0), compilations=5)
    assert [step.compilations for step in steps] == [2, 4]
    assert search.reason == "budget.compilations=5 is used up; final SNR 26.0 dB is below 39 dB"
    assert search.accepted.scheme == FINER_WEIGHTS


def test_a_step_beyond_the_budget_is_reverted_although_it_helps(planned: Request) -> None:
    reached = [(BEFORE, 20.0), (FINER_WEIGHTS, 26.0), (WIDER_RANGE, 24.0)]
    cells = Cells(planned, reached, sizes=[(FINER_WEIGHTS, 1_300_000)])
    search, steps = searched(cells, TargetConfig(final_snr_db=23.0), size_ratio=1.25)
    assert (search.reached, search.accepted.scheme) == (True, WIDER_RANGE)
    assert steps[1].why == "size bytes is 1.30 times that before, budget.size_ratio=1.25"


def test_a_limit_whose_value_is_not_known_is_not_met(planned: Request) -> None:
    cells = Cells(planned, [(BEFORE, 20.0), (FINER_WEIGHTS, 26.0)])
    search, steps = searched(cells, TargetConfig(final_snr_db=25.0), ddr_ratio=1.1, spill_bytes=0, compilations=2)
    assert not search.reached
    assert steps[1].why == "ddr bytes are not known, budget.ddr_ratio=1.1"
    assert search.reason.endswith(
        "; final SNR 20.0 dB is below 25 dB; ddr bytes are not known, budget.ddr_ratio=1.1; "
        "spilled bytes are not known, budget.spill_bytes=0"
    )


def test_a_program_that_is_accurate_but_too_large_is_not_yet_repaired(planned: Request) -> None:
    cells = Cells(planned, [(BEFORE, 20.0)], sizes=[(BEFORE, 1_000_000)])
    search, _ = searched(cells, TargetConfig(final_snr_db=15.0), size_ratio=0.9, compilations=1)
    assert not search.reached
    assert search.reason == (
        "budget.compilations=1 is used up; size bytes is 1.00 times that before, budget.size_ratio=0.9"
    )


def test_a_program_before_the_repair_that_cannot_be_measured_ends_the_search(planned: Request) -> None:
    search, steps = searched(Cells(planned, []), TargetConfig(final_snr_db=30.0))
    assert len(steps) == 1
    assert search.reason == (
        "the program before the repair is not measured: failed in lower on SM8650: lower failed: no such kernel"
    )


def test_samples_of_the_certificate_have_no_effect(planned: Request) -> None:
    """The second sample has 2 dB less in every scheme, and is not one of the search."""
    cells = Cells(planned, [(BEFORE, 20.0), (FINER_WEIGHTS, 30.0)])
    search, _ = searched(cells, TargetConfig(final_snr_db=29.0))
    assert search.reached
    final = search.accepted.measurements[0]
    assert final is not None
    assert final.finals.final_snr_db == 30.0


def test_a_target_without_snr_counts_samples_and_operators(planned: Request) -> None:
    cells = Cells(planned, [(BEFORE, 20.0)])
    target = TargetConfig(top1_agreement=1.0, accuracy=1.0, introduced_operators=0)
    search, _ = searched(cells, target, compilations=1)
    # The only sample of the search is classified as in eager PyTorch, and rightly.
    assert search.reason == "budget.compilations=1 is used up; 2 operators introduce error, the target is 0"


def test_a_target_that_does_not_hold_on_unseen_samples_is_not_certified(planned: Request) -> None:
    """The second sample, which the search has not seen, has 2 dB less."""
    cells = Cells(planned, [(BEFORE, 20.0), (FINER_WEIGHTS, 30.0)])
    for target, is_certified in ((28.0, True), (29.0, False)):
        search, _ = searched(cells, TargetConfig(final_snr_db=target))
        assert search.reached
        search.certify([1])
        assert search.reached is is_certified
        assert search.reason.endswith("; certified on 1 unseen sample") is is_certified
    assert search.reason == (
        "not certified: the target holds on the samples of the search, but on unseen ones "
        "final SNR 28.0 dB is below 29 dB"
    )


def test_a_certificate_says_if_the_target_holds_on_unseen_samples_before_the_repair_too(planned: Request) -> None:
    search, steps = searched(Cells(planned, [(BEFORE, 20.0), (FINER_WEIGHTS, 30.0)]), TargetConfig(final_snr_db=25.0))
    before, after = steps
    as_good = replace(before, complete=after.complete)
    for first, end in ((before, ""), (as_good, ", where it held before the repair, too")):
        again = replace(search, steps=[first, after])
        again.certify([1])
        assert again.reason == f"the target is reached; certified on 1 unseen sample{end}"


def test_a_target_without_unseen_samples_is_not_certified(planned: Request) -> None:
    search, _ = searched(Cells(planned, [(BEFORE, 20.0)]), TargetConfig(final_snr_db=15.0))
    assert search.reached
    search.certify([])
    assert not search.reached
    assert search.reason == (
        "not certified: the target holds on the samples of the search, but on unseen ones nothing was measured; "
        "give more samples than the calibration and the search use"
    )


def test_the_number_that_the_target_names_decides(planned: Request) -> None:
    """The two samples have 20 and 18 dB: 18.9 dB of mean noise, and at least 18 dB at all samples but a tenth."""
    for target, missing in (
        (TargetConfig(mean_snr_db=19.0), "mean SNR 18.9 dB is below 19 dB"),
        (TargetConfig(quantile_snr_db=19.0), "SNR of all but 10 % of the samples 18.0 dB is below 19 dB"),
        (TargetConfig(quantile_snr_db=19.0, quantile=0.5), None),
    ):
        (cell,) = Cells(planned, [(BEFORE, 20.0)]).measure(BEFORE, None)
        reached = measurement(cell)
        assert reached is not None
        assert next(shortfalls(reached, target), None) == missing


COARSE = scheme("8a8w", SchemeOverride(node="node_conv", quant_dtype="8a4w"))
COARSE_AND_WIDE = scheme("8a8w", *COARSE.overrides, SchemeOverride(node="node_add", range=[0.0, 25.5]))


def test_a_program_that_is_too_large_becomes_smaller_first_and_then_as_accurate_as_its_size_allows(
    planned: Request,
) -> None:
    target = TargetConfig(size_kib=940)
    reached, sizes = (
        [(UNDAMAGED, 40.0), (COARSE, 25.0), (COARSE_AND_WIDE, 28.0)],
        [(COARSE, 950_000), (COARSE_AND_WIDE, 950_000)],
    )
    cells = Cells(planned, reached, sizes, target=target)
    search, steps = searched(cells, target, UNDAMAGED)
    assert cells.asked[:3] == [UNDAMAGED, COARSE, COARSE_AND_WIDE]
    assert [(step.accepted, step.why) for step in steps[:3]] == [
        (True, "the scheme before the repair"),
        (True, "the program becomes smaller"),
        (True, "the mean SNR rises"),
    ]
    assert [step.measured_db for step in steps[1:3]] == [-15.0, 3.0]
    assert search.reached
    assert search.reason == "the target is reached, and no other candidate is predicted to gain 0.1 dB"
    assert search.accepted.scheme == COARSE_AND_WIDE


def test_a_size_that_no_scheme_reaches_is_named(planned: Request) -> None:
    target = TargetConfig(effective_bits=3.0)
    search, _ = searched(Cells(planned, [(UNDAMAGED, 40.0)], target=target), target, UNDAMAGED, compilations=1)
    assert not search.reached
    assert search.reason == ("budget.compilations=1 is used up; a weight has 8.00 bits in the mean, the target is 3")


def test_a_step_that_makes_a_small_program_too_large_is_reverted(planned: Request) -> None:
    target = TargetConfig(size_kib=1000)
    sizes = [(FINER_WEIGHTS, 1_100_000)]
    cells = Cells(planned, [(BEFORE, 20.0), (FINER_WEIGHTS, 26.0), (WIDER_RANGE, 24.0)], sizes, target=target)
    search, steps = searched(cells, target)
    of_weights = next(step for step in steps if step.scheme == FINER_WEIGHTS)
    assert (of_weights.accepted, of_weights.why) == (False, "the program has 1,074 KiB, the target is 1,000")
    assert (search.reached, search.accepted.scheme) == (True, WIDER_RANGE)


def test_after_a_program_that_is_larger_than_predicted_changes_are_tried_for_a_smaller_size(planned: Request) -> None:
    target = TargetConfig(size_kib=1050)
    sizes = [(FINER_WEIGHTS, 1_100_000)]
    cells = Cells(planned, [(BEFORE, 20.0), (FINER_WEIGHTS, 26.0), (WIDER_RANGE, 24.0)], sizes, target=target)
    _, steps = searched(cells, target)
    excess = next(number for number, step in enumerate(steps) if step.scheme == FINER_WEIGHTS)
    assert [step.excess_kib for step in steps[: excess + 1]] == [0] * excess + [49]  # of 98 KiB, 49 are weights
    assert [aim.target.size_kib for aim in cells.aims] == [1050] * excess + [1001] * (len(cells.aims) - excess)
    assert len(cells.aims) > excess


def test_under_a_size_no_change_is_accepted_that_loses(planned: Request) -> None:
    target = TargetConfig(size_kib=1100)
    cells = Cells(planned, [(BEFORE, 20.0), (FINER_WEIGHTS, 19.0), (WIDER_RANGE, 18.0)], target=target)
    search, steps = searched(cells, target)
    assert [step.accepted for step in steps] == [True, *[False] * (len(steps) - 1)]
    assert len(steps) > 1
    assert (search.reached, search.accepted.scheme) == (True, BEFORE)


def test_a_program_that_keeps_its_size_with_fewer_bits_is_accepted_and_one_that_grows_is_not(planned: Request) -> None:
    target = TargetConfig(size_kib=940)
    for size, accepted, why in (
        (1_000_000, True, "the weights have fewer bits"),
        (1_000_001, False, "the weights have no fewer bits"),
    ):
        cells = Cells(planned, [(UNDAMAGED, 40.0), (COARSE, 25.0)], [(COARSE, size)], target=target)
        search, steps = searched(cells, target, UNDAMAGED, compilations=2)
        assert [(step.accepted, step.why) for step in steps[1:]] == [(accepted, why)]
        assert not search.reached
        assert search.reason == "budget.compilations=2 is used up; the program has 977 KiB, the target is 940"
