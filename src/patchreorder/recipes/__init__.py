"""The tables and figures of the paper, one file each: rows, columns, settings, the paper's numbers. Nothing else.

A recipe imports from `rows` and from no other recipe; `load(name)` gives one.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from patchreorder.laboratory.recipe import Recipe

# Loaded when asked for, so that help does not wait for torch.
NAMES = {
    "table1": "error on rotated and shifted MNIST digits",
    "few": "error after training on few digits, each in one pose or drawn anew",
    "ablations": "the settings of reordering that the paper leaves open, on MNIST",
    "family": "forms of the aligned and unrolled networks, on MNIST",
    "upright": "trained on upright, centred digits only, tested on rotated and shifted ones",
    "table2": "AlexNet on ImageNet's photographs, rotated and shifted",
    "table2_grocery": "the same on photographs of groceries, or any class folders, with ImageNet-trained convolutions",
    "table2_cifar10": "the same with a small network on CIFAR-10",
    "table2_tiny": "the same with a five-convolution AlexNet on Tiny-ImageNet, from the first layer",
    "imagenet_today": "today's networks on ImageNet's photographs, rotated and shifted; nothing is trained",
    "classifiers": "what `fit` chooses against simpler classifiers, on photographs in other poses",
    "table3": "retrieval on UK-Bench, the images as they are, rotated and shifted",
    "fig_propagation": "Figure 1: how a shift of the image travels through the layers",
    "fig_rotation": "the same for a rotation of the image",
    "fig_redundancy": "Figure 2: how alike the weights of fc6 and fc7 are",
    "fig_invariance": "the invariance score of every layer",
    "fig_featuremaps": "feature maps of an image as it is, rotated and shifted, before and after reordering",
    "fig_layers": "accuracy with the module at each convolution, on CIFAR-10 or ImageNet",
    "fig_layers_mnist": "error with the module at each convolution, on rotated and shifted MNIST digits",
}

# The same in the recipes themselves; here so that help lists them.
SETTINGS = {
    "table1": ("short", "generated", "paper", "shipped", "smoke"),
    "few": ("generated", "drawn", "demo", "smoke"),
    "ablations": ("short", "smoke"),
    "family": ("short", "smoke"),
    "upright": ("short", "long", "smoke"),
    "table2": ("paper", "smoke"),
    "table2_grocery": ("short", "wide", "smoke"),
    "table2_cifar10": ("short", "smoke"),
    "table2_tiny": ("short", "smoke"),
    "imagenet_today": ("short", "smoke"),
    "classifiers": ("grocery", "coins", "flowers", "aerial", "objects", "smoke"),
    "table3": ("short", "draws", "trained", "wide", "paper", "smoke"),
    "fig_propagation": ("short", "trained", "cifar10", "grocery", "photographs", "smoke"),
    "fig_rotation": ("short", "cifar10", "smoke"),
    "fig_redundancy": ("short", "wide", "cifar10", "mnist_r", "mnist_t", "chance", "smoke"),
    "fig_invariance": ("short", "trained", "cifar10", "grocery", "smoke"),
    "fig_featuremaps": ("short", "trained", "cifar10", "grocery", "photographs", "smoke"),
    "fig_layers": ("short", "imagenet", "smoke"),
    "fig_layers_mnist": ("short", "smoke"),
}


def load(name: str) -> Recipe:
    """A recipe by name; table2-cifar10 is table2_cifar10."""
    asked, name = name, name.replace("-", "_")
    if name not in NAMES:
        raise ValueError(f"recipe ({asked!r}) must be one of {', '.join(NAMES)}")
    return import_module(f".{name}", __name__).RECIPE
