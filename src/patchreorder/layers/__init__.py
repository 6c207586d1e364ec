"""Layers that make networks invariant to poses, as functions and modules, and `create_layer`, which makes them by name.

They have no parameters and no randomness: a layer is a function of the operator room's kind with fixed options. May use
operator only.
"""
