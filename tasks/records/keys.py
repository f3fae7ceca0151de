"""The names inside programs and files of tensors: the name of a method, and the key of a tensor."""

METHOD = "forward"
"""The method of a program that is lowered, executed and read back."""


def tensor_key(sample: int | str, name: str | int) -> str:
    """Return the key of a tensor in a safetensors file: `<sample>/<name>`. An output's or operator's name is its index.

    A file of other things than samples (mistakes, pairs) has their number in place of the sample's.
    """
    return f"{sample}/{name}"


def tensor_name(key: str) -> str:
    """Return the name in a tensor's key."""
    return key.partition("/")[2]
