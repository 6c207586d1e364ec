"""Choose between the native kernel and plain torch, and define derivatives, vmap and custom operators.

In eager mode, autograd `Function`s call the kernel where it supports the tensor, with forward-mode derivatives and
vmap. Under torch.compile on a CPU, two custom operators wrap the kernel. Exporters, tracers, compilers for other
devices and fake tensors get the plain torch form.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

from . import native, torch_form


class PatchGrid(NamedTuple):
    """The unit patches of maps of one size, rows and columns of them, and how they are ranked."""

    rows: int
    columns: int
    levels: int
    energy: str
    per_channel: bool
    descending: bool


def is_traced() -> bool:
    """Whether a compiler, an exporter, a tracer or a dispatch mode records the torch operations."""
    return torch.compiler.is_compiling() or torch.jit.is_tracing() or is_in_torch_dispatch_mode()


def can_read_values(x: Tensor) -> bool:
    """Whether Python code may branch on values of x: nothing is traced, and no other device has to be waited for."""
    return not is_traced() and x.device.type == "cpu"


def reorder(x: Tensor, patches: PatchGrid) -> tuple[Tensor, Tensor]:
    """Return x with its patches sorted by energy, and the order."""
    if not is_traced():
        return (_Reorder if _is_transformed() else _EagerReorder).apply(x, patches)
    if _kernel_in_graph(x, patches.rows, patches.columns):
        return torch.ops.patchreorder.reorder(x, *patches)
    order = torch_form.patch_order(x, *patches)
    return _traced_permute(x, order, False), order


def permute_patches(x: Tensor, order: Tensor, *, inverse: bool = False, check: bool = False) -> Tensor:
    """Put patch order[q] of x at place q, or with `inverse` patch q at place order[q].

    Args:
        x: feature maps (b, c, h, w).
        order: a permutation per map, (b, c or 1, rows, columns), uint8 or int32.
        inverse: move the patches back.
        check: raise ValueError unless the order is a permutation. The kernel writes where the order says, so an order
            that a caller passed in must be checked. Exported programs and dispatch modes do not check.
    """
    if not is_traced():
        return (_Permute if _is_transformed() else _EagerPermute).apply(x, order, inverse, check)
    by_kernel = order.dtype == torch.uint8 and _kernel_in_graph(x, order.shape[2], order.shape[3])
    if by_kernel or (check and _is_compiled()):
        return torch.ops.patchreorder.permute(x, order, inverse, check)
    return _traced_permute(x, order, inverse)


def _is_transformed() -> bool:
    # Functions of torch.func need `setup_context`, for which torch binds the arguments in Python at every call: half of
    # the time of a small call.
    return torch._C._are_functorch_transforms_active()


def _traced_permute(x: Tensor, order: Tensor, inverse: bool) -> Tensor:
    # An exported program holds no autograd Function; the gradients of its gathers are right too, if slower.
    if torch_form.is_exporting():
        return torch_form.permute(x, order, inverse=inverse)
    return _TracedPermute.apply(x, order, inverse)


def _kernel_in_graph(x: Tensor, rows: int, columns: int) -> bool:
    return _is_compiled() and x.device.type == "cpu" and native.fits(rows, columns)


def _is_compiled() -> bool:
    return torch.compiler.is_compiling() and not torch_form.is_exporting()


def _kernel_fits(x: Tensor, rows: int, columns: int) -> bool:
    # A subclass (fake, distributed) need not have memory that can be read, and batched gradients have none.
    plain = type(x) in (Tensor, torch.nn.Parameter) and torch._C._has_storage(x)
    return plain and x.device.type == "cpu" and native.fits(rows, columns)


def _check_permutation(order: Tensor) -> None:
    if order.device.type == "meta":
        return
    native_check = order.dtype == torch.uint8 and _kernel_fits(order, order.shape[2], order.shape[3])
    if not (native if native_check else torch_form).is_permutation(order):
        raise ValueError("order is not a permutation: every patch must appear exactly once")


def _permute(x: Tensor, order: Tensor, inverse: bool, check: bool) -> Tensor:
    if check:
        _check_permutation(order)
    if order.dtype == torch.uint8 and _kernel_fits(x, order.shape[2], order.shape[3]):
        return native.permute(x, order, inverse)
    return torch_form.permute(x, order, inverse=inverse)


class _TracedPermute(Function):
    """`permute_patches` in plain torch under a compiler. The gradient is the inverse permutation (Eq. 7).

    It has no `jvp` and `vmap`, because dynamo breaks the graph at a Function that does.
    """

    @staticmethod
    def forward(x: Tensor, order: Tensor, inverse: bool) -> Tensor:
        return torch_form.permute(x, order, inverse=inverse)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(inputs[1])
        ctx.inverse = inputs[2]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return _TracedPermute.apply(grad, ctx.saved_tensors[0], not ctx.inverse), None, None


class _Permute(Function):
    """`permute_patches` in eager mode, by either form, with forward-mode derivatives and vmap."""

    @staticmethod
    def forward(x: Tensor, order: Tensor, inverse: bool, check: bool) -> Tensor:
        return _permute(x, order, inverse, check)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(inputs[1])
        ctx.save_for_forward(inputs[1])
        ctx.inverse = inputs[2]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        return permute_patches(grad, ctx.saved_tensors[0], inverse=not ctx.inverse), None, None, None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *_: Any) -> Tensor:
        return permute_patches(tangent, ctx.saved_tensors[0], inverse=ctx.inverse)

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor, order: Tensor, inverse: bool, check: bool) -> tuple[Tensor, int]:
        x, order = (_lead(maps, dim, info.batch_size) for maps, dim in zip((x, order), in_dims[:2], strict=True))
        z = _Permute.apply(x.flatten(0, 1), order.flatten(0, 1), inverse, check)
        return z.unflatten(0, x.shape[:2]), 0


class _Reorder(Function):
    """`reorder` in eager mode; the kernel finds and applies the order in one pass over the maps."""

    @staticmethod
    def forward(x: Tensor, patches: PatchGrid) -> tuple[Tensor, Tensor]:
        if _kernel_fits(x, patches.rows, patches.columns):
            return native.reorder(x, *patches)
        order = torch_form.patch_order(x, *patches)
        return torch_form.permute(x, order, inverse=False), order

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(output[1])
        ctx.save_for_forward(output[1])

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, _: Any) -> tuple[Tensor | None, None]:
        return (None if grad is None else permute_patches(grad, ctx.saved_tensors[0], inverse=True)), None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor | None, _: Any) -> tuple[Tensor | None, None]:
        return (None if tangent is None else permute_patches(tangent, ctx.saved_tensors[0])), None

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor, patches: PatchGrid) -> tuple[tuple[Tensor, ...], tuple[int, int]]:
        x = _lead(x, in_dims[0], info.batch_size)
        both = _Reorder.apply(x.flatten(0, 1), patches)
        return tuple(maps.unflatten(0, x.shape[:2]) for maps in both), (0, 0)


class _EagerPermute(Function):
    """`_Permute` where torch.func is not at work."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, order: Tensor, inverse: bool, check: bool) -> Tensor:
        z = _permute(x, order, inverse, check)
        _Permute.setup_context(ctx, (x, order, inverse, check), z)
        return z

    backward, jvp = staticmethod(_Permute.backward), staticmethod(_Permute.jvp)


