"""Configuration that would take minutes to read, or all memory, is refused at once with one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from qnnsweep.conf.errors import RequestError
from qnnsweep.conf.load import load

pytestmark = pytest.mark.timeout(60)
"""Much more than a check takes, much less than the minutes that Hydra and OmegaConf would take."""


def message_of(overrides: list[str], folder: Path) -> str:
    with pytest.raises(RequestError) as caught:
        load(overrides, config_dirs=[folder])
    return str(caught.value)


def with_arguments(mine: Path, name: str, text: str) -> Path:
    """Write an option whose model has the YAML text as an argument."""
    file = mine / "model" / f"{name}.yaml"
    shipped = (mine / "model" / "my_net.yaml").read_text()
    file.write_text(shipped.replace("name: my_net", f"name: {name}").replace("width: 2", f"width: {text}"))
    return file


@pytest.mark.parametrize("is_selected_by_path", [False, True], ids=["in a folder", "by path"])
def test_aliases_that_repeat_a_million_values_are_refused(
    mine: Path, tmp_path: Path, is_selected_by_path: bool
) -> None:
    levels = ", ".join(f"&l{level} [{', '.join(['x' if not level else f'*l{level - 1}'] * 9)}]" for level in range(6))
    file = with_arguments(mine, "bomb", f"[{levels}]")
    if is_selected_by_path:
        file = file.rename(tmp_path / "bomb.yaml")
    command = [f"model={file}"] if is_selected_by_path else ["model=my_net"]
    message = message_of(command, mine)
    prefix, _, suffix = message.partition(": ")
    count = int(suffix.split()[0])
    assert count > 9**6
    assert message == f"{file}: {count} values, counting those that its aliases repeat; at most 10000"
    assert prefix == str(file)


def test_a_list_with_too_many_values_is_refused(mine: Path) -> None:
    file = with_arguments(mine, "long", f"[{', '.join(['1'] * 10_000)}]")
    message = message_of(["model=my_net"], mine)
    assert message.startswith(f"{file}: 100")
    assert message.endswith(" values, counting those that its aliases repeat; at most 10000")


def test_an_alias_inside_its_anchor_is_refused_in_one_line(mine: Path) -> None:
    with_arguments(mine, "endless", "&a [*a]")
    assert "\n" not in message_of(["model=endless"], mine)


def test_a_file_that_is_too_large_is_refused(mine: Path) -> None:
    file = mine / "model" / "large.yaml"
    file.write_text("#" * 1_000_001)
    assert message_of(["model=my_net"], mine) == f"{file}: 1000001 bytes; at most 1000000"


def test_a_file_within_the_limits_is_read(mine: Path) -> None:
    with_arguments(mine, "wide", f"[&w {', '.join(['1'] * 999)}, *w]")
    (cell,) = load(["model=wide"], config_dirs=[mine]).cells
    assert cell.request.model.arguments["width"] == [1] * 1000


def test_an_override_that_is_too_long_is_refused(mine: Path) -> None:
    override = f"+model.arguments.x=[{','.join(map(str, range(20_000)))}]"
    assert message_of(["model=my_net", override], mine) == (
        f"+model.arguments.x: {len(override)} characters; at most 4000; put long lists into the YAML file of an option"
    )
