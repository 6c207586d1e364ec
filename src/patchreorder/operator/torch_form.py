"""The operator in plain torch: the definition that the native kernel must match bit for bit.

It runs on every device and map size, and under every tracer. Rounding decides near-ties, so the order of summation is
part of the definition: down each column of a unit patch, then over the column sums from left to right; a coarser patch
is the sum of its children in raster order; channels are summed by halving.
"""

from __future__ import annotations

import torch
from torch import Tensor

# Up to this many patches are ranked by comparing all pairs, which vectorises and exports; more by a stable sort.
MOST_PAIRWISE = 16
_WORDS = {2: torch.int16, 4: torch.int32, 8: torch.int64}  # integers by their bytes


def is_exporting() -> bool:
    """Whether torch.export, the ONNX exporter or torch.jit is tracing, which do not support bit casts."""
    return torch.compiler.is_exporting() or torch.onnx.is_in_onnx_export() or torch.jit.is_tracing()


def patch_order(
    x: Tensor, rows: int, columns: int, levels: int, energy: str, per_channel: bool, descending: bool
) -> Tensor:
    """Return the source unit patch (raster index) of every place: (batch, channels or 1, rows, columns)."""
    energies = unit_energy(x.detach(), rows, columns, energy)
    if not per_channel:
        energies = sum_channels(energies)
    if levels == 1 and rows * columns > MOST_PAIRWISE:
        order = argsort([key.flatten(2) for key in _keys(energies, descending)])
    else:
        n = (rows, columns) if levels == 1 else (round(rows ** (1 / levels)),) * 2  # children down and across
        order = _invert(_places(energies, n, levels, descending).flatten(2))
    order = order.unflatten(2, (rows, columns))
    layout = torch.channels_last if per_channel and _is_channels_last(x) else torch.contiguous_format
    return order.to(torch.uint8 if rows * columns <= 256 else torch.int32).contiguous(memory_format=layout)


def unit_energy(x: Tensor, rows: int, columns: int, energy: str) -> Tensor:
    """Return the energy of every unit patch, in float32 or float64: (batch, channels, rows, columns)."""
    height, width = x.shape[2] // rows, x.shape[3] // columns
    x = x[:, :, : rows * height, : columns * width]
    x = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
    x = (x.abs() if energy == "l1" else x * x).contiguous()
    x = x.unflatten(2, (rows, height))  # b c rows h w
    x = _sum_in_order([x[:, :, :, i] for i in range(height)])  # b c rows w
    x = x.unflatten(3, (columns, width))
    return _sum_in_order([x[..., j] for j in range(width)])


def _sum_in_order(parts: list[Tensor]) -> Tensor:
    if len(parts) == 1:
        return parts[0]
    total = parts[0] + parts[1]
    for part in parts[2:]:
        total += part
    return total


def sum_channels(e: Tensor) -> Tensor:
    """Sum over channels by halving: (batch, 1, rows, columns)."""
    if e.shape[1] == 0:
        return e.new_zeros(e.shape[0], 1, *e.shape[2:])
    while e.shape[1] > 1:
        half, odd = e.shape[1] // 2, e.shape[1] % 2
        pairs = e[:, :half] + e[:, half : 2 * half]
        e = torch.cat([pairs, e[:, 2 * half :]], 1) if odd else pairs
    return e


