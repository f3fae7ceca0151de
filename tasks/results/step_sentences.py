"""The sentences about the steps of a model with states: the worst step, and the first token that differs."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from qnnsweep.tasks.records import OutputComparison, StepComparison
from qnnsweep.tasks.records.vocabulary import STEP_MISTAKES, StepMistake

_FUSED_DB = 6.0  # the debug program has at most a quarter of the noise of the shipping program


def step_sentences(steps: Sequence[StepComparison], output: OutputComparison | None) -> Iterator[str]:
    """Yield a sentence about the step that has the reported output, and one about the tokens.

    `steps`: of all sequences. `output`: None if no output has noise.
    """
    if len(steps) < 2:
        return
    place = output and (output.method, output.sample)
    worst = next((step for step in steps if (step.method, step.method_sample) == place), None)
    if worst is not None and worst.origin != "none":
        yield f"The worst output is that of {_words(worst)}, {_from(worst)}.{_fused(worst)}"
    yield from _mistakes(steps, worst)
    chosen = [step for step in steps if step.token is not None]
    if not chosen:
        return
    sequences = len({step.sample for step in chosen})
    first: dict[int, StepComparison] = {}
    for step in sorted(chosen, key=lambda step: step.step):
        if step.token != step.token_reference:
            first.setdefault(step.sample, step)
    if not first:
        yield f"All tokens of {_sequences(sequences)} are those of eager PyTorch."
        return
    looping = sum(map(_loops_on_the_device_only, ([step for step in chosen if step.sample == name] for name in first)))
    if looping:
        yield f"{looping} of {_sequences(sequences)} end in a repetition that eager PyTorch does not have."
    step, differing = first[min(first)], f"{len(first)} of {_sequences(sequences)}"
    yield f"{differing} have a token that differs, the first in {_words(step)}{_margin(step)}."


def _mistakes(steps: Sequence[StepComparison], worst: StepComparison | None) -> Iterator[str]:
    """Yield what the wrong steps compute with instead, or else the first wrong cache: the worst step's, if any."""
    counts = Counter[StepMistake](step.mistake for step in steps if step.mistake is not None)
    for mistake, count in counts.items():
        first = next(step for step in steps if step.mistake == mistake)
        more = f", as {count - 1} more" if count > 1 else ""
        yield f"{_at_start(_words(first))} computes {STEP_MISTAKES[mistake]}{more}."
    listed = [*steps] if worst is None else [worst, *steps]
    wrong = next((step for step in listed if step.first_wrong_state is not None), None)
    if wrong is not None and not counts:
        yield f"The first wrong cache is {wrong.first_wrong_state}, in {_words(wrong)}."


def _loops_on_the_device_only(steps: Sequence[StepComparison]) -> bool:
    return _loops(step.token for step in steps) and not _loops(step.token_reference for step in steps)


def _loops(tokens: Iterable[int | None]) -> bool:
    """Return whether the end of a text repeats at most four tokens at least three times, or one token six times."""
    listed = list(tokens)
    return any(
        len(listed) >= size * times and listed[-size * times :] == listed[-size:] * times
        for size, times in ((1, 6), (2, 3), (3, 3), (4, 3))
    )


def _at_start(words: str) -> str:
    """Return words with a capital letter at their start; names in them stay as they are."""
    return words[:1].upper() + words[1:]


def step_in_words(step: int, method: str | None, sample_name: str) -> str:
    """Return the name of a step in words. `step`: its number in its sequence, whose name is `sample_name`."""
    of_method = "" if method is None else f" ({method})"
    return f'step {step}{of_method} of "{sample_name}"'


def _words(step: StepComparison) -> str:
    return step_in_words(step.step, step.method, step.sample_name)


def _from(step: StepComparison) -> str:
    if step.origin == "inherited":
        return "most of it inherited from the state and the token that the device had"
    return "most of it introduced by the step itself"


def _fused(step: StepComparison) -> str:
    """Return a sentence if the debug program, on the same inputs, does not have the error of the shipping program."""
    debug, shipping = step.debug_introduced_snr_db, step.introduced_snr_db
    if debug is None or shipping is None or debug < shipping + _FUSED_DB or step.origin != "introduced":
        return ""
    return f" On the same inputs the debug program is at {debug:.1f} dB, so it is what the compiler fuses."


def _sequences(count: int) -> str:
    return "1 sequence" if count == 1 else f"{count} sequences"


def _margin(step: StepComparison) -> str:
    """Return how sure eager PyTorch was of its token, and how wrong the scores of the device are."""
    if step.margin is None or step.score_error is None:
        return ""
    near = ", so the two tokens were nearly equally good" if step.margin < 2 * step.score_error else ""
    return f": its margin is {step.margin:.3g}, and a score is off by up to {step.score_error:.3g}{near}"
