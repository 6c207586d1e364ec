"""Surgery on any `nn.Module`: insert layers by module name, remove them, and advise where they can help.

`insertion` changes a model, `advice` only runs it: `feature_maps` finds the modules to judge, `probe` changes their
output and compares. This room uses `layers` and `operator`, and knows no model, data or training.
"""