def _places(e: Tensor, n: tuple[int, int], levels: int, descending: bool) -> Tensor:
    """Return the place (raster index) of every unit patch after all levels, whose displacements add up (Eq. 6)."""
    columns = e.shape[-1]
    pyramid = [e]
    for _ in range(levels - 1):
        pyramid.append(_sum_in_order(_children(pyramid[-1], n)))
    place: Tensor | None = None
    for level in reversed(pyramid):
        size = columns // level.shape[-1]  # unit patches across one patch of this level
        rank = _ranks(level, n, descending)
        step = (rank // n[1] * columns + rank % n[1]) * size
        if place is not None:
            step = step + place.repeat_interleave(n[0], -2).repeat_interleave(n[1], -1)
        place = step
    assert place is not None
    return place


def _children(e: Tensor, n: tuple[int, int]) -> list[Tensor]:
    return [e[..., i :: n[0], j :: n[1]] for i in range(n[0]) for j in range(n[1])]


def _ranks(e: Tensor, n: tuple[int, int], descending: bool) -> Tensor:
    """Return the rank of every patch among the children of its parent, in the shape of e."""
    keys = _keys(e, descending)
    ranks = _ranks_by_pairs if n[0] * n[1] <= MOST_PAIRWISE else _ranks_by_sorting
    return ranks(keys, n)


def _keys(e: Tensor, descending: bool) -> list[Tensor]:
    """Return sort keys, the most significant first: the patch with the larger key goes first, NaN before all."""
    if is_exporting():
        value = torch.where(e.isnan(), 0.0, e)
        return [e.isnan().to(e.dtype), value if descending else -value]
    # Energies are not negative, and the bits of such floats sort like the floats.
    integers = torch.int64 if e.dtype == torch.float64 else torch.int32
    bits = e.contiguous().view(integers)
    return [torch.where(e.isnan(), torch.iinfo(integers).max, bits if descending else -bits)]


def _ranks_by_pairs(keys: list[Tensor], n: tuple[int, int]) -> Tensor:
    children = [[child.contiguous() for child in _children(key, n)] for key in keys]
    count = n[0] * n[1]
    small = torch.int32 if is_exporting() else torch.uint8  # ONNX runtimes cannot add uint8
    ranks = [torch.full_like(children[0][0], i, dtype=small) for i in range(count)]  # the ranks if all were equal
    for i in range(count):
        for j in range(i + 1, count):
            swap = _larger([child[j] for child in children], [child[i] for child in children]).to(small)
            ranks[i] += swap
            ranks[j] -= swap
    rows = [torch.stack(ranks[i * n[1] : (i + 1) * n[1]], -1).flatten(-2) for i in range(n[0])]
    return torch.stack(rows, -2).flatten(-3, -2).int()


def _larger(a: list[Tensor], b: list[Tensor]) -> Tensor:
    larger = a[-1] > b[-1]
    for left, right in zip(reversed(a[:-1]), reversed(b[:-1]), strict=True):
        larger = (left > right) | ((left == right) & larger)
    return larger


def _ranks_by_sorting(keys: list[Tensor], n: tuple[int, int]) -> Tensor:
    parents = keys[0].shape[2] // n[0], keys[0].shape[3] // n[1]
    grouped = [
        key.unflatten(3, (parents[1], n[1])).unflatten(2, (parents[0], n[0])).transpose(3, 4).flatten(4) for key in keys
    ]  # b c parent_row parent_column child
    ranks = _invert(argsort(grouped)).unflatten(-1, n)
    return ranks.transpose(3, 4).flatten(4).flatten(2, 3)


def argsort(keys: list[Tensor]) -> Tensor:
    """Return the indices that sort the last dimension by several keys, the largest first; ties keep their order."""
    source: Tensor | None = None
    for key in reversed(keys):  # the least significant first, since the sorts are stable
        found = _argsort_descending(key if source is None else key.gather(-1, source))
        source = found if source is None else source.gather(-1, found)
    assert source is not None
    return source


def _argsort_descending(key: Tensor) -> Tensor:
    """A stable argsort. ONNX has none, but its TopK breaks ties by the lower index, which is the same."""
    if not torch.onnx.is_in_onnx_export():
        return torch.sort(key, dim=-1, descending=True, stable=True).indices
    count = torch.tensor([key.shape[-1]])
    _, indices = torch.onnx.ops.symbolic_multi_out(
        "TopK",
        (key, count),
        {"axis": -1, "largest": 1, "sorted": 1},
        dtypes=(key.dtype, torch.int64),
        shapes=(key.shape, key.shape),
    )
    return indices


def _invert(permutation: Tensor) -> Tensor:
    """Invert permutations of the last dimension; int64."""
    places = torch.arange(permutation.shape[-1], device=permutation.device).expand(permutation.shape)
    return torch.zeros_like(places).scatter(-1, permutation.long(), places)


def permute(x: Tensor, order: Tensor, *, inverse: bool) -> Tensor:
    """Put patch order[q] of x at place q, or with `inverse` patch q at place order[q]; the memory layout is kept.

    Bits are moved, not numbers: a processor may change the payload of a NaN when it copies a float.
    """
    readable = torch.compiler.is_compiling() or torch._C._has_storage(x)  # batched gradients are not
    if readable and not is_exporting():
        return _permute(x.resolve_neg().view(_WORDS[x.element_size()]), order, inverse).view(x.dtype)
    return _permute(x, order, inverse)


def _permute(x: Tensor, order: Tensor, inverse: bool) -> Tensor:
    source = order.flatten(2).long()
    if inverse:
        source = _invert(source)
    rows, columns = order.shape[2:]
    traced = torch.compiler.is_compiling() or torch.jit.is_tracing()
    if rows * columns == x.shape[2] * x.shape[3]:  # every pixel is a patch
        pixels = x.reshape(*x.shape[:2], rows * columns)
        z = pixels.gather(2, source.expand(pixels.shape)).reshape(x.shape)
    else:
        z = (_gather_pixels if traced else _select_runs)(x, source, rows, columns)
    return z.contiguous(memory_format=torch.channels_last) if _is_channels_last(x) else z


def _gather_pixels(x: Tensor, source: Tensor, rows: int, columns: int) -> Tensor:
    """Move patches by one index per pixel, which compilers fuse and exporters support."""
    b, c, h, w = x.shape
    high, wide = h // rows, w // columns
    i = torch.arange(h, device=x.device)[:, None]
    j = torch.arange(w, device=x.device)
    inside = (i < rows * high) & (j < columns * wide)
    patch = torch.where(inside, i // high * columns + j // wide, 0).flatten()
    moved = source[:, :, patch].unflatten(2, (h, w))
    pixel = (moved // columns * high + i % high) * w + moved % columns * wide + j % wide
    pixel = torch.where(inside, pixel, i * w + j).flatten(2)
    return x.flatten(2).gather(2, pixel.expand(b, c, h * w)).unflatten(2, (h, w))


def _select_runs(x: Tensor, source: Tensor, rows: int, columns: int) -> Tensor:
    """Move patches by one index per row of a patch, which is contiguous: several times faster in eager mode."""
    b, c, h, w = x.shape
    high, wide = h // rows, w // columns
    everything = rows * high == h and columns * wide == w
    covered = x if everything else x[:, :, : rows * high, : columns * wide]
    runs = covered.reshape(b * c * rows * high * columns, wide)
    source = source.unflatten(2, (rows, 1, columns))
    first = torch.arange(b * c, device=x.device).view(b, c, 1, 1, 1) * (rows * high * columns)
    run = source // columns * (high * columns) + source % columns + first
    run = run + torch.arange(high, device=x.device)[:, None] * columns  # b c rows high columns
    moved = runs.index_select(0, run.flatten()).view(b, c, rows * high, columns * wide)
    if everything:
        return moved
    z = x.clone(memory_format=torch.contiguous_format)
    z[:, :, : rows * high, : columns * wide] = moved
    return z


def is_permutation(order: Tensor) -> bool:
    """Whether the order of every map contains each patch exactly once."""
    flat = order.flatten(-2).long()
    expected = torch.arange(flat.shape[-1], device=flat.device)
    return bool((flat.sort(-1).values == expected).all())


def _is_channels_last(x: Tensor) -> bool:
    return not x.is_contiguous() and x.is_contiguous(memory_format=torch.channels_last)
