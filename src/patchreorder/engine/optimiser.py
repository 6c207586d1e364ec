"""The optimiser of a run, with learning rates per parameter, in half precision if asked for."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from .options import Training


def create_optimiser(model: nn.Module, training: Training) -> torch.optim.Optimizer:
    """The optimiser of these options, with one group of parameters for each factor of the learning rate."""
    groups, momentum, decay = parameter_groups(model, training), training.momentum, training.weight_decay
    if training.optimiser == "adamw":
        return torch.optim.AdamW(groups, lr=training.lr, betas=(momentum, 0.999), weight_decay=decay)
    nesterov = training.nesterov and momentum > 0
    return torch.optim.SGD(groups, lr=training.lr, momentum=momentum, nesterov=nesterov, weight_decay=decay)


def parameter_groups(model: nn.Module, training: Training) -> list[dict[str, Any]]:
    """The trainable parameters by the scale of their learning rate: the product of the scales of all matching keys."""
    groups: dict[float, list[nn.Parameter]] = {}
    unused = set(training.scales)
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        matching = [key for key in sorted(training.scales) if name.startswith(key) or name.endswith(f".{key}")]
        unused -= set(matching)
        scale = math.prod((training.scales[key] for key in matching), start=1.0)
        groups.setdefault(scale, []).append(parameter)
    if unused:
        raise ValueError(f"scales ({', '.join(sorted(unused))}) match no parameter of the model")
    return [{"params": parameters, "scale": scale} for scale, parameters in groups.items()]


def set_rate(optimiser: torch.optim.Optimizer, rate: float) -> None:
    """Set the learning rate, times the scale of each group."""
    for group in optimiser.param_groups:
        group["lr"] = rate * group["scale"]


def half_precision(device: torch.device) -> torch.dtype:
    """bfloat16 where the device has it, or float16, which needs loss scaling."""
    if device.type == "cuda" and not torch.cuda.is_bf16_supported():
        return torch.float16
    return torch.bfloat16
