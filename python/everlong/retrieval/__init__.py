"""Finding what to recall: the indexes of a memory, how they are calibrated, and the search over all of them."""
