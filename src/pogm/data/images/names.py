"""Names of files as people can read them: a newline or a broken character in one must not garble a message."""


def shown(name: str) -> str:
    """The name on one line, with escapes for what cannot be printed."""
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in name)
