"""SpokenDigits: recordings of digits by six speakers (the Free Spoken Digit Dataset)."""

from pathlib import Path
from typing import ClassVar

import numpy as np

from pogm._system.errors import DataError
from pogm.data.datasets.array_dataset import ArrayDataset, SmallArrays, split_by_domain
from pogm.data.datasets.base import Domain, Training
from pogm.data.tables.arrays import read_arrays
from pogm.data.transforms.arrays import LogMel
from pogm.data.transforms.base import Transform

RATE = 8000  # samples per second
WINDOW = 6400  # samples of a clip: 0.8 s; 98% of the recordings are shorter


class SpokenDigits(ArrayDataset):
    """Spoken digits, by six speakers.

    Input: a recording at 8 kHz, cut or padded with zeros at its end to 0.8 s. The network sees a log-mel spectrogram of
    40 bands, computed on the device.
    Label: the digit.
    Domain: the speaker.
    Samples: 500 of each speaker, 50 of each digit.
    Paper: Jackson et al., Free Spoken Digit Dataset, 2018.
    Licence: CC BY-SA 4.0.
    """

    domains = ("george", "jackson", "lucas", "nicolas", "theo", "yweweler")
    num_classes = 10
    input_shape = (WINDOW,)
    folder = "spoken_digits"
    files = ("spoken_digits.npz",)
    training: ClassVar[Training] = SmallArrays(network="cnn1d", lr=2e-3, batch_size=16)
    steps = 151
    evaluate_every = 50

    def transform(self, training: Training) -> Transform:
        """Return the log-mel spectrogram, standardised by the training speakers."""
        return LogMel.build(WINDOW, RATE)

    def load(self, root: Path | None, seed: int) -> list[Domain]:
        """Load all speakers."""
        (path,) = self.paths(root)
        found = read_arrays(path, ("audio", "length", "speaker", "digit"))
        lengths = found["length"].astype(np.int64)
        if lengths.sum() != len(found["audio"]):
            raise DataError(
                f"Expected {lengths.sum()} samples of audio in {path}, the sum of length; found "
                f"{len(found['audio'])}. Copy the file again."
            )
        clips = np.zeros((len(lengths), WINDOW), np.int16)
        for number, (start, length) in enumerate(zip(np.cumsum(lengths) - lengths, lengths, strict=True)):
            kept = min(length, WINDOW)
            clips[number, :kept] = found["audio"][start : start + kept]
        if unknown := sorted(set(found["speaker"].tolist()) - set(self.domains)):
            raise DataError(
                f"Expected the speakers {', '.join(self.domains)} in {path}; found {', '.join(unknown)}. Copy the file "
                "again."
            )
        numbers = np.array([self.domains.index(name) for name in found["speaker"].tolist()])
        return split_by_domain(clips, found["digit"].astype(np.int64), numbers, len(self.domains))
