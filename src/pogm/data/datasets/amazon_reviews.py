"""AmazonReviews: the sentiment of reviews of four kinds of products (Blitzer et al., 2007)."""

from pathlib import Path
from typing import ClassVar

import numpy as np

from pogm._system.errors import DataError
from pogm.data.datasets.array_dataset import ArrayDataset, SmallArrays, split_by_domain
from pogm.data.datasets.base import Domain, Training
from pogm.data.tables.arrays import CSR, densify, read_arrays
from pogm.data.transforms.arrays import Counts
from pogm.data.transforms.base import Transform


class AmazonReviews(ArrayDataset):
    """Positive and negative reviews of products, as counts of words.

    Input: counts of 5,000 words. The network sees log(1 + count).
    Label: 1 if the review is positive, else 0.
    Domain: the kind of product.
    Samples: 6465, 5586, 7681, 7945.
    Paper: Blitzer et al., Biographies, Bollywood, Boom-boxes and Blenders, ACL 2007.
    Licence: for research (the authors' Multi-Domain Sentiment Dataset).
    """

    domains = ("books", "dvd", "electronics", "kitchen")
    num_classes = 2
    input_shape = (5000,)
    folder = "amazon_reviews"
    files = ("amazon_reviews.npz",)
    training: ClassVar[Training] = SmallArrays(lr=3e-4, batch_size=64)
    steps = 121
    evaluate_every = 60

    def transform(self, training: Training) -> Transform:
        """Return log(1 + count)."""
        return Counts(self.input_shape)

    def load(self, root: Path | None, seed: int) -> list[Domain]:
        """Load all products. Counts are stored as dense bytes, 138 MB, from which minibatches are gathered fast."""
        (path,) = self.paths(root)
        found = read_arrays(path, (*CSR, "label", "product"))
        counts = densify(found, path)
        if counts.shape[1:] != self.input_shape or not set(found["product"].tolist()) <= set(self.domains):
            raise DataError(
                f"Expected counts of {self.input_shape[0]} words for {', '.join(self.domains)} in {path}; found "
                f"{counts.shape[1]} words for {', '.join(sorted(set(found['product'].tolist())))}. Copy the file again."
            )
        numbers = np.array([self.domains.index(name) for name in found["product"].tolist()])
        return split_by_domain(counts, found["label"].astype(np.int64), numbers, len(self.domains))
