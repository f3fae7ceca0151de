"""The overrides of a scheme: which settings an operator gets from them, and which of them contradict each other."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from fnmatch import fnmatchcase
from typing import Any

from qnnsweep.conf.errors import RequestError, one_of, printable
from qnnsweep.conf.schemes import OverridePrecision, Precision, SchemeConfig, SchemeOverride

PATTERNS = ("module", "operator", "node", "input", "method")
"""The fields of an override that select operators or inputs. All other fields are settings."""
SETTINGS = tuple(field.name for field in fields(SchemeOverride) if field.name not in PATTERNS)
_BLOCKS = "16a4w_block"
_FLOATS = "fp16a8w"
_EXCLUDED_BY = {"range": ("observer", "share_clamp"), "share_clamp": ("observer", "symmetric")}
"""Maps a setting that determines the range of a result to settings that it makes meaningless."""


def patterns(override: SchemeOverride) -> dict[str, str]:
    """Return the patterns of the override that are not null."""
    return {name: pattern for name in PATTERNS if (pattern := getattr(override, name)) is not None}


def settings(override: SchemeOverride) -> dict[str, Any]:
    """Return the settings of the override that are not null."""
    return {name: value for name in SETTINGS if (value := getattr(override, name)) is not None}


def method_problems(scheme: SchemeConfig, methods: Sequence[str]) -> Iterator[RequestError]:
    """Yield one error per override that is for no method of the model. `methods`: empty for a model with one method."""
    for index, override in enumerate(scheme.overrides):
        pattern = override.method
        if pattern is not None and not any(fnmatchcase(name, pattern) for name in methods):
            accepted = one_of(list(methods)) if methods else "the model has one method, so write null"
            yield RequestError(f"no such method; {accepted}", key=_key(index, "method"), value=printable(pattern))


def input_problems(
    scheme: SchemeConfig, inputs: Mapping[str, Sequence[str]], states: Sequence[str]
) -> Iterator[RequestError]:
    """Yield one error per override whose input is a state, or is missing in a method that the override selects.

    inputs: maps each method to the names of its inputs, which are empty if they are not known; a model with one method
    has one entry, whose name is empty. states: the names of the inputs that are states.
    """
    for index, override in enumerate(scheme.overrides):
        if (pattern := override.input) is None:
            continue
        selected = {method: names for method, names in inputs.items() if fnmatchcase(method, override.method or "*")}
        unknown = () if all(selected.values()) else states
        known = [*unknown, *(name for names in selected.values() for name in names)]
        matching = {name for name in known if fnmatchcase(name, pattern)}
        state = next((name for name in states if name in matching), None)
        lacking = next((method for method, names in selected.items() if names and not matching & {*names}), None)
        if state is not None:
            problem = f"{printable(state)} is a state, whose grid is that of the output that is written to it"
        elif lacking is not None:
            of_method = f" of {lacking}" if lacking else ""
            problem = f"no such input{of_method}; {one_of(selected[lacking])}"
        else:
            continue
        yield RequestError(problem, key=_key(index, "input"), value=printable(pattern))


def merged(overrides: Sequence[SchemeOverride], indices: Sequence[int], operators: str) -> SchemeOverride:
    """Return the settings of all overrides at `indices` together, as an override without patterns.

    `operators`: words for the operators or the inputs that all these overrides select. Raises RequestError if two
    overrides set one key to different values, or if the settings contradict each other.
    """
    by_key: dict[str, tuple[int, Any]] = {}
    for index in indices:
        for name, value in settings(overrides[index]).items():
            other, first = by_key.setdefault(name, (index, value))
            if first != value:
                raise RequestError(
                    f"scheme.overrides[{other}].{name} is {_text(first)} for {operators} too; make the two equal, or "
                    "change a pattern so that only one of them selects it",
                    key=_key(index, name),
                    value=_text(value),
                )
    together = SchemeOverride(**{name: value for name, (_, value) in by_key.items()})
    for name, problem in _contradictions(together):
        index, value = by_key[name]
        raise RequestError(f"{problem}, for {operators}", key=_key(index, name), value=_text(value))
    return together


def override_problems(scheme: SchemeConfig) -> Iterator[RequestError]:
    """Yield one error per reason to refuse the overrides that is known without the graph of a model."""
    if scheme.overrides and (scheme.precision is not Precision.quantized or scheme.quant_dtype == _FLOATS):
        computes = scheme.quant_dtype or scheme.precision.name
        problem = f"only valid for a scheme with quantized activations; this scheme computes in {printable(computes)}"
        yield RequestError(problem, key="scheme.overrides")
    for index, override in enumerate(scheme.overrides):
        if not patterns(override):
            problem = f"no pattern; set {' or '.join(PATTERNS)} to select operators or inputs"
            yield RequestError(problem, key=f"scheme.overrides[{index}]")
        yield from _input_problems(index, override)
        if not settings(override):
            problem = f"nothing to change; set at least one of {', '.join(SETTINGS)}"
            yield RequestError(problem, key=f"scheme.overrides[{index}]")
        yield from _dtype_problems(scheme, index, override)
    yield from _conflicts(scheme.overrides)


def _input_problems(index: int, override: SchemeOverride) -> Iterator[RequestError]:
    if override.input is None:
        return
    for name in ("module", "operator", "node"):
        if (pattern := getattr(override, name)) is not None:
            problem = "selects operators, and input selects inputs of the model; write two overrides"
            yield RequestError(problem, key=_key(index, name), value=printable(pattern))
    for name, value in settings(override).items():
        if name != "range":
            problem = "an input of the model has only a range; remove this key"
            yield RequestError(problem, key=_key(index, name), value=_text(value))


def _conflicts(overrides: Sequence[SchemeOverride]) -> Iterator[RequestError]:
    """Yield one error per group of overrides that contradict each other at all operators that one of them selects."""
    yielded: set[str] = set()
    for override in overrides:
        chosen = patterns(override)
        indices = [index for index, other in enumerate(overrides) if _selects_all_of(patterns(other), chosen)]
        words = ", ".join(f"{name}={printable(pattern)}" for name, pattern in chosen.items())
        try:
            merged(overrides, indices, f"the {'inputs' if 'input' in chosen else 'operators'} of {words}")
        except RequestError as error:
            if error.key not in yielded:
                yielded.add(error.key or "")
                yield error


def _selects_all_of(wider: Mapping[str, str], chosen: Mapping[str, str]) -> bool:
    """Return whether patterns are known to match every operator that the patterns `chosen` match. False if unknown."""
    if not wider or not chosen or ("input" in wider) is not ("input" in chosen):
        return False
    return wider == chosen or all(
        kind in chosen and any(_covers(pattern, text) for text in _around(kind, chosen[kind]))
        for kind, pattern in wider.items()
    )


def _around(kind: str, pattern: str) -> list[str]:
    """Return the pattern and, of a module, the patterns of the modules around it."""
    parts = pattern.split(".") if kind == "module" else [pattern]
    return [".".join(parts[:length]) for length in range(1, len(parts) + 1)]


def _covers(wider: str, pattern: str) -> bool:
    """Return whether everything that `pattern` matches is known to match `wider` too.

    Only a `*` of `wider` can match a `*` or a `?` of `pattern`, so that it matches what these stand for.
    """
    return not {*"?["} & {*wider} and "[" not in pattern and fnmatchcase(pattern, wider)


def computed_in(scheme: SchemeConfig) -> set[str | None]:
    """Return everything that the scheme computes in: `float32`, `float16`, or members of ExecuTorch's `QuantDtype`."""
    computes = {scheme.quant_dtype if scheme.precision is Precision.quantized else scheme.precision.name}
    computes |= {override.quant_dtype for override in scheme.overrides if override.quant_dtype is not None}
    if any(override.precision is OverridePrecision.float16 for override in scheme.overrides):
        computes.add(OverridePrecision.float16.name)
    return computes


