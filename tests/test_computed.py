"""The results of stages that the processes of the tests share."""

from __future__ import annotations

from pathlib import Path

from qnnsweep.tasks.records import Command
from qnnsweep.tasks.stage import stage
from qnnsweep.tasks.storage.store import Store
from tests.computed import computed


def test_a_result_is_computed_once_for_equal_arguments_and_found_by_another_store_in_the_same_folder(
    tmp_path: Path,
) -> None:
    calls: list[int] = []

    def counted(number: int, *, store: Store) -> Command:
        calls.append(number)
        return Command(argv=(str(number),), exit_code=0, seconds=0.5)

    task = stage(counted, version=1)
    results = [computed(task, number, store=Store(tmp_path)).argv for number in (1, 2, 1)]
    assert (results, calls) == ([("1",), ("2",), ("1",)], [1, 2])
