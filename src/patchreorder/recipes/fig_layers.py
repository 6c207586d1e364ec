"""The paper's figure of where to reorder: at each of the five convolutions, in one level and in two.

    patchreorder run fig_layers [--rows none conv1_4x4 conv5_2x2] [--out runs/fig_layers]
    patchreorder run fig_layers --setting imagenet --data IMAGENET

The paper trains AlexNet on ImageNet for each (setting imagenet, not run by us); the others are of the five-convolution
network of table2_cifar10, trained as there; fig_layers_mnist is the same on digits. 4x4: one level of 4x4 patches (the
paper's l = 1); 2x2: 2x2 patches of 2x2 patches (its l = 2). Maps are 32x32 at conv1, 16x16 at conv2 and 8x8 behind.
About 80 seconds of one core an epoch and row: 1.5 core-hours for the 11 rows.
"""

from __future__ import annotations

from patchreorder.engine.options import Training
from patchreorder.laboratory.photographs import PhotographTask
from patchreorder.laboratory.recipe import Plan, Recipe, Setting
from patchreorder.laboratory.small_images import CURVES, Cifar10Task

from .rows import CIFAR10, at_each_layer, layer_comparisons, layer_figure

LAYERS = {layer: layer for layer in ("conv1", "conv2", "conv3", "conv4", "conv5")}
EPOCHS = 6


def _short(row: str, column: str) -> Plan:
    return Plan(training=Training(epochs=EPOCHS, lr=0.03, weight_decay=0.0005))


def _imagenet(row: str, column: str) -> Plan:
    training = Training(
        steps=700_000,
        batch=256,
        lr=0.01,
        nesterov=False,
        weight_decay=0.0005,
        schedule="step",
        decay_every=200_000,
        clip=35.0,
        scales={"bias": 2.0},
    )
    return Plan(training=training)


def _smoke(row: str, column: str) -> Plan:
    training = Training(steps=2, batch=4, lr=0.001)
    return Plan(training=training, images=16, tested=8, curve_images=4, synthetic=True)


RECIPE = Recipe(
    name="fig_layers",
    title="Where to reorder: each convolution, one level and two",
    about="A network of five convolutions, trained once for each position of the module on upright images, and tested "
    "on images as they are (Ori), rotated (R) and shifted (T), the same for all. The paper's figure is of AlexNet on "
    "ImageNet.",
    metric="accuracy %",
    better="higher",
    rows=at_each_layer("cifar_cnn", "cifar_pr", LAYERS),
    columns=CIFAR10,
    settings={
        "short": Setting(
            about=f"CIFAR-10; Nesterov SGD 0.9, batch 128, one cycle up to 0.03, weight decay 0.0005, {EPOCHS} epochs",
            plan=_short,
        ),
        "imagenet": Setting(
            about="AlexNet on ImageNet (--data DIR), trained as in table2's setting paper; not run by us",
            plan=_imagenet,
            task=PhotographTask,
            instead={
                "cifar_cnn": "alexnet",
                "cifar_pr": "alexnet_pr",
                "cifar10": "Ori",
                "cifar10-r": "R",
                "cifar10-t": "T",
            },
            needs="--data IMAGENET",
        ),
        "smoke": Setting(about="seconds, synthetic images: does it run", plan=_smoke),
    },
    task=Cifar10Task,
    compare=layer_comparisons(LAYERS),
    curves=CURVES,
    figure=layer_figure(LAYERS, "test images"),
    trains_once=True,
)
