"""The quantization of an exported program with torchao's pt2e flow. Runs in a worker."""

from pathlib import Path

import torch
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

from conf.schema import Precision, SchemeConfig
from tasks.records import Blob, ExportedModel, QuantizedModel
from tasks.storage.store import Store
from tasks.toolchain.backends.select import backend_of
from tasks.toolchain.export import make_deterministic
from tasks.toolchain.tensors import outputs_by_sample, put_tensors, read_samples


def quantize_model(exported: ExportedModel, scheme: SchemeConfig, kind: str, store: Store) -> QuantizedModel:
    """Quantize the exported program: prepare, calibrate, convert. A floating-point scheme leaves it unchanged."""
    make_deterministic()
    names = [spec.name for spec in exported.inputs]
    evaluation = read_samples(store, exported.evaluation, names, len(exported.sample_names))
    blob = exported.program
    module = load_program(store, blob).module()
    quantized = scheme.precision is Precision.quantized
    with torch.no_grad():
        if quantized:
            assert exported.calibration is not None, "checked by conf.load"
            count = min(scheme.calibration_samples, exported.calibration_samples)
            prepared = prepare_pt2e(module, backend_of(kind).compiler(scheme, None).quantizer(scheme, module))
            for sample in read_samples(store, exported.calibration, names, count):
                prepared(*sample)
            module = convert_pt2e(prepared)
            torch.export.save(torch.export.export(module, evaluation[0], strict=True), "program.pt2")
            blob = store.put_file(Path("program.pt2"))
        answers = [module(*sample) for sample in evaluation]
    return QuantizedModel(
        exported=exported,
        scheme=scheme.name,
        program=blob,
        quantized=quantized,
        outputs_quantized=put_tensors(store, outputs_by_sample(answers)),
    )


def load_program(store: Store, blob: Blob) -> torch.export.ExportedProgram:
    store.verify(blob)
    return torch.export.load(store.path(blob))
