"""The recipe table1: its smoke setting, its facts, its committed rows."""

from tests.recipes.every import *  # noqa: F403

NAME = "table1"
