"""fastText's models: words, and the buckets of their n-grams."""

__all__ = [
    "ARGUMENTS",
    "FORMAT",
    "LABELS",
    "LOSSES",
    "MAGIC",
    "MODELS",
    "OUTPUT_MATRIX",
    "SUPERVISED",
]

FORMAT = "fasttext"
MAGIC = (793712314).to_bytes(4, "little")
# The arguments of the training, by their names in the metadata of finalfusion files.
ARGUMENTS = (
    "dims",
    "window_size",
    "epoch",
    "min_count",
    "ns",
    "word_ngrams",
    "loss",
    "model",
    "buckets",
    "min_n",
    "max_n",
    "lr_update_rate",
    "sampling_threshold",
)
LOSSES = {1: "HierarchicalSoftmax", 2: "NegativeSampling", 3: "Softmax", 4: "OneVsAll"}
MODELS = {1: "CBOW", 2: "SkipGram", 3: "Supervised"}
SUPERVISED = 3
# What reports call the parts that only this format holds.
LABELS = "labels"
OUTPUT_MATRIX = "output matrix"
