"""Options that are written once: a frozen dataclass that checks itself, and the arguments and texts made from it.

    @dataclass(frozen=True)
    class BlurOptions(Options):
        '''Options of `blur` and `Blur`.

        Args:
            side: of the window, in pixels.
        '''

        side: Count = 3

    @takes(BlurOptions)
    def blur(x: Tensor, options: BlurOptions) -> Tensor: ...

`blur(x, side=5)` then checks the options, and `help(blur)` lists them. The annotation of an option says what it may be:
bool, int, float, a Literal, an `Annotated[int, Must(...)]`, or a union of these and None.
"""

from __future__ import annotations

import functools
import inspect
import operator
import types
from collections.abc import Callable, Iterator
from typing import (
    Annotated,
    Any,
    ClassVar,
    Concatenate,
    Literal,
    NamedTuple,
    ParamSpec,
    Protocol,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
    overload,
)

import torch.fx
from torch import Tensor

P = ParamSpec("P")
Made = TypeVar("Made", bound="Options")
Owner = TypeVar("Owner")


class Must(NamedTuple):
    """A condition on a number, and the words that follow "must be" in an error."""

    words: str
    holds: Callable[[Any], bool]


COUNTABLE = Must("below 2**31", lambda value: isinstance(value, float) or abs(value) < 2**31)
Count = Annotated[int, Must("1 or more", lambda value: value >= 1)]


class Kind(NamedTuple):
    """What values an option may have."""

    types: tuple[type, ...]
    literals: tuple[str, ...]
    musts: tuple[Must, ...]

    @property
    def words(self) -> str:
        names = {bool: "True or False", int: "a whole number", float: "a number", types.NoneType: "None"}
        return " or ".join([*(names[each] for each in self.types), *map(repr, self.literals)])

    @property
    def syntax(self) -> str:
        """Possible values as written in a text, such as NUMBER|pixels."""
        names = {bool: "true|false", int: "NUMBER", float: "DECIMAL"}
        return "|".join([*(names[each] for each in self.types if each in names), *self.literals])

    def reads(self, value: Any) -> bool:
        """Whether a value found in a text is of a possible type."""
        return (
            type(value) in self.types
            or (type(value) is int and float in self.types)
            or (isinstance(value, str) and bool(self.literals))
        )

    def checked(self, name: str, value: Any) -> Any:
        """The value, as a plain int if it is a whole number; ValueError or TypeError if it is not possible."""
        if value is None or isinstance(value, bool):
            if type(value) in self.types:
                return value
        elif isinstance(value, str):
            if value in self.literals:
                return value
        elif isinstance(value, float) and float in self.types:
            return self._within_limits(name, value)
        elif int in self.types or float in self.types:
            try:
                return self._within_limits(name, operator.index(value))
            except TypeError:
                pass
        choice = self.literals and (isinstance(value, str) or not self.types)
        raise (ValueError if choice else TypeError)(f"{name} ({_shown(value)}) must be {self.words}")

    def _within_limits(self, name: str, value: float) -> float:
        for must in (*self.musts, COUNTABLE):
            if not must.holds(value):
                raise ValueError(f"{name} ({_shown(value)}) must be {must.words}")
        return value


def _shown(value: Any) -> str:
    """A value as errors show it. Python refuses to print an integer of thousands of digits."""
    if isinstance(value, int) and value.bit_length() > 64:
        return f"an integer of {value.bit_length()} bits"
    return repr(value)


class Options:
    """Base class of options, checked when they are created. Subclasses are frozen dataclasses with defaults."""

    kinds: ClassVar[dict[str, Kind]]
    defaults: ClassVar[dict[str, Any]]

    def __init_subclass__(cls) -> None:
        hints = get_type_hints(cls, include_extras=True)
        cls.kinds = {name: _kind(hints[name]) for name in cls.__annotations__}
        cls.defaults = {name: getattr(cls, name) for name in cls.kinds}

    def __post_init__(self) -> None:
        for name, value in self.arguments().items():
            if value is not self.defaults[name]:
                object.__setattr__(self, name, self.kinds[name].checked(name, value))

    def arguments(self) -> dict[str, Any]:
        """All options as keyword arguments."""
        return {name: getattr(self, name) for name in self.kinds}

    def changed(self) -> dict[str, Any]:
        """The options that differ from their defaults."""
        return {name: value for name, value in self.arguments().items() if value != self.defaults[name]}

    @classmethod
    def read(cls, text: str) -> dict[str, Any]:
        """The arguments in a text such as `keep=9,smooth=3`, with the right types.

        Raises:
            ValueError: an option is unknown, given twice, or its value is of another type.
        """
        given: dict[str, Any] = {}
        for part in filter(None, text.split(",")):
            name, _, value = (word.strip() for word in part.partition("="))
            known = _value(value)
            if name in given:
                raise ValueError(f"{name} is given twice")
            if name not in cls.kinds or not cls.kinds[name].reads(known) or not value:
                possible = ", ".join(f"{each}={kind.syntax}" for each, kind in cls.kinds.items())
                raise ValueError(f"{part!r} must be one of {possible}")
            given[name] = known
        return given


