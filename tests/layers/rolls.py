"""Cycles that are the same after a roll."""

import torch


def repeats(profile: torch.Tensor) -> torch.Tensor:
    """Whether each line equals one of its own rolls."""
    rolls = [(profile.roll(by, -1) == profile).all(-1) for by in range(1, profile.shape[-1])]
    return torch.stack(rolls).any(0) if rolls else torch.zeros(profile.shape[:-1], dtype=torch.bool)
