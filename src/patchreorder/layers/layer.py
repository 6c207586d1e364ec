"""`Layer`: a module without parameters that calls a function with options that were checked once."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any, ClassVar, Generic

from torch import Tensor, nn

from patchreorder.operator.options import Made, Options, with_arguments


class Layer(nn.Module, Generic[Made]):
    """Base class of the layers of the family.

    A subclass names its `function`, and its `__init__` is a `constructor` of its options. The options are read-only
    attributes of the layer, `repr` shows those that differ from their defaults.
    """

    function: ClassVar[Callable[..., Tensor]]
    options_type: ClassVar[type[Options]]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.options_type = cls.__init__.options  # type: ignore[attr-defined]
        cls.__doc__ = with_arguments(cls.__doc__, cls.options_type)
        for name in cls.options_type.kinds:
            setattr(cls, name, property(attrgetter(f"options.{name}")))

    def __init__(self, options: Made) -> None:
        super().__init__()
        self.options = options

    def forward(self, x: Tensor) -> Any:
        return type(self).function(x, **self.options.arguments())

    def extra_repr(self) -> str:
        return ", ".join(f"{name}={value!r}" for name, value in self.options.changed().items())
