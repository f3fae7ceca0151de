"""The samples of a certificate: those that neither the calibration nor the search has used."""

import hashlib
from collections.abc import Iterator, Sequence

from safetensors.numpy import load

from qnnsweep.tasks.records import Blob, ExportedMethod
from qnnsweep.tasks.records.keys import tensor_key
from qnnsweep.tasks.storage.store import Store


def unseen_samples(methods: Sequence[ExportedMethod], searched: int, store: Store) -> tuple[list[int], int]:
    """Return the samples of the model after the first `searched` ones that no calibration or search has used.

    Return also how many of them are left out: those of which a method has read the inputs before. A sequence of steps
    is left out if all of its steps were used, because many sequences begin alike. Samples that are equal to each other
    are used only once. If a method has no unseen sample, there is none.
    """
    used: set[str] = set()
    by_sample: dict[int, list[str]] = {}
    for method in methods:
        used.update(_digests(method, method.calibration, method.calibration_samples, store))
        digests = _digests(method, method.evaluation, len(method.sample_names), store)
        for sample, digest in zip(method.of_model, digests, strict=True):
            by_sample.setdefault(sample, []).append(digest)
    unseen: list[int] = []
    for sample, digests in sorted(by_sample.items()):
        is_seen = used.issuperset(digests) if methods[0].positions else not used.isdisjoint(digests)
        if sample >= searched and not is_seen:
            unseen.append(sample)
        used.update(digests)
    if not all(method.samples_of(unseen) for method in methods):
        unseen = []
    return unseen, sum(sample >= searched for sample in by_sample) - len(unseen)


def _digests(method: ExportedMethod, blob: Blob | None, samples: int, store: Store) -> Iterator[str]:
    tensors, names = load(store.read(blob)) if blob is not None else {}, [spec.name for spec in method.inputs]
    for sample in range(samples if tensors else 0):
        inputs = [tensors[tensor_key(sample, name)].tobytes() for name in names]
        yield hashlib.sha256(b"".join([method.name.encode(), *inputs])).hexdigest()
