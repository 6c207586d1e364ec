"""A classifier for photographs in class folders: fit."""
