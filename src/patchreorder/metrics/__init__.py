"""Numbers that tell how well a network does: tensors in, numbers out."""
