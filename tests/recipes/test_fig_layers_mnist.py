"""The recipe fig_layers_mnist: its smoke setting, its facts, its committed rows."""

from tests.recipes.every import *  # noqa: F403

NAME = "fig_layers_mnist"
