"""Search in folders of images by content: descriptors, an index on the disk, and stores that find near vectors.

descriptors  a backbone, a pool and unit length: one vector for an image; by name, with trained weights
images       the image files of a folder
manifest     the files of an index, and their checksums
update       makes an index of a folder, or updates it
parts        describes one of several parts of a folder, for an update to join
stores       near vectors: all compared, or by FAISS's graph; what a shared store is
postgres     a shared store: PostgreSQL with pgvector
qdrant       a shared store: Qdrant
index        an index that is opened to search for vectors
query        searches an index for images
candidates   the nearest vectors of every vector, in bounded memory
duplicates   groups of images that are near each other
page         results as one HTML file with thumbnails

It may touch engine, measuring (networks of packages), models and data; commands and the laboratory use it.
"""

DEFAULT_MODEL = "efficientnet_lite0/gap"  # the best of Table 3 for its length: docs/search.md
