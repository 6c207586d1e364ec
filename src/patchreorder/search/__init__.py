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
local_features, comparison, relations  two images: aligned, compared by their pixels, and what one is to the other
verification many pairs, each once, in worker processes
duplicates, keeping  groups of verified copies, and which file of a group to keep
listing, duplicates_page, page  results as CSV, JSON, lines, or one HTML file with thumbnails
actions      copies moved away or replaced by links, logged and taken back

It may touch engine, measuring (networks of packages), models and data; commands and the laboratory use it.
"""

DEFAULT_MODEL = "efficientnet_lite0/symmetric"  # finds copies in any pose: docs/duplicates.md
