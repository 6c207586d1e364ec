"""The help of the command line, from the signatures and docstrings of the commands."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from .values import ADVANCED, Shown

INDENT = 2
NAMES_WIDTH = 24  # columns for the names of options
Section = Mapping[str, str]  # names and what they mean


@dataclass(frozen=True)
class Parameter:
    """An argument or option of a command, as help shows it."""

    names: str
    text: str
    positional: bool
    advanced: bool


@dataclass(frozen=True)
class Doc:
    """The parts of a command's docstring."""

    about: list[str]
    examples: list[str]
    arguments: dict[str, str]


def overview(groups: Mapping[str, Section], *, about: str, examples: list[str], width: int) -> str:
    """The help of `patchreorder --help`: the commands in groups, and what works without one."""
    parts = ["usage: patchreorder COMMAND [options]", textwrap.fill(about, width), _examples(examples)]
    parts += [_section(title, commands, width=width) for title, commands in groups.items()]
    others = {
        "COMMAND --help": "explain a command",
        "-V, --version": "print the version",
        "--completion SHELL": "print a completion script for bash, zsh or fish",
    }
    return "\n\n".join([*parts, _section("without a command", others, width=width)])


def command_help(
    name: str, function: Callable[..., Any], *, width: int, sections: Mapping[str, Section] | None = None
) -> str:
    """The help of a command: usage, examples, arguments, options, and advanced options last."""
    doc, parameters = read_doc(inspect.getdoc(function) or ""), read_parameters(function)
    listed: dict[str, Section] = {
        "arguments": {p.names: p.text for p in parameters if p.positional},
        "options": {p.names: p.text for p in parameters if not p.positional and not p.advanced}
        | {"-h, --help": "show this"},
        **(sections or {}),
        "advanced": {p.names: p.text for p in parameters if p.advanced},
    }
    usage = " ".join(["usage: patchreorder", name, *listed["arguments"], "[options]"])
    about = [textwrap.fill(paragraph, width) for paragraph in doc.about]
    shown = [_section(title, section, width=width) for title, section in listed.items() if section]
    return "\n\n".join([usage, *about, _examples(doc.examples), *shown])


def read_doc(docstring: str) -> Doc:
    """Read the paragraphs of a docstring, its examples and what it says of each argument."""
    about, _, arguments = docstring.partition("\nArgs:\n")
    about, _, examples = about.partition("\nExamples:\n")
    found = re.findall(r"^    (\w+): (.*(?:\n {5,}.*)*)", arguments, re.MULTILINE)
    return Doc(
        about=[" ".join(paragraph.split()) for paragraph in about.split("\n\n") if paragraph.strip()],
        examples=[line.strip() for line in examples.splitlines() if line.strip()],
        arguments={name: " ".join(text.split()) for name, text in found},
    )


def read_parameters(function: Callable[..., Any]) -> list[Parameter]:
    """Read the arguments and options of a command, in the order of its signature."""
    texts = read_doc(inspect.getdoc(function) or "").arguments
    hints = get_type_hints(function, include_extras=True)
    found = []
    for name, parameter in inspect.signature(function).parameters.items():
        marks, text = _marks(hints[name]), texts.get(name, "").removesuffix(".")
        value, positional = _value(hints[name], name), parameter.kind is parameter.POSITIONAL_OR_KEYWORD
        default = parameter.default
        if not positional:
            flag = name.replace("_", "-")
            aliases = [alias for mark in marks for alias in getattr(mark, "aliases", None) or ()]
            names = ", ".join([*aliases, f"--{'no-' * (default is True)}{flag}"])
            value = f"{names} {value}".rstrip()
            if default is parameter.empty:
                text += " (required)"
            elif default not in (None, ()) and not isinstance(default, bool) and "default" not in text:
                text += f" (default: {f'{default:g}' if isinstance(default, float) else default})"
        found.append(Parameter(value, text, positional, ADVANCED in marks))
    return found


def _marks(hint: Any) -> list[Any]:
    """Everything that Annotated says of a type, from outside in."""
    if get_origin(hint) is Annotated:
        inner, *marks = get_args(hint)
        return [*marks, *_marks(inner)]
    return [mark for part in get_args(hint) if not isinstance(part, str) for mark in _marks(part)]


def _value(hint: Any, name: str) -> str:
    """What stands for the value of an option: FOLDER, N, a|b, nothing for a switch."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Annotated:
        shown = [mark.name if isinstance(mark, Shown) else getattr(mark, "metavar", None) for mark in parts[1:]]
        return next(filter(None, shown), "") or _value(parts[0], name)
    if origin in (Union, UnionType):
        return next(_value(part, name) for part in parts if part is not type(None))
    if origin in (tuple, list):
        return f"{_value(parts[0], name.removesuffix('s'))} ..."
    if origin is Literal:
        return "|".join(parts)
    return {bool: "", int: "N", float: "X"}.get(hint, name.upper().replace("_", "-"))


def _examples(lines: list[str]) -> str:
    return "\n".join(["examples:", *(" " * INDENT + line for line in lines)])


def _section(title: str, entries: Section, *, width: int) -> str:
    lines = [f"{title}:"]
    wide = min(max(map(len, entries), default=0), NAMES_WIDTH) + 2
    for name, text in entries.items():
        head = f"{' ' * INDENT}{name}".ljust(INDENT + wide)
        rest = " " * (INDENT + wide)
        wrapped = textwrap.wrap(text, width, initial_indent=rest, subsequent_indent=rest, break_on_hyphens=False) or [
            head.rstrip()
        ]
        if len(name) + 2 <= wide:
            wrapped[0] = (head + wrapped[0][len(rest) :]).rstrip()
        else:
            wrapped.insert(0, head)
        lines += wrapped
    return "\n".join(lines)
