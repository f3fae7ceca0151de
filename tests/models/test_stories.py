"""ExecuTorch's static llama with the weights of stories260K."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from qnnsweep.conf.load import load
from qnnsweep.tasks.errors import RequestError
from qnnsweep.tasks.models.stories import static_llama, story
from qnnsweep.tasks.records import PlannedStep, StateLink, StepPlan, TokenRule
from qnnsweep.tasks.toolchain.runner import steps_of
from qnnsweep.tasks.toolchain.tensors import flat_outputs

pytestmark = pytest.mark.slow

DATA = Path(__file__).parents[1] / "data" / "llm"
WEIGHTS, TOKENIZER = DATA / "stories260K.bin", DATA / "tok512.bin"


def test_the_model_writes_its_story() -> None:
    """Another file of the same size that goes around writes nonsense."""
    module, shapes = static_llama(str(WEIGHTS), str(TOKENIZER)), [(1, 1), (1, 1, 128), (1, 1)]
    shapes += [(1, 4, 8, 127)] * 5 + [(1, 4, 127, 8)] * 5
    sequence = story(1, steps=20)[0]["steps"]
    names = ("tokens", "mask", "position")
    fixed = {
        f"{number} {name}": step["inputs"][name] for number, step in enumerate(sequence) for name in step["inputs"]
    }
    steps = tuple(
        PlannedStep(
            method="decode",
            inputs=(*(f"{number} {name}" if name in step["inputs"] else None for name in names), *[None] * 10),
            keep=None,
        )
        for number, step in enumerate(sequence)
    )
    links = tuple(
        StateLink(
            method="decode",
            output=1 + number,
            to_method="decode",
            input=3 + number,
            update="append",
            axis=3 if number < 5 else 2,
        )
        for number in range(10)
    )
    plan = StepPlan(links=links, tokens=(TokenRule(method="decode", output=0, input=0),), sequences=(steps,))

    def read(_: str, index: int, key: str | None) -> Any:
        dtype = torch.float32 if index not in (0, 2) else torch.int32
        return torch.zeros(shapes[index], dtype=dtype).numpy() if key is None else fixed[key].clone().numpy()

    def call(_: tuple[int, int], __: Any, inputs: Any) -> Any:
        with torch.no_grad():
            answer = module(*(torch.from_numpy(array.copy()) for array in inputs))
        return [tensor.contiguous().numpy() for tensor in flat_outputs(answer).values()]

    tokens = [token for *_, token in steps_of(plan, read, call)]
    text = "".join(module.vocabulary[token] for token in tokens if token is not None)
    assert text.startswith(" Once upon a time, there was a little girl named Lily.")


@pytest.mark.parametrize(
    ("weights", "problem"),
    [
        (None, "no such file"),
        ("nowhere.bin", "no such file"),
        (str(TOKENIZER), "not a file of shared weights of llama2.c"),
    ],
)
def test_a_missing_or_another_file_says_where_such_files_come_from(weights: str | None, problem: str) -> None:
    where = "the absolute path of stories260K.bin, of the repository karpathy/tinyllamas on Hugging Face"
    with pytest.raises(RequestError) as refused:
        static_llama(weights)
    assert str(refused.value) == f"model.arguments.weights={weights}: {problem}; {where}"


def test_the_samples_fit_the_configured_inputs() -> None:
    model = load(["model=stories_260k"]).cells[0].request.model
    shapes = {method.name: {spec.name: spec.shape for spec in method.inputs} for method in model.methods or ()}
    for sequence in story(2):
        for step in sequence["steps"]:
            for name, tensor in step["inputs"].items():
                assert list(tensor.shape) == shapes[step["method"]][name]
