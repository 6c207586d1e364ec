"""Training and prediction, in one process or many.

    options      how to train
    train        the only training loop
    state        what a run carries from step to step, and its checkpoint
    optimiser    SGD with learning rates per parameter
    batches      which images a network takes, in which order, as which tensors
    predict      logits of a dataset
    checkpoint   files of tensors and JSON
    distributed  the processes that train together
    progress     bars on a terminal, tensorboard
    signals      requests to stop
    memory       a setting of the C library for CPUs

It may import `data`, `models` and `metrics`; it knows no recipe, no table and no command.
"""
