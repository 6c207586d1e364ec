"""How invariant a network is, layer by layer: networks opened by name, images in many poses, activations, scores.

Uses engine, models, data, metrics and what is below them. Trains nothing and writes no file; `report` shows the result.
"""
