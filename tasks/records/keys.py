"""Names inside programs and tensor files: the name of a program's method, and the keys of a file's tensors."""

METHOD = "forward"
"""The name of the method of a program that has only one."""


def tensor_key(sample: int | str, name: str | int) -> str:
    """Return the key of a tensor in a safetensors file: `<sample>/<name>`.

    For a final output or an operator's value, `name` is the index of the output or of the operator. In a file with one
    entry per mistake or per pair of tensors, `sample` is the number of the mistake or of the pair.
    """
    return f"{sample}/{name}"


def tensor_name(key: str) -> str:
    """Return the part of a tensor's key that is the tensor's name."""
    return key.partition("/")[2]
