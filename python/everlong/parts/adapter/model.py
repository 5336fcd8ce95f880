"""The adapter: low-rank maps beside a model's own (models/low_rank.py), which help it to answer from what came back.

The four-MI100 design, 3.2.4: a model whose context is pages out of many texts, restored and re-phased, answers worse
than one that has the right passage alone. The maps are trained to close that gap (train.py).
"""

ADAPTER = "adapter"
