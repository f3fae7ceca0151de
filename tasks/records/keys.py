"""Names inside programs and tensor files: the name of a program's method, and the keys of a file's tensors."""

METHOD = "forward"
"""The method of a program that is lowered, executed and read back."""


def tensor_key(sample: int | str, name: str | int) -> str:
    """Return the key of a tensor in a safetensors file: `<sample>/<name>`. An output's or operator's name is its index.

    In a file about mistakes or pairs instead of samples, the number of the mistake or pair replaces the sample's.
    """
    return f"{sample}/{name}"


def tensor_name(key: str) -> str:
    """Return the name in a tensor's key."""
    return key.partition("/")[2]
