"""The names inside programs and files of tensors."""

from __future__ import annotations

from pathlib import Path

from qnnsweep.tasks.records.keys import METHOD, tensor_key, tensor_name

TASKS = Path(__file__).parents[1] / "tasks"


def test_a_tensors_key_is_its_sample_and_its_name() -> None:
    assert (tensor_key(3, "image"), tensor_key(0, 12)) == ("3/image", "0/12")
    assert (tensor_name("3/image"), tensor_name("3/a/b")) == ("image", "a/b")


def test_the_name_of_an_only_method_is_written_once() -> None:
    files = {path.relative_to(TASKS).as_posix() for path in TASKS.rglob("*.py") if f'"{METHOD}"' in path.read_text()}
    assert files == {"records/keys.py"}
