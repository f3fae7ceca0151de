"""The scripts of users who follow ExecuTorch's own documentation and do not know qnnsweep. Imported in workers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch


class TinyTransformer(torch.nn.Module):
    """The parts of the tutorial's vision transformer, in small."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = torch.nn.Conv2d(3, 16, 4, 4)
        self.norm = torch.nn.LayerNorm(16)
        self.attention = torch.nn.MultiheadAttention(16, 2, batch_first=True)
        self.mlp = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 16))
        self.head = torch.nn.Linear(16, 10)
        self.token = torch.nn.Parameter(torch.randn(1, 1, 16))

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        patches = self.patches(image).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.token.expand(image.shape[0], -1, -1), patches], 1)
        normed = self.norm(tokens)
        tokens = tokens + self.attention(normed, normed, normed, need_weights=False)[0]
        return self.head((tokens + self.mlp(tokens))[:, 0])


def transformer(head_bias: float = 0.0) -> TinyTransformer:
    torch.manual_seed(0)
    model = TinyTransformer().eval()
    model.head.bias.data[3] += head_bias
    return model


def inputs() -> tuple[torch.Tensor]:
    return (torch.randn(1, 3, 16, 16, generator=torch.Generator().manual_seed(1)),)


def lowered(models: torch.nn.Module | dict[str, torch.nn.Module], *, xnnpack: bool) -> Any:
    """The ExecutorchProgramManager of the tutorial's steps, for a model or for the models of several methods."""
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.backends.xnnpack.utils.configs import get_xnnpack_edge_compile_config
    from executorch.exir import to_edge_transform_and_lower
    from torch.export import export

    of_methods = models if isinstance(models, dict) else {"forward": models}
    edge = to_edge_transform_and_lower(
        {name: export(model, inputs(), strict=True) for name, model in of_methods.items()},
        partitioner=[XnnpackPartitioner()] if xnnpack else None,
        compile_config=get_xnnpack_edge_compile_config(),
        generate_etrecord=True,
    )
    return edge.to_executorch()


def programs() -> dict[str, bytes]:
    """Programs for XNNPACK and for the portable kernels, each also with another element of one bias."""
    return {
        f"{backend}{'_changed' if change else ''}": bytes(lowered(transformer(change), xnnpack=xnnpack).buffer)
        for backend, xnnpack in (("xnnpack", True), ("portable", False))
        for change in (0.0, 0.5)
    }


def captured(folder: Path) -> None:
    """The tutorial's first pipeline: a program, its ETRecord, and the ETDump and debug buffer of one execution."""
    save_executed(lowered(transformer(), xnnpack=True), "forward", folder)


def captured_methods(folder: Path, methods: Sequence[str] = ("forward", "score")) -> None:
    """A program with these methods, of which `score` is executed."""
    models = {"forward": transformer().patches, "score": transformer(head_bias=0.5)}
    save_executed(lowered({name: models[name] for name in methods}, xnnpack=True), "score", folder)


def save_executed(program: Any, method: str, folder: Path) -> None:
    """Save a program, its ETRecord, and the ETDump and debug buffer of one execution of a method."""
    from executorch.runtime import Runtime, Verification

    program.save(str(folder / "net.pte"))
    record = program.get_etrecord()
    record.update_representative_inputs(inputs())
    record.save(str(folder / "etrecord.bin"))
    loaded = Runtime.get().load_program(
        str(folder / "net.pte"), verification=Verification.Minimal, enable_etdump=True, debug_buffer_size=1_000_000
    )
    loaded.load_method(method).execute(inputs())
    loaded.write_etdump_result_to_file(str(folder / "net.etdp"), str(folder / "net.debug"))
