"""The samples of a certificate: those that neither the calibration nor the search has used."""

import hashlib
from collections.abc import Iterator, Sequence

from safetensors.numpy import load

from qnnsweep.tasks.records import Blob, ExportedMethod
from qnnsweep.tasks.records.keys import tensor_key
from qnnsweep.tasks.storage.store import Store


def unseen_samples(exported: ExportedMethod, searched: int, store: Store) -> list[int]:
    """Return the evaluation samples after the first `searched` ones whose inputs equal those of no used sample.

    Samples that are equal to each other are used only once.
    """
    names = [spec.name for spec in exported.inputs]
    used = set(_digests(exported.calibration, names, exported.calibration_samples, store))
    unseen: list[int] = []
    for sample, digest in enumerate(_digests(exported.evaluation, names, len(exported.sample_names), store)):
        if sample >= searched and digest not in used:
            unseen.append(sample)
        used.add(digest)
    return unseen


def _digests(blob: Blob | None, names: Sequence[str], samples: int, store: Store) -> Iterator[str]:
    tensors = load(store.read(blob)) if blob is not None else {}
    for sample in range(samples if tensors else 0):
        inputs = [tensors[tensor_key(sample, name)].tobytes() for name in names]
        yield hashlib.sha256(b"".join(inputs)).hexdigest()
