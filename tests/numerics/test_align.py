"""The alignment of logged tensors with operators."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qnnsweep.tasks.numerics.align import Alignment, align
from qnnsweep.tasks.records import ExpectedTensor, Operator, RequantizedTensor
from qnnsweep.tasks.records.logs import LoggedTensor
from qnnsweep.tasks.records.vocabulary import OPERATOR_STATUSES


def event(
    identifier: str | None,
    instruction_id: int = 0,
    run: int = 1,
    is_output: bool = False,
    delegate_argument: bool = False,
) -> LoggedTensor:
    return LoggedTensor(
        run=run, chain_index=0, instruction_id=instruction_id, delegate_identifier=identifier, name=None,
        scalar_type="float32", shape=(2,), strides=(1,), offset=0, is_output=is_output,
        delegate_argument=delegate_argument, list_index=None,
    )  # fmt: skip


def operator(
    index: int,
    handle: int | None,
    output_index: int = 0,
    *,
    shape: tuple[int, ...] | None = (2,),
    constant: bool = False,
    unused: bool = False,
) -> Operator:
    return Operator(
        index=index,
        name=f"op_{index}",
        target="",
        debug_handle=handle,
        output_index=output_index,
        source_nodes=(),
        module_path="",
        stack_trace="",
        shape=shape,
        dtype="float32",
        quantization=None,
        axis_order=None,
        subgraph=0,
        constant=constant,
        unused=unused,
    )


def expected(identifier: str, *handles: int, output_index: int = 0) -> ExpectedTensor:
    return ExpectedTensor(
        identifier=identifier, debug_handles=handles, output_index=output_index, quantization=None, axis_order=None
    )


def match_or_reason(alignment: Alignment) -> list[str]:
    """Return per row the identifier of its event, or the reason why there is none."""
    return [row.reason or str(row.matches[0].event.delegate_identifier) for row in alignment.operators]


def test_an_event_is_matched_by_handle_and_output_index() -> None:
    operators = [operator(0, 9), operator(1, 11, shape=None), operator(2, 11), operator(3, 11, 1)]
    expected_tensors = [expected("pool@1", 11, output_index=1), expected("pool@0", 11), expected("conv@0", 9)]
    events = [event("conv@0"), event("pool@0"), event("pool@1")]
    alignment = align(operators, expected_tensors, events)
    assert match_or_reason(alignment) == ["conv@0", "tuple", "pool@0", "pool@1"]
    assert [row.matches[0].expected for row in alignment.operators if row.reason is None] == [
        expected_tensors[2],
        expected_tensors[1],
        expected_tensors[0],
    ]
    assert alignment.unexpected == ()


@pytest.mark.parametrize(("dtype", "reason"), [("int64", "dtype_differs"), ("bool", None), ("uint8", None)])
def test_64_bit_integers_that_were_logged_as_bytes_are_not_the_value(dtype: str, reason: str | None) -> None:
    logged = replace(event("cast@0"), scalar_type="uint8")
    (row,) = align([replace(operator(0, 1), dtype=dtype)], [expected("cast@0", 1)], [logged]).operators
    assert row.reason == reason


def test_every_operator_has_a_row_in_every_run() -> None:
    events = [event("a@0", run=1), event("a@0", run=2), event("b@0", run=2), event(None, run=3, is_output=True)]
    alignment = align([operator(0, 1), operator(1, 2)], [expected("a@0", 1), expected("b@0", 2)], events)
    assert [(row.run, row.operator.index) for row in alignment.operators] == [
        (1, 0),
        (1, 1),
        (2, 0),
        (2, 1),
        (3, 0),
        (3, 1),
    ]
    assert match_or_reason(alignment) == ["a@0", "not_dumped", "a@0", "b@0", "not_dumped", "not_dumped"]


def test_a_run_that_logged_nothing_has_its_rows_if_it_is_given() -> None:
    assert match_or_reason(align([operator(0, 1)], [expected("a@0", 1)], [], runs=[1, 2])) == [
        "not_dumped",
        "not_dumped",
    ]


def test_an_operator_without_a_loggable_value_has_the_reason() -> None:
    operators = [
        operator(0, 1, shape=None),
        operator(1, 2, constant=True),
        operator(2, None),
        operator(3, 4),
        operator(4, 1, 1, unused=True),
    ]
    reasons = ["tuple", "constant", "no_handle", "not_dumped", "unused"]
    assert match_or_reason(align(operators, [], [], runs=[1])) == reasons
    # Logged tensors do not change the reasons.
    tensors = [expected("a@0", 1), expected("a@1", 1, output_index=1), expected("b@0", 2)]
    events = [event("a@0"), event("a@1"), event("b@0")]
    assert match_or_reason(align(operators, tensors, events)) == reasons


def test_a_similar_name_is_not_a_match() -> None:
    alignment = align(
        [operator(0, 1)], [expected("conv1@0", 1)], [event("conv10@0"), event("conv1"), event("conv10@0")]
    )
    assert match_or_reason(alignment) == ["not_dumped"]
    assert alignment.unexpected == ("conv10@0", "conv1")


def test_the_last_operator_of_a_set_of_handles_is_its_value() -> None:
    operators = [operator(0, 7), operator(1, 8), operator(2, 9)]
    assert match_or_reason(align(operators, [expected("fused@0", 9, 7, 8)], [event("fused@0")])) == [
        "superseded",
        "superseded",
        "fused@0",
    ]


def test_an_operator_inside_a_set_is_compared_if_it_was_also_logged_alone() -> None:
    operators = [operator(0, 7), operator(1, 8)]
    expected_tensors = [expected("fused@0", 7, 8), expected("inner@0", 7)]
    assert match_or_reason(align(operators, expected_tensors, [event("fused@0"), event("inner@0")])) == [
        "inner@0",
        "fused@0",
    ]


def test_the_last_of_the_operators_that_share_a_handle_is_its_value() -> None:
    operators = [operator(0, 5), operator(1, 5), operator(2, 5, 1), operator(3, 5, constant=True)]
    assert match_or_reason(align(operators, [expected("a@0", 5)], [event("a@0")])) == [
        "superseded",
        "a@0",
        "not_dumped",
        "constant",
    ]


@pytest.mark.parametrize(
    ("expected_tensors", "events", "rivals"),
    [
        ([expected("a@0", 1), expected("b@0", 1)], [event("a@0"), event("b@0")], 2),
        ([expected("a@0", 1), expected("b@0", 1)], [event("b@0")], 1),
        ([expected("a@0", 1), expected("a@0", 2)], [event("a@0")], 1),
    ],
)
def test_two_tensors_that_can_be_one_operator_s_value_are_ambiguous(
    expected_tensors: list[ExpectedTensor], events: list[LoggedTensor], rivals: int
) -> None:
    (row,) = align([operator(0, 1)], expected_tensors, events).operators
    assert (row.reason, len(row.matches)) == ("ambiguous", rivals)


def test_several_values_of_one_operator_in_one_inference_are_repeated() -> None:
    events = [event("a@0"), event("a@0"), event("a@0", run=2)]
    rows = align([operator(0, 1)], [expected("a@0", 1)], events).operators
    assert [(row.run, row.reason, len(row.matches)) for row in rows] == [(1, "repeated", 2), (2, None, 1)]


def test_an_expected_tensor_that_is_listed_twice_is_not_ambiguous() -> None:
    assert match_or_reason(align([operator(0, 1)], [expected("a@0", 1), expected("a@0", 1)], [event("a@0")])) == ["a@0"]


def test_a_kernel_s_tensors_are_its_outputs_in_order() -> None:
    first, second = event(None, 2), event(None, 2)
    operators = [operator(0, 4, shape=None), operator(1, 4), operator(2, 4, 1)]
    expected_tensors = [expected("instruction:2:1", 4, output_index=1), expected("instruction:2:0", 4)]
    alignment = align(operators, expected_tensors, [first, second])
    assert [row.reason for row in alignment.operators] == ["tuple", None, None]
    assert alignment.operators[1].matches[0].event is first
    assert alignment.operators[2].matches[0].event is second


@pytest.mark.parametrize("logged", [1, 3, 4])
def test_a_kernel_that_logged_another_number_of_tensors_is_ambiguous(logged: int) -> None:
    expected_tensors = [expected("instruction:2:0", 4), expected("instruction:2:1", 4, output_index=1)]
    alignment = align([operator(0, 4), operator(1, 4, 1)], expected_tensors, [event(None, 2)] * logged)
    assert match_or_reason(alignment) == ["ambiguous", "ambiguous"]


def test_a_delegate_call_s_outputs_are_the_last_of_its_arguments() -> None:
    arguments = [event(None, 3, delegate_argument=True) for _ in range(3)]
    expected_tensors = [expected("instruction:3:0", 1), expected("instruction:3:1", 2)]
    alignment = align([operator(0, 1), operator(1, 2)], expected_tensors, arguments)
    assert [row.matches[0].event for row in alignment.operators] == arguments[1:]
    assert alignment.operators[0].matches[0].event is arguments[1]
    assert alignment.unexpected == ()


def test_a_kernel_that_is_not_expected_is_reported_and_a_final_output_is_not() -> None:
    events = [event(None, 6), event(None, 0, is_output=True), event(None, 0, delegate_argument=True)]
    assert align([], [], events).unexpected == ("instruction:6:0",)


HANDLES = st.integers(1, 4)
IDENTIFIERS = st.sampled_from(["a@0", "b@0", "c@1", "instruction:0:0", "instruction:0:1"])
OPERATORS = st.lists(
    st.tuples(st.none() | HANDLES, st.integers(0, 1), st.sampled_from([None, (2,)]), st.booleans(), st.booleans()),
    max_size=6,
).map(lambda rows: [operator(i, h, o, shape=s, constant=c, unused=u) for i, (h, o, s, c, u) in enumerate(rows)])
EXPECTED = st.lists(
    st.builds(lambda i, h, o: expected(i, *h, output_index=o), IDENTIFIERS, st.sets(HANDLES), st.integers(0, 1)),
    max_size=5,
)
EVENTS = st.lists(
    st.builds(event, st.none() | IDENTIFIERS, st.integers(0, 1), st.integers(1, 2), st.booleans(), st.booleans()),
    max_size=8,
)


@given(OPERATORS, EXPECTED, EVENTS)
def test_every_row_has_one_match_or_one_reason_and_no_event_is_matched_twice(
    operators: list[Operator], expected_tensors: list[ExpectedTensor], events: list[LoggedTensor]
) -> None:
    alignment = align(operators, expected_tensors, events)
    runs = sorted({event.run for event in events})
    assert [(row.run, row.operator) for row in alignment.operators] == [(run, op) for run in runs for op in operators]
    used = []
    for row in alignment.operators:
        if row.reason is not None:
            assert row.reason in OPERATOR_STATUSES
            continue
        (match,) = row.matches
        assert match.event.run == row.run
        assert row.operator.debug_handle in match.expected.debug_handles
        assert row.operator.output_index == match.expected.output_index
        used.append((row.run, match.expected.identifier))
    assert len(used) == len(set(used))


@given(OPERATORS, EXPECTED, EVENTS, st.randoms())
def test_the_order_of_the_expected_tensors_does_not_matter(
    operators: list[Operator], expected_tensors: list[ExpectedTensor], events: list[LoggedTensor], random: object
) -> None:
    shuffled = list(expected_tensors)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert match_or_reason(align(operators, expected_tensors, events)) == match_or_reason(
        align(operators, shuffled, events)
    )


def requantized(index: int, identifier: str, *, call: int = 0, constant: bool = False) -> RequantizedTensor:
    return RequantizedTensor(
        operator=operator(index, None, constant=constant),
        identifier=identifier,
        instruction=call,
        source=0,
        readers=(1,),
    )


def test_tensors_of_one_name_in_two_subgraphs_are_distinguished_by_the_delegate_call() -> None:
    events = [event("to_copy@0", 0), event("to_copy@0", 2), event("to_copy@0", 5)]
    records = [requantized(1, "to_copy@0", call=2), requantized(2, "to_copy@0", call=5)]
    alignment = align([operator(0, 7)], [expected("to_copy@0", 7), expected("to_copy@0")], events, requantized=records)
    assert [(row.reason, [match.event for match in row.matches]) for row in alignment.requantized] == [
        (None, [events[1]]),
        (None, [events[2]]),
    ]


def test_a_requantized_tensor_is_matched_by_its_identifier_in_every_run() -> None:
    tensors = [expected("a@0", 1), expected("to_copy@0"), expected("to_copy_1@0")]
    events = [event("a@0"), event("to_copy@0"), event("a@0", run=2)]
    records = [requantized(1, "to_copy@0"), requantized(2, "to_copy_1@0")]
    alignment = align([operator(0, 1)], tensors, events, requantized=records)
    assert [(row.run, row.operator.index, row.reason) for row in alignment.requantized] == [
        (1, 1, None),
        (1, 2, "not_dumped"),
        (2, 1, "not_dumped"),
        (2, 2, "not_dumped"),
    ]
    (match,) = alignment.requantized[0].matches
    assert (match.event, match.expected) == (events[1], tensors[1])
    assert match_or_reason(alignment) == ["a@0", "a@0"]
    assert alignment.unexpected == ()


@pytest.mark.parametrize(
    ("records", "tensors", "events", "reason"),
    [
        ([requantized(1, "c@0"), requantized(2, "c@0")], [expected("c@0")], [event("c@0")], "ambiguous"),
        ([requantized(1, "c@0")], [expected("c@0")], [event("c@0"), event("c@0")], "repeated"),
        ([requantized(1, "c@0", constant=True)], [expected("c@0")], [event("c@0")], "constant"),
        ([requantized(1, "c@0")], [expected("c@0")], [event("b@0")], "not_dumped"),
        ([requantized(1, "c@0")], [expected("c@0")], [event("c@0", 3)], "not_dumped"),
    ],
    ids=["two conversions", "logged twice", "constant", "not logged", "another subgraph's"],
)
def test_a_requantized_tensor_without_exactly_one_logged_tensor_has_the_reason(
    records: list[RequantizedTensor], tensors: list[ExpectedTensor], events: list[LoggedTensor], reason: str
) -> None:
    alignment = align([], tensors, events, requantized=records)
    assert [row.reason for row in alignment.requantized] == [reason] * len(records)
    names = {tensor.identifier for tensor in tensors}
    unexpected = {str(event.delegate_identifier) for event in events} - names
    assert set(alignment.unexpected) == unexpected
