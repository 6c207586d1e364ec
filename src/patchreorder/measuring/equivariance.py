"""Whether a network's maps move with the image: in the poses of a sweep, and for infinitely small ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from patchreorder.data.photos import Photos
from patchreorder.data.poses import Pose
from patchreorder.engine.batches import Dataset
from patchreorder.metrics.equivariance import GENERATORS, Equivariance, MapEquivariance, Undoing, lie_error, move
from patchreorder.metrics.ratio import Ratio, ratio

from .activations import Recorder
from .image_set import GreyPhotos
from .onnx_network import OnnxNetwork

IMAGES, LEAST, CHANNELS = 100, 20, 8  # of the poses: a tenth of the images, within bounds; channels, drawn by seed
FEW, SHARE = 16, 50  # of the derivatives: one image of so many, at most FEW, and four at least
STEP = 1e-3  # of the derivatives: how far an input moves, over its own size


class Derivatives(NamedTuple):
    """The Lie derivatives, by generator: of layers with the image that moves, of modules with their own input."""

    layers: dict[str, dict[str, Ratio]]
    modules: dict[str, dict[str, Ratio]]
    kinds: dict[str, str]  # of the modules: the names of their classes


class MapScores:
    """The equivariance of all layers with maps, over the sampled images of a run."""

    def __init__(self, data: Dataset, *, side: float, seed: int) -> None:
        count = min(len(data), max(LEAST, min(IMAGES, len(data) // 10)))
        self.sample = torch.linspace(0, len(data) - 1, count).round().long()
        self.seed = seed
        self.layers: dict[str, MapEquivariance] = {}
        self.channels: dict[int, Tensor] = {}  # by the number of a layer's channels
        whole = side < 1  # posed after the crop
        self.reach = torch.ones(len(data), 2) if whole else _reach(data, self.sample)
        self.at = torch.zeros(0, dtype=torch.int64)

    def start_batch(self, part: Tensor, images: Tensor, layers: Mapping[str, Tensor]) -> None:
        """Take the activations of a batch of unposed images."""
        self.at = torch.isin(part, self.sample).nonzero()[:, 0]
        self.part = part[self.at]
        for name, maps in layers.items() if len(self.at) else ():
            if is_maps(maps, images):
                self.layers.setdefault(name, MapEquivariance()).start(self._chosen(maps))

    def update(self, name: str, pose: Pose, layers: Mapping[str, Tensor]) -> None:
        """Take those of the same images in a pose."""
        undoing: dict[Sequence[int], Undoing] = {}
        for layer, own in self.layers.items() if len(self.at) else ():
            maps = self._chosen(layers[layer])
            size = maps.shape[2:]
            if size not in undoing:
                undoing[size] = Undoing.of(_moves(pose, self.reach[self.part], size).to(maps), size)
            own.update(name, maps, undoing[size])

    def result(self) -> dict[str, dict[str, Equivariance]]:
        """By layer and pose."""
        return {layer: own.result() for layer, own in self.layers.items()}

    def _chosen(self, maps: Tensor) -> Tensor:
        """Some channels of the sampled images, drawn by the seed."""
        count = maps.shape[1]
        if count not in self.channels:
            random = torch.Generator().manual_seed(self.seed)
            self.channels[count] = torch.randperm(count, generator=random)[:CHANNELS].sort().values
        chosen = self.channels[count].to(maps.device)
        return maps[:, chosen] if len(self.at) == len(maps) else maps[self.at[:, None], chosen]


def _reach(data: Dataset, sample: Tensor) -> Tensor:
    """Height and width of the images over those of what the network sees, (images, 2): photographs are cropped."""
    photos = data.photos if isinstance(data, GreyPhotos) else data
    reach = torch.ones(len(data), 2)
    if isinstance(photos, Photos):
        for index in sample.tolist():
            width, height = photos.small_size(index)
            scale = photos.short / min(width, height) / photos.size
            reach[index] = torch.tensor([height * scale, width * scale])
    return reach


def _moves(pose: Pose, reach: Tensor, size: Sequence[int]) -> Tensor:
    """(b, 2, 3): where a pose moves a point of the maps; `reach` says what a shift by 1 is, (b, 2)."""
    height, width = size
    angle, mirror = math.radians(pose.degrees), -1.0 if pose.flip else 1.0
    cos, sin = pose.scale * math.cos(angle), pose.scale * math.sin(angle)
    turn = torch.tensor([[mirror * cos, sin * height / width], [-mirror * sin * width / height, cos]])
    shift = 2 * reach.flip(1) * torch.tensor([pose.right, pose.down])  # b 2
    return torch.cat([turn.expand(len(reach), 2, 2), shift[:, :, None]], 2)


def generators(poses: Iterable[Pose]) -> list[str]:
    """The infinitely small poses that belong to these."""
    found = set()
    for pose in poses:
        found |= {"shift"} if pose.down or pose.right else set()
        found |= {"rotation"} if pose.degrees % 180 else set()
        found |= {"scale"} if pose.scale != 1 else set()
    return [name for name in GENERATORS if name in found]


def few_images(images: int) -> Tensor:
    """The images of the derivatives, evenly spaced."""
    count = min(images, max(4, min(FEW, images // SHARE)))
    return torch.linspace(0, images - 1, count).round().long()


@torch.inference_mode()
def derivatives(
    network: nn.Module | OnnxNetwork, recorder: Recorder, images: Tensor, wanted: Sequence[str]
) -> Derivatives:
    """The Lie derivatives of layers and modules at these images, (b, c, h, w).

    A derivative is taken by moving an input a little, both ways. Of a module, its own input is moved and it alone is
    called again, so that the result says what this module adds.
    """

    def maps(inputs: Tensor) -> dict[str, Tensor]:
        return recorder(inputs).layers

    modules: dict[str, dict[str, Ratio]] = {}
    kinds: dict[str, str] = {}
    with ExitStack() as stack:
        if isinstance(network, nn.Module):  # in the pass that the layers need anyway
            stack.enter_context(_visit_modules(network, images, wanted, modules, kinds))
        unmoved = maps(images.clone())
    return Derivatives(compare(maps, images, unmoved, wanted), modules, kinds)


@contextmanager
def _visit_modules(
    network: nn.Module,
    images: Tensor,
    wanted: Sequence[str],
    found: dict[str, dict[str, Ratio]],
    kinds: dict[str, str],
) -> Iterator[None]:
    """Add the derivatives and the class of each module without children, the first time that it gets maps."""
    visited: set[str] = set()
    busy = False

    def visit(name: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        nonlocal busy
        if busy or name in visited or len(args) != 1 or kwargs or not is_maps(args[0], images):
            return
        busy = True  # the hooks of the module are called again below
        try:
            own = compare(lambda x: {"": module(x)}, args[0].clone(), {"": module(args[0].clone())}, wanted)
        finally:
            busy = False
        visited.add(name)
        if own:
            found[name], kinds[name] = own[""], type(module).__name__

    with ExitStack() as stack:
        for name, module in network.named_modules():
            if name and not any(module.children()) and not isinstance(module, nn.Identity):
                # Before the hooks of a recorder, which shall see the input of the pass last.
                hook = module.register_forward_pre_hook(partial(visit, name), with_kwargs=True, prepend=True)
                stack.enter_context(hook)
        yield


def compare(
    network: Callable[[Tensor], Mapping[str, Any]], images: Tensor, unmoved: Mapping[str, Any], wanted: Sequence[str]
) -> dict[str, dict[str, Ratio]]:
    """The Lie derivatives by the name of an output and by generator; outputs that are no maps are left out.

    `unmoved` is what the network gives for a copy of the images.
    """
    unmoved = {name: maps.clone() for name, maps in unmoved.items() if is_maps(maps, images)}
    found: dict[str, dict[str, Ratio]] = {name: {} for name in unmoved}
    size = float(images.double().square().mean().sqrt())
    for generator in wanted if unmoved else ():
        above: dict[str, Tensor] = {}
        below: dict[str, Tensor] = {}
        for axis in (0, 1) if generator == "shift" else (0,):
            velocity = move(images, generator, axis)
            speed = float(velocity.double().square().mean().sqrt())
            if not speed:
                continue
            step = STEP * size / speed
            ahead = {name: maps.clone() for name, maps in network(images + step * velocity).items() if name in unmoved}
            behind = network(images - step * velocity)
            for name, maps in unmoved.items():
                change = (ahead[name] - behind[name]) / (2 * step)
                error, norm = lie_error(change, move(maps, generator, axis))
                above[name], below[name] = above.get(name, 0) + error, below.get(name, 0) + norm
        for name in above:
            if math.isfinite((own := ratio(above[name].cpu(), below[name].cpu())).value):
                found[name][generator] = own
    return {name: own for name, own in found.items() if own}


def is_maps(value: Any, images: Tensor) -> bool:
    """Whether this is a batch of maps (b, c, h, w): 3x3 or more, and of the images' shape up to a pixel.

    Attention between tokens, (b, heads, tokens, channels), and maps with channels last, (b, h, w, c), are not.
    """
    if not isinstance(value, Tensor) or value.dim() != 4 or not value.is_floating_point():
        return False
    (height, width), (rows, columns) = value.shape[2:], images.shape[2:]
    return min(height, width) > 2 and abs(height * columns - width * rows) <= max(rows, columns)
