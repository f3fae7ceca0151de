"""The explanation of an override that Hydra cannot parse: what is wrong, at which character, and an example."""

import re
from collections.abc import Iterator

_CLOSING = {"(": ")", "[": "]", "{": "}"}
_EXAMPLES = {
    "choice": "scheme=choice(8a8w,16a8w)",
    "glob": "scheme=glob(*a8w)",
    "range": "measure.iterations=range(1,4)",
    "sort": "scheme=sort(8a8w,16a8w)",
    "shuffle": "scheme=shuffle(8a8w,16a8w)",
}
"""The functions of Hydra's grammar that select several values, each with an example."""
_MAPPING = "tolerance.final_snr_db={8a8w:20}"
_LONGEST = 80
_NEEDS_QUOTES = re.compile(r"[^\w\s:/\\\\+.$%*@?|,\-]", re.ASCII)
"""A character that the grammar does not accept in a value without quotes."""


def explain(override: str, message: str) -> str:
    """Return the explanation of an override that Hydra cannot parse. `message`: Hydra's message."""
    key, equals, value = override.partition("=")
    if not equals:
        return "there is no =; write key=value, for example model=digits_cnn"
    if (wrong := re.search(r"[^\w./@:$+~-]", key, re.ASCII)) is not None:
        return (
            f"{_at(wrong[0], wrong.start(), 'key')} cannot be in a key; write key=value, for example model=digits_cnn"
        )
    if (wrong := re.search(r"\.(?=\d\w*[A-Za-z_])[^.]*", key)) is not None:
        mapping = f"{key[: wrong.start()]}={{{key[wrong.start() + 1 :]}:{_short(value)}}}"
        return f"a name after a dot cannot begin with a digit; write {mapping}"
    return _call(message) or next(_problems(key, value), None) or _quote(key, value)


def _call(message: str) -> str | None:
    """Return the explanation of a function that cannot be called, otherwise None."""
    if (call := re.search(r"while evaluating '(\w+)\((.*)\)': (.*)", message)) is None:
        return None
    name, _, problem = call.groups()
    if problem.startswith("Unknown function"):
        return f"there is no function {name}; there are {', '.join(_EXAMPLES)}, for example {_EXAMPLES['glob']}"
    return f"{name}: {_short(problem)}" + (f"; for example {_EXAMPLES[name]}" if name in _EXAMPLES else "")


def _problems(key: str, value: str) -> Iterator[str]:
    """Yield the explanations of quotes, brackets and commas, beginning at the start of the value."""
    opened: list[tuple[str, int]] = []
    before = ","  # the last character that is not a space
    position = 0
    while position < len(value):
        character = value[position]
        if character in "'\"":
            if (end := _end_of_quote(value, position)) is None:
                closed = f"write {key}={_short(value + character)}" if position == 0 else _quote(key, value)
                yield f"{_at(character, position)} is not closed; {closed}"
                return
            position = end
        elif character in _CLOSING:
            opened.append((character, position))
        elif character in _CLOSING.values():
            if before == "," and opened and value[:position].rstrip().endswith(","):
                yield _no_value("after", key, value, value.rindex(",", 0, position))
            if not opened:
                yield f"{_at(character, position)} closes no bracket; remove it, or {_quote(key, value)}"
                return
            bracket, start = opened.pop()
            if _CLOSING[bracket] != character:
                yield f"{_at(character, position)} does not close {_at(bracket, start)}"
        elif character == ":" and before in ("'", '"') and opened and opened[-1][0] == "{":
            yield f"a name in a mapping has no quotes; for example {_MAPPING}"
        elif character == "=" and opened and opened[-1][0] == "{":
            example = _short(value[:position] + ":" + value[position + 1 :])
            yield f"{_at(character, position)} must be a colon in a mapping; write {key}={example}"
        elif character == "," and before in (",", *_CLOSING):
            yield _no_value("before", key, value, position)
        if not character.isspace():
            before = character
        position += 2 if character == "\\" else 1
    if opened:
        bracket, start = opened[-1]
        function = value[:start].strip()
        closed = value + "".join(_CLOSING[bracket] for bracket, _ in reversed(opened))
        example = f"for example {_EXAMPLES[function]}" if function in _EXAMPLES else f"write {key}={_short(closed)}"
        yield f"{_at(bracket, start)} is not closed; {example}"
    if before == "," and value.strip():
        yield _no_value("after", key, value, len(value.rstrip()) - 1)
    if (wrong := _NEEDS_QUOTES.search(value)) is not None and wrong[0] not in "()[]{}'\"":
        yield f"{_at(wrong[0], wrong.start())} needs quotes; {_quote(key, value)}"


def _end_of_quote(value: str, start: int) -> int | None:
    """Return the position of the quote that closes the quote at `start`, or None."""
    closing = re.compile(rf"(?<!\\){value[start]}").search(value, start + 1)
    return closing.start() if closing else None


def _no_value(side: str, key: str, value: str, position: int) -> str:
    example = re.sub(r"\s*,[\s,]*", ",", value)
    example = re.sub(r"(?<=[(\[{]),|,(?=[)\]}])", "", example).strip(",")
    return f"there is no value {side} {_at(',', position)}; write {key}={_short(example) or 'a,b'}"


def _quote(key: str, value: str) -> str:
    text = _short(value)
    quoted = f'"{text}"' if "'" in text and '"' not in text else "'" + text.replace("'", "\\'") + "'"
    return f"put the value in quotes, which the shell must not remove: {key}={quoted}"


def _short(value: str) -> str:
    """Return a value for a message of one line: `…` if the value is long or not printable."""
    return value if value.isprintable() and len(value) <= _LONGEST else "…"


def _at(character: str, position: int, part: str = "value") -> str:
    printable = character if character.isprintable() and not character.isspace() else repr(character)
    return f"{printable} (character {position + 1} of the {part})"
