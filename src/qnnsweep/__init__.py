"""qnnsweep: nightly sweeps of PyTorch models over Snapdragon NPUs."""
