"""benchmarks/damage.py: that no mutated file crashes its reader or is read as something else, on a few mutations."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qnnsweep.conf.schema import Request
from qnnsweep.tasks.numerics.verdict import of_scheme
from qnnsweep.tasks.records import Capture, LoweredProgram
from qnnsweep.tasks.records.options import ComparisonOptions
from tests.sample_tables import nightly, sweep

if TYPE_CHECKING:
    from qnnsweep.flows.cells.resources import Resources

import broken_readers  # isort: skip
import damage  # isort: skip
import mutated  # isort: skip

pytestmark = pytest.mark.toolchain

FEW = 40


@pytest.fixture(scope="module")
def material(
    request_8a8w: Request,
    resources: Resources,
    lowered: LoweredProgram,
    capture: Capture,
    tmp_path_factory: pytest.TempPathFactory,
) -> mutated.Material:
    options = ComparisonOptions(
        classifier=True, tolerances=of_scheme(request_8a8w.tolerance.operators, request_8a8w.scheme.name)
    )
    rows = sweep(nightly()[:2], count=8)
    root = tmp_path_factory.mktemp("material")
    return mutated.Material.create(root, lowered, capture, resources.store, rows, options)


@given(st.binary(max_size=300), st.integers())
def test_a_mutation_is_reproducible(data: bytes, seed: int) -> None:
    first, second = (damage.mutated(data, random.Random(seed)) for _ in range(2))
    assert first == second


@pytest.mark.parametrize("kind", ["etdump", "debug buffer", "record", "key file", "blob"])
def test_a_mutated_file_is_read_right_or_refused(kind: str, material: mutated.Material) -> None:
    counts = damage.mutate(material, kind, range(FEW), seed=0)
    assert counts.failures == []
    assert counts.mutations == FEW
    expected = {"etdump": "refused", "debug buffer": "read", "record": "refused", "key file": "equal"}
    assert counts.outcomes[expected.get(kind, "refused")] > 0


def test_a_mutated_program_is_compared_with_what_it_was_or_refused(material: mutated.Material) -> None:
    counts = damage.mutate(material, "diff of programs", range(8), seed=0)
    assert counts.failures == []
    assert counts.mutations == 8
    assert set(counts.outcomes) == {"read", "refused"}


def test_a_comparison_of_a_mutated_file_has_the_same_rows_or_is_refused(material: mutated.Material) -> None:
    counts = damage.mutate(material, "comparison of damaged files", range(FEW), seed=0)
    assert counts.failures == []
    assert set(counts.outcomes) == {"equal", "refused"}


@pytest.mark.parametrize(
    ("fails", "problem"),
    [
        (broken_readers.crashing, "crash: exit code -6"),
        (broken_readers.misreading, "different"),
        (broken_readers.confused, "unexpected: IndexError of file: pop from empty list"),
        (broken_readers.hungry, "equal with 600 MB"),
    ],
)
def test_every_failure_is_counted_and_the_mutations_after_it_are_made_too(
    fails: damage.ReadersOf, problem: str, material: mutated.Material
) -> None:
    counts = damage.mutate(material, "file", range(6), seed=2, readers_of=fails)
    assert counts.mutations == 6
    assert 0 < len(counts.failures) < 6
    assert {failure.partition(": ")[2] for failure in counts.failures} == {problem}
    assert counts.outcomes["equal"] == 6 - len(counts.failures)
