"""Numbers that tell how well a network does: tensors in, numbers out. Only `order` knows a layer; none knows data.

accuracy     misclassified images
rate         percentages with confidence intervals
consistency  equal predictions in different poses
similarity   cosines of features in different poses
invariance   firing rates of neurons (Goodfellow et al., 2009)
order        stability of a reordering layer's order
redundancy   cosines of weights (the paper's Fig. 2)
propagation  shift of feature maps (the paper's Fig. 1)
retrieval    the NS-score of UK-Bench
learning_curve  how many training images an error takes
"""
