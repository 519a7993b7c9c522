"""Texts from outside: short, on one line, without control characters."""

from typing import Annotated

from pydantic import AfterValidator, StringConstraints


def _one_line(text: str) -> str:
    if not text.isprintable():
        raise ValueError("control characters and line breaks have no place here")
    return text


Name = Annotated[str, StringConstraints(min_length=1, max_length=253), AfterValidator(_one_line)]
Words = Annotated[str, StringConstraints(min_length=1, max_length=500), AfterValidator(_one_line)]
