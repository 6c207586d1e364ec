"""The layers of the family as functions and modules, and `create_layer`, which makes them by name."""
