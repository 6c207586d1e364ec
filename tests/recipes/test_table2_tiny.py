"""The recipe table2_tiny: its smoke setting, its facts, its committed rows."""

from tests.recipes.every import *  # noqa: F403

NAME = "table2_tiny"