class _EagerReorder(Function):
    """`_Reorder` where torch.func is not at work."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, patches: PatchGrid) -> tuple[Tensor, Tensor]:
        both = _Reorder.forward(x, patches)
        _Reorder.setup_context(ctx, (x, patches), both)
        return both

    backward, jvp = staticmethod(_Reorder.backward), staticmethod(_Reorder.jvp)


def _lead(maps: Tensor, dim: int | None, size: int) -> Tensor:
    """Put the vmapped dimension before the batch: images are independent, so the two can be flattened into one."""
    return maps.expand(size, *maps.shape) if dim is None else maps.movedim(dim, 0)


@torch.library.custom_op("patchreorder::reorder", mutates_args=(), device_types="cpu")
def _reorder_op(
    x: Tensor, rows: int, columns: int, levels: int, energy: str, per_channel: bool, descending: bool
) -> tuple[Tensor, Tensor]:
    return native.reorder(x, rows, columns, levels, energy, per_channel, descending)


@_reorder_op.register_fake
def _(x: Tensor, rows: int, columns: int, levels: int, energy: str, per_channel: bool, descending: bool) -> Any:
    return native.empty_maps(x), native.empty_order(x, rows, columns, per_channel)


@torch.library.custom_op("patchreorder::permute", mutates_args=())
def _permute_op(x: Tensor, order: Tensor, inverse: bool, check: bool) -> Tensor:
    return _permute(x, order, inverse, check)


@_permute_op.register_fake
def _(x: Tensor, order: Tensor, inverse: bool, check: bool) -> Tensor:
    return native.empty_maps(x)


def _save_found_order(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(output[1])


def _reorder_gradient(ctx: Any, grad: Tensor, _: Any) -> tuple[Any, ...]:
    return torch.ops.patchreorder.permute(grad, ctx.saved_tensors[0], True, False), *(None for _ in PatchGrid._fields)


def _save_given_order(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(inputs[1])
    ctx.inverse = inputs[2]


def _permute_gradient(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    return torch.ops.patchreorder.permute(grad, ctx.saved_tensors[0], not ctx.inverse, False), None, None, None


_reorder_op.register_autograd(_reorder_gradient, setup_context=_save_found_order)
_permute_op.register_autograd(_permute_gradient, setup_context=_save_given_order)
