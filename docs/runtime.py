"""A griffe extension: docstrings and signatures as readers of the API page need them."""

from __future__ import annotations

import inspect
import pkgutil
import re
import textwrap
from typing import Any

import griffe


class DerivedSignatures(griffe.Extension):
    """Documents the arguments that decorators of layers and their functions add, and shows doctests as code."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Give the doctests at the end of a docstring a section of their own."""
        if obj.docstring:
            obj.docstring.value = _readable(obj.docstring.value)

    def on_function(self, *, func: griffe.Function, **_: Any) -> None:
        """Replace the signature of a decorated function or `__init__`."""
        if any(str(decorator.value).startswith(("takes", "constructor")) for decorator in func.decorators):
            found = pkgutil.resolve_name(func.path)
            func.parameters = _parameters(found)
            func.returns = _annotation(inspect.signature(found).return_annotation)
            if func.docstring:
                func.docstring.value = _readable(inspect.getdoc(found) or "")

    def on_class_members(self, *, cls: griffe.Class, **_: Any) -> None:
        """Replace the docstring of a layer."""
        if cls.docstring and any(str(base).startswith("Layer[") for base in cls.bases):
            cls.docstring.value = _readable(inspect.getdoc(pkgutil.resolve_name(cls.path)) or "")


def _readable(text: str) -> str:
    """Doctests as a section of their own, shapes as a list."""
    text = re.sub(
        r"^Shape:\n((?: {4}.*\n?)+)", lambda shape: f"**Shape:**\n\n{_items(shape[1])}", text, flags=re.MULTILINE
    )
    text, found, examples = text.partition("\n\n>>> ")
    return f"{text}\n\nExamples:\n{textwrap.indent(f'>>> {examples}', '    ')}" if found else text


def _items(lines: str) -> str:
    items: list[str] = []
    for line in lines.splitlines():
        if found := re.match(r" {4}(\w[\w ]*): (.*)", line):
            items.append(f"- `{found[1]}`: {found[2]}" if found[1].isidentifier() else f"- {found[1]}: {found[2]}")
        elif items:
            items[-1] += f" {line.strip()}"
    return "\n".join(items) + "\n"


def _annotation(annotation: Any) -> str | None:
    if annotation is inspect.Parameter.empty:
        return None
    text = inspect.formatannotation(annotation).replace("torch.Tensor", "Tensor")
    return text[6:-1].replace(", ", " | ", 1) if text.startswith("Union[") else text


def _parameters(function: Any) -> griffe.Parameters:
    found = []
    for name, parameter in inspect.signature(function).parameters.items():
        default = None if parameter.default is parameter.empty else repr(parameter.default)
        kind = griffe.ParameterKind(parameter.kind.description)
        found.append(griffe.Parameter(name, annotation=_annotation(parameter.annotation), kind=kind, default=default))
    return griffe.Parameters(*found)
