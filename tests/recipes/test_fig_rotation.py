"""The recipe fig_rotation: its smoke setting, its facts, its committed rows."""

from tests.recipes.every import *  # noqa: F403

NAME = "fig_rotation"
