"""How the samples of a cell use the grids of the model's inputs."""

from collections.abc import Iterator

import numpy as np
from safetensors.numpy import load

from qnnsweep.tasks.records import InputUse, LoweredMethod
from qnnsweep.tasks.records.keys import tensor_key
from qnnsweep.tasks.storage.store import Store


def input_uses(lowered: LoweredMethod, store: Store) -> Iterator[InputUse]:
    """Yield the use of every input that has one grid for all its elements, by the samples that may be chosen.

    Elements that are not finite do not count.
    """
    exported = lowered.exported
    evaluation = load(store.read(exported.evaluation))
    for spec, qparams in zip(exported.inputs, lowered.input_qparams, strict=True):
        if qparams is None or (ends := qparams.ends) is None:
            continue
        tensors = [evaluation[tensor_key(sample, spec.name)] for sample in range(lowered.choosable)]
        finite = [values for tensor in tensors if (values := tensor[np.isfinite(tensor)]).size]
        if finite:
            half = qparams.scale[0] / 2  # a value that is not further beyond an end is rounded to it
            beyond = [(values < ends[0] - half) | (values > ends[1] + half) for values in finite]
            yield InputUse(
                input=spec.name,
                least=min(float(values.min()) for values in finite),
                largest=max(float(values.max()) for values in finite),
                clipped_elements=sum(int(np.count_nonzero(of_sample)) for of_sample in beyond),
            )
