"""Search in folders of pictures by what is on them: an index on the disk, and stores that find what is near.

pictures     the files of a folder, and what a descriptor says of them
manifest     the files of an index: what they hold, and that they are whole
stores       what is near a vector: all of it compared, FAISS's graph, or Qdrant
index        `update` makes an index of a folder or brings it up to date; `Index` answers
duplicates   groups of pictures that are near each other
page         answers as one HTML file with thumbnails
"""

DEFAULT_MODEL = "efficientnet/gap"  # the best of Table 3 for its length: docs/search.md
