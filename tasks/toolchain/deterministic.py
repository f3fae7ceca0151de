"""The settings of PyTorch with which results depend neither on the number of cores nor on chance."""

import torch


def make_deterministic() -> None:
    """Use one thread and a fixed seed, so that results depend neither on the number of cores nor on chance."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    # The fast path of nn.TransformerEncoder, which torch.export does not take, returns zeros for padded positions.
    torch.backends.mha.set_fastpath_enabled(False)
