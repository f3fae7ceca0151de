"""The samples whose operators are captured alone, once the programs ran.

They are the device's worst sample, if it is not among the captured ones, and those of a debug program that failed.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from numpy.typing import NDArray
from safetensors import safe_open

from qnnsweep.tasks.comparison.diverged import Place, diverged
from qnnsweep.tasks.numerics.samples import sample_noise
from qnnsweep.tasks.records import Blob, Bundle, Capture, Launch, LaunchedMethod
from qnnsweep.tasks.records.keys import METHOD, tensor_key
from qnnsweep.tasks.records.stages import by_place
from qnnsweep.tasks.storage.store import Store
from qnnsweep.tasks.toolchain import runner


def bundle_of_worst(bundle: Bundle, capture: Capture, store: Store) -> Bundle | None:
    """Return the bundle that captures the operators of the device's worst sample.

    Return None if they are captured, or if there is no debug program that could capture them. For the noise by which
    samples are compared, see `qnnsweep.tasks.numerics.samples`.
    """
    if not any(check.debug for check in bundle.checks):
        return None
    methods = _methods(bundle, capture, store)
    left_out = _diverged(bundle.launches[0], methods, store)
    samples = [(method, sample) for method in methods for sample in method.samples if (method, sample) not in left_out]
    if not samples:
        return None
    method, worst = max(samples, key=lambda pair: pair[0].noise(pair[1]))
    if not method.debug or worst in method.captured:
        return None
    return _bundle(bundle, [_alone(launch, worst, store) for launch in method.debug])


def bundle_of_failed(bundle: Bundle, capture: Capture, store: Store) -> Bundle | None:
    """Return the bundle of the debug programs that failed with several samples, with a launch per sample.

    ViT-B/16, which logs 590 MB per inference, was seen to end with SIGSEGV in its second inference. Return None if no
    debug program failed, or if it had one sample.
    """
    launches = [
        _alone(launch, sample, store)
        for check, captured in zip(bundle.checks, capture.methods, strict=False)  # a bundle may have no checks
        for failed in captured.results
        if failed.failure is not None and len(failed.launch.captured) > 1
        for launch in check.debug
        if launch.part == failed.launch.part
        for sample in failed.launch.captured
    ]
    return _bundle(bundle, launches) if launches else None


def _alone(launch: Launch, sample: int, store: Store) -> Launch:
    """Return the launch on one sample. `launch`: see `WorstCheck`."""
    line = store.read(launch.input_list).splitlines(keepends=True)[sample]
    return replace(launch, input_list=store.put_bytes(line), captured=(sample,))


def _bundle(bundle: Bundle, launches: Sequence[Launch]) -> Bundle:
    inputs = dict.fromkeys(launch.input_list for launch in launches)
    return Bundle(runner=bundle.runner, blobs=(*bundle.blobs, *inputs), launches=tuple(launches))


@dataclass(frozen=True, eq=False, slots=True)
class _Method:
    """A method with its final outputs on the device and in eager PyTorch's own run."""

    launched: LaunchedMethod
    debug: Sequence[Launch]
    captured: Sequence[int]
    samples: range
    device: "_Tensors"
    eager: "_Tensors"

    @property
    def name(self) -> str:
        return self.launched.name or METHOD

    def noise(self, sample: int) -> float:
        keys = [tensor_key(sample, index) for index in range(len(self.launched.outputs))]
        return sample_noise((self.device[key], self.eager[key]) for key in keys)


class _Tensors:
    """The tensors of a file, each of which is read when it is used."""

    def __init__(self, blob: Blob, store: Store) -> None:
        store.verify(blob)
        self._file = safe_open(store.path(blob), framework="np")

    def __getitem__(self, key: str) -> NDArray[Any]:
        return self._file.get_tensor(key)


def _methods(bundle: Bundle, capture: Capture, store: Store) -> list[_Method]:
    """Return the methods of the program, in their order."""
    shipping = [method for launch in bundle.launches if launch.name == "shipping" for method in launch.methods]
    return [
        _Method(
            launched,
            [launch for launch in check.debug if launch.part not in captured.failures],
            captured.captured,
            range(check.choosable),
            _Tensors(captured.outputs, store),
            _Tensors(check.outputs_eager, store),
        )
        for launched, check, captured in zip(shipping, bundle.checks, capture.methods, strict=True)
    ]


def _diverged(shipping: Launch, methods: Sequence[_Method], store: Store) -> set[tuple[_Method, int]]:
    """Return the samples for which the device read other tokens than eager PyTorch; none without a driver."""
    if not shipping.driven:
        return set()
    plan = runner.plan_of(store.read(shipping.input_list).decode())
    samples = {
        place: (method, sample) for method in methods for place, sample in by_place(method.launched.positions).items()
    }
    return {samples[place] for place in diverged(plan, dict(_tokens(plan, samples)))}


def _tokens(
    plan: Any, samples: Mapping[Place, tuple[_Method, int]]
) -> Iterator[tuple[Place, tuple[int | None, int | None]]]:
    """Yield, per step, its token on the device and in eager PyTorch."""
    for sequence, steps in enumerate(plan.sequences):
        for number, step in enumerate(steps):
            place = sequence, number
            method, sample = samples[place]
            scores = runner.token_position(plan, step.method, "output")
            if scores is None:
                yield place, (None, None)
            else:
                key = tensor_key(sample, scores)
                yield place, (runner.chosen(method.device[key], step.keep), runner.chosen(method.eager[key], step.keep))
