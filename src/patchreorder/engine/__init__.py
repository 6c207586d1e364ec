"""Training and prediction, in one process or many: the only loop."""
