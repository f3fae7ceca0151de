"""The names of the experiment trackers. The command line imports them before any library."""

from enum import Enum


class Tracker(Enum):
    """An experiment tracker that can read an exported run, which is also the name of its extra."""

    mlflow = "mlflow"
    wandb = "wandb"
    tensorboard = "tensorboard"