def _dtype_problems(scheme: SchemeConfig, index: int, override: SchemeOverride) -> Iterator[RequestError]:
    dtype, block = override.quant_dtype, override.block_size
    if dtype == _FLOATS:
        problem = f"it has float activations; write scheme.overrides[{index}].precision=float16"
        yield RequestError(problem, key=_key(index, "quant_dtype"), value=dtype)
    # Without block sizes ExecuTorch silently builds 16a4w under the name of 16a4w_block.
    if dtype == _BLOCKS and block is None:
        problem = f"needs a shape of blocks, such as [1, 16, 1, 1], for quant_dtype {_BLOCKS}"
        yield RequestError(problem, key=_key(index, "block_size"), value="null")
    if block is not None and (dtype or scheme.quant_dtype) != _BLOCKS:
        yield RequestError(f"needs quant_dtype {_BLOCKS}", key=_key(index, "block_size"), value=_text(block))


def _contradictions(override: SchemeOverride) -> Iterator[tuple[str, str]]:
    """Yield pairs of a setting and the reason why it contradicts another setting of the same operators."""
    chosen = settings(override)
    if override.precision in (OverridePrecision.float16, OverridePrecision.cpu):
        others = [name for name in chosen if name != "precision"]
        if others:
            yield others[0], f"only valid for quantized operators, but precision is {override.precision.name}"
    for name, excluded in _EXCLUDED_BY.items():
        for other in excluded:
            if chosen.get(name, False) is not False and chosen.get(other, False) is not False:
                yield other, f"has no effect together with {name}"
    limits = override.range
    if override.symmetric and limits is not None and limits[0] != -limits[1]:
        yield "range", "not symmetric, but symmetric is true"


def _key(index: int, name: str) -> str:
    return f"scheme.overrides[{index}].{name}"


def _text(value: object) -> str:
    return printable(value.name if isinstance(value, OverridePrecision) else value)
