"""The names of the formats for other tools. The command line imports them before any library."""

from enum import Enum


class Format(Enum):
    """The name of a format: JUnit XML, PyTorch's benchmark database, ExecuTorch's suite, GitHub's annotations."""

    junit = "junit"
    hud = "hud"
    suite = "suite"
    github = "github"
