"""The syntax of an override: its key, and the explanation of one that Hydra cannot parse."""

import re

_EXAMPLES = {
    "choice": "scheme=choice(8a8w,16a8w)",
    "glob": "scheme=glob(*a8w)",
    "range": "measure.iterations=range(1,4)",
    "sort": "scheme=sort(8a8w,16a8w)",
    "shuffle": "scheme=shuffle(8a8w,16a8w)",
    "[": "measure.references=[edge,exported]",
    "{": "tolerance.final_snr_db={8a8w:20}, whose names have no quotes",
}
"""An example of each function that selects several values, of a list, and of a mapping."""
_KEY = "write key=value, for example model=digits_cnn"
_LEXER = "LexerNoViableAltException: "
_LONGEST = 80


def key_of(override: str) -> str:
    """Return the key of an override `key=value`, without the signs that add or append it."""
    return override.partition("=")[0].lstrip("+~")


def explain(override: str, message: str) -> str:
    """Return the explanation of an override that Hydra cannot parse. `message`: Hydra's message."""
    key, equals, value = override.partition("=")
    if not equals:
        return f"there is no =; {_KEY}"
    if (wrong := re.search(r"[^\w./@:$+~-]", key, re.ASCII)) is not None:
        return f"{wrong[0]!r} cannot be in a key; {_KEY}"
    if (wrong := re.search(r"\.(?=\d\w*[A-Za-z_])[^.]*", key)) is not None:
        mapping = f"{key[: wrong.start()]}={{{key[wrong.start() + 1 :]}:{_short(value)}}}"
        return f"a name after a dot cannot begin with a digit; write {mapping}"
    problem, began = _problem(override, message), re.match(r"\s*(\w+(?=\()|[\[{])", value)
    if began and (example := _EXAMPLES.get(began[1])):
        return f"{problem}; for example {example}"
    if "Unknown function" in problem:
        return f"{problem}; there are {', '.join(filter(str.isalpha, _EXAMPLES))}, for example {_EXAMPLES['glob']}"
    if "," in value:
        return f"{problem}; several values are separated by single commas, for example scheme=8a8w,16a8w"
    return f"{problem}; put the value in quotes, which the shell must not remove: {key}={_quoted(value)}"


def _problem(override: str, message: str) -> str:
    """Return what Hydra says, without the tokens of its grammar."""
    if (call := re.search(r"while evaluating '(\w+)\(.*\)': (.*)", message)) is not None:
        return f"{call[1]}: {_short(call[2])}"
    lines = [line for line in message.splitlines() if line and not line.startswith("Error parsing override")]
    if lines[0].startswith(_LEXER):
        pointer = next(line for line in lines if line.strip() == "^")
        position = min(pointer.index("^") - len(_LEXER), len(override) - 1)
        problem = "is not closed" if override[position] in "'\"" else "needs quotes"
        return f"{override[position]!r} (character {position + 1}) {problem}"
    return _short(lines[0].partition(" expecting")[0].replace("mismatched input '<EOF>'", "it has no end"))


def _quoted(value: str) -> str:
    text = _short(value)
    if text[:1] in ("'", '"'):
        return text + text[0]
    return f'"{text}"' if "'" in text and '"' not in text else "'" + text.replace("'", "\\'") + "'"


def _short(text: str) -> str:
    """Return a text for a message of one line: `…` if it is long or not printable."""
    return text if text.isprintable() and len(text) <= _LONGEST else "…"
