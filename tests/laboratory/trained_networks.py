"""What trainings of tables leave in their output folders, for tests that read them."""

import torch
from torch import nn

from patchreorder import recipes
from patchreorder.engine import checkpoint
from patchreorder.models import create_model


def write_training(
    run, network, *, setting="short", seed=0, table="table2_grocery", whole=False, width=12
) -> nn.Module:
    """Write the weights of a row of a table: the classifier alone, unless the convolutions were trained too."""
    row = next(row for row in recipes.load(table).rows if row.name == network)
    torch.manual_seed(seed + 5)
    model = create_model(row.model, dataset="imagenet", classes=7, width=width, **row.options).eval()
    kept = {name: value for name, value in model.state_dict().items() if whole or name.startswith("classifier.")}
    folder = run / "cells" / f"{network}.all.{setting}.test.{seed}.abcdef01"
    cell = [table, network, "Ori", setting, "test", seed, "abcdef01"]
    state = {"cell": cell, "model": row.model, "options": dict(row.options)}
    checkpoint.write(folder / "weights.safetensors", kept, state)
    return model
