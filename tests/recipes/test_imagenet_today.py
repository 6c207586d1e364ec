"""The recipe imagenet_today: its smoke setting, its facts, its committed rows."""

from tests.recipes.every import *  # noqa: F403

NAME = "imagenet_today"
