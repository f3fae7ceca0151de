"""Execute a context binary with ONNX Runtime: `inputs.h5` to `outputs.h5`, as Qualcomm AI Hub's client writes them.

python execute.py FOLDER_WITH_H5PY GRAPH DAMAGE    in the folder of the files
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime_qnn

from qnnsweep.tasks.toolchain.backends.qnn.context import read_graphs
from qnnsweep.tasks.toolchain.backends.qnn.options import LAYOUT
from qnnsweep.tasks.toolchain.fbs import layout
from qnnsweep.tasks.toolchain.ort.parts import one_node_model
from qnnsweep.tasks.toolchain.ort.sessions import Sessions

CHIPSETS = {name: number for number, name in layout(LAYOUT).enums["QcomChipset"].items()}


def main() -> None:
    sys.path.append(sys.argv[1])
    h5py: Any = __import__("h5py")
    graph, damage = sys.argv[2:]
    binary = Path("context.bin").read_bytes()
    # ExecuTorch's header in front of the binary, which the reader expects.
    header = (0x5678ABCD).to_bytes(4, "little") + bytes(8) + len(binary).to_bytes(8, "little")
    library = Path(str(onnxruntime_qnn.__file__)).with_name("libQnnSystem.so")
    graphs = read_graphs(header.ljust(256, b"\0") + binary, library)
    facts = graphs[graph] if graph else next(iter(graphs.values()))
    assert graph or len(graphs) == 1, "a context with several graphs needs the name of one"
    inputs, outputs = ([one for one in facts.tensors if one.role == role] for role in ("input", "output"))
    name = inputs[0].graph if inputs else outputs[0].graph
    Path("model.onnx").write_bytes(one_node_model(name, "context.bin", inputs, outputs))
    sessions = Sessions(argparse.Namespace(model_path="model.onnx", htp_performance_mode=0))
    call = {"model": "model.onnx", "soc_model": str(CHIPSETS[str(facts.soc)]), "arch": str(facts.arch)}
    sessions.prepare(call)
    with h5py.File("inputs.h5", "r") as file:
        fed = {group.attrs["name"]: group for group in file["data"].values()}
        samples = next(iter(fed.values())).attrs["batch_count"]
        results = [
            sessions.run(call, {name: np.array(group[f"batch_{index}"]) for name, group in fed.items()})
            for index in range(samples)
        ]
    with h5py.File("outputs.h5", "w") as file:
        for index, tensor in enumerate(outputs):
            arrays = [np.asarray(result[index]) for result in results]
            name = tensor.name
            if index == 0 and damage == "renamed":
                name = "other"
            elif index == 0 and damage == "other type":
                arrays = [array.astype(np.float64) for array in arrays]
            elif index == 0 and damage == "code":
                arrays = [array.copy() for array in arrays]
                arrays[0].reshape(-1)[0] += 1
            elif index == 0 and damage == "too few":
                arrays = arrays[1:]
            for number, array in enumerate(arrays):
                file.create_dataset(f"data/{index}/batch_{number}", data=array)
            file[f"data/{index}"].attrs.update({"order": index, "name": name, "batch_count": len(arrays)})


if __name__ == "__main__":
    main()
