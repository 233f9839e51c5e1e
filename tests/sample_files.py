"""Small files in the formats of datasets that are not images."""

from pathlib import Path

import numpy as np

HEADER = "age,sex,cp,trestbps,chol,fbs,restecg,thalach,exang,oldpeak,slope,ca,thal,num"


def write_heart(root: Path, rows: int = 40) -> Path:
    """Write four hospitals; the first row of hungarian has the renamed values of the published copy."""
    folder = root / "heart"
    folder.mkdir(parents=True)
    numbers = np.random.default_rng(0)
    for hospital in ("cleveland", "hungarian", "switzerland", "va"):
        lines = [HEADER]
        if hospital == "hungarian":
            lines.append("40,1,2,140,289,0,0.1,172,0.2,0.3,-9,-9.1,-9.2,0.4")
        for _ in range(rows):
            ill = int(numbers.random() < 0.5)
            chol = 0 if hospital == "switzerland" else numbers.integers(180, 300)
            ca = "?" if hospital == "va" else "0.0"
            lines.append(
                f"{numbers.integers(30, 70)},{numbers.integers(2)}.0,{numbers.integers(1, 5)},120,{chol},?,0,"
                f"{150 - 30 * ill + numbers.integers(-9, 9)},{ill},{ill}.5,2,{ca},{7 if ill else 3}.0,{3 * ill}"
            )
        (folder / f"{hospital}.csv").write_text("\n".join(lines) + "\n")
    return root


def write_spoken_digits(root: Path, each: int = 20) -> Path:
    """Write tones: the frequency is the digit, the volume is the speaker."""
    (root / "spoken_digits").mkdir(parents=True)
    speakers = ("george", "jackson", "lucas", "nicolas", "theo", "yweweler")
    clips, lengths, names, digits = [], [], [], []
    numbers = np.random.default_rng(0)
    for volume, speaker in enumerate(speakers):
        for number in range(each):
            length = int(numbers.integers(1200, 9000))
            digit = number % 10
            tone = np.sin(2 * np.pi * (200 + 300 * digit) * np.arange(length) / 8000)
            clips.append((2000 * (1 + volume) * tone + numbers.normal(0, 20, length)).astype(np.int16))
            lengths.append(length)
            names.append(speaker)
            digits.append(digit)
    np.savez(
        root / "spoken_digits" / "spoken_digits.npz",
        audio=np.concatenate(clips),
        length=np.array(lengths, np.int32),
        speaker=np.array(names),
        digit=np.array(digits, np.uint8),
        rate=8000,
    )
    return root


def write_amazon_reviews(root: Path, each: int = 20) -> Path:
    """Write sparse counts of 5,000 words, of which one decides the label."""
    (root / "amazon_reviews").mkdir(parents=True)
    numbers = np.random.default_rng(0)
    products = ("books", "dvd", "electronics", "kitchen")
    labels = np.arange(4 * each) % 2
    rows = [np.unique(np.append(numbers.integers(2, 5000, 9), label)) for label in labels]
    np.savez(
        root / "amazon_reviews" / "amazon_reviews.npz",
        data=np.ones(sum(map(len, rows)), np.uint8),
        indices=np.concatenate(rows).astype(np.int16),
        indptr=np.cumsum([0, *map(len, rows)]).astype(np.int32),
        shape=np.array([4 * each, 5000]),
        label=labels.astype(np.uint8),
        product=np.repeat(products, each),
    )
    return root


def write_features(
    root: Path, name: str = "PACS", each: int = 14, network: str = "resnet50_v1", weights: str = "sha256:0"
) -> Path:
    """Write features of photographs, of which the one with the number of the class is larger."""
    (root / "features").mkdir(parents=True)
    domains, classes = {"PACS": ("ACPS", 7), "OfficeCaltech10": ("ACDW", 10)}[name]
    labels = np.arange(len(domains) * each) % classes
    x = np.random.default_rng(0).exponential(1, (len(labels), 2048)).astype(np.float32)
    x[np.arange(len(labels)), labels] += 9
    np.savez(
        root / "features" / f"{name}.npz",
        x=x,
        y=np.char.add("class ", labels.astype(str)),
        domain=np.repeat(list(domains), each),
        network=network,
        weights=weights,
        image_size=224,
    )
    return root


def write_table(path: Path, regression: bool = False, rows: int = 120, seed: int = 0) -> Path:
    """Write a table of four sites with numbers, missing values, a category, a constant column and patients.

    The outcome depends on the age and on the category, so that a network can learn it.
    """
    numbers = np.random.default_rng(seed)
    lines = ["site,age,dose,colour,version,patient,outcome"]
    for row in range(rows):
        site = "abcd"[row % 4]
        age, dose = numbers.normal(50 + 2 * (row % 4), 10), numbers.normal(3, 1)
        colour = numbers.choice(["red", "green", "blue"])
        score = (age - 53) / 10 + 1.5 * (colour == "red") - 0.5
        outcome = f"{1000 + 300 * score:.2f}" if regression else ("ill" if score > 0 else "well")
        written = "" if numbers.random() < 0.1 else f"{dose:.3f}"
        lines.append(f"{site},{age:.2f},{written},{colour},1,p{row // 2},{outcome}")
    path.write_text("\n".join(lines) + "\n")
    return path


OPTIONS = "label=outcome,group=patient,drop=version"
