"""The samples of a certificate: those that neither the calibration nor the search has used."""

import hashlib
from collections.abc import Iterator, Sequence

from safetensors.numpy import load

from qnnsweep.tasks.records import Blob, ExportedMethod
from qnnsweep.tasks.records.keys import tensor_key
from qnnsweep.tasks.storage.store import Store


def unseen_samples(methods: Sequence[ExportedMethod], searched: int, store: Store) -> tuple[list[int], int]:
    """Return the samples of the model after the first `searched` ones that no calibration or search has used.

    Return also how many of them are left out. A sample is left out if the inputs of all of its methods, or of all of
    its steps, equal those of used samples. Samples that are equal to each other are used only once.
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
        if sample >= searched and not used.issuperset(digests):
            unseen.append(sample)
        used.update(digests)
    return unseen, sum(sample >= searched for sample in by_sample) - len(unseen)


def _digests(method: ExportedMethod, blob: Blob | None, samples: int, store: Store) -> Iterator[str]:
    tensors, names = load(store.read(blob)) if blob is not None else {}, [spec.name for spec in method.inputs]
    for sample in range(samples if tensors else 0):
        inputs = [tensors[tensor_key(sample, name)].tobytes() for name in names]
        yield hashlib.sha256(b"".join([method.name.encode(), *inputs])).hexdigest()