def _kind(hint: Any) -> Kind:
    found: dict[type, None] = {}
    literals: list[str] = []
    musts: list[Must] = []
    for each in _members(hint):
        if get_origin(each) is Annotated:
            each, *conditions = get_args(each)
            musts += conditions
        if get_origin(each) is Literal:
            literals += get_args(each)
        else:
            found[each] = None
    return Kind(tuple(found), tuple(literals), tuple(musts))


def _members(hint: Any) -> Iterator[Any]:
    if get_origin(hint) in (Union, types.UnionType):
        for each in get_args(hint):
            yield from _members(each)
    else:
        yield hint


def _value(text: str) -> bool | int | float | str:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text


class ReturnsOrder(Protocol[P]):
    """The type of a function that returns the reordered maps and, if `return_order` is True, the order."""

    @overload
    def __call__(self, x: Tensor, *args: P.args, **options: P.kwargs) -> Tensor: ...

    @overload
    def __call__(self, x: Tensor, *, return_order: Literal[True], **options: Any) -> tuple[Tensor, Tensor]: ...

    @overload
    def __call__(self, x: Tensor, *, return_order: bool, **options: Any) -> Tensor | tuple[Tensor, Tensor]: ...


def takes(
    options: Callable[P, Made],
) -> Callable[[Callable[[Tensor, Made], Tensor]], Callable[Concatenate[Tensor, P], Tensor]]:
    """Decorator: the function takes its second argument, the options, as keyword arguments.

    Its signature and docstring list them. In a symbolic trace (torch.fx), which cannot look at sizes, it is one node.
    """
    return cast(Any, functools.partial(_with_keywords, cast(Any, options), returns_order=False))


def takes_and_returns_order(
    options: Callable[P, Made],
) -> Callable[[Callable[[Tensor, Made], tuple[Tensor, Tensor]]], ReturnsOrder[P]]:
    """`takes` for a function that returns maps and an order: the order is left out unless `return_order` is True."""
    return cast(Any, functools.partial(_with_keywords, cast(Any, options), returns_order=True))


def constructor(
    options: Callable[P, Made],
) -> Callable[[Callable[[Owner, Made], None]], Callable[Concatenate[Owner, P], None]]:
    """Decorator of `__init__`: it takes its second argument, the options, as arguments, by keyword or by position."""

    def decorate(function: Callable[[Owner, Made], None]) -> Any:
        @functools.wraps(function)
        def called(self: Owner, *args: Any, **arguments: Any) -> None:
            function(self, cast(Any, options)(*args, **arguments))

        owner = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        called.__dict__.update(options=options, __signature__=inspect.Signature([owner, *_parameters(options)]))
        return called

    return decorate


def _with_keywords(options: type[Options], function: Callable[..., Any], *, returns_order: bool) -> Callable[..., Any]:
    @functools.wraps(function)
    def called(x: Tensor, **arguments: Any) -> Any:
        if isinstance(x, torch.fx.Proxy):
            return x.tracer.create_proxy("call_function", called, (x,), arguments)
        if not returns_order:
            return function(x, options(**arguments))
        return_order = arguments.pop("return_order", False)
        z, order = function(x, options(**arguments))
        return (z, order) if return_order else z

    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = [inspect.Parameter("x", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=Tensor)]
    parameters += [each.replace(kind=keyword) for each in _parameters(options)]
    if returns_order:
        parameters.append(inspect.Parameter("return_order", keyword, default=False, annotation=bool))
    returned = Tensor | tuple[Tensor, Tensor] if returns_order else Tensor
    called.__dict__["__signature__"] = inspect.Signature(parameters, return_annotation=returned)
    called.__doc__ = with_arguments(function.__doc__, options)
    return called


def _parameters(options: Callable[..., Any]) -> list[inspect.Parameter]:
    hints = get_type_hints(options)  # plain types, without conditions
    return [each.replace(annotation=hints[name]) for name, each in inspect.signature(options).parameters.items()]


def with_arguments(doc: str | None, options: type[Options]) -> str | None:
    """A docstring with the section `Args:` of the options, put before `Raises:` or further arguments."""
    if doc is None or options.__doc__ is None:  # python -OO
        return doc
    described = inspect.cleandoc(options.__doc__).partition("Args:\n")[2]
    before, mark, after = inspect.cleandoc(doc).partition("Args:\n")
    if not mark:
        before, mark, after = before.partition("Raises:\n")
        after = f"\n{mark}{after}"
    return f"{before}Args:\n{described}\n{after}"
