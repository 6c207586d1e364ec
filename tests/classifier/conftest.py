"""Fixtures of this folder."""

from tests.classifier.photographs import small_backbone

__all__ = ["small_backbone"]
