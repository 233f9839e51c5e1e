"""Train a model on a table of several hospitals, forecast its accuracy at a new one, and predict new patients.

Run: python examples/table.py [FOLDER]
"""

import csv
import sys
from pathlib import Path

import numpy as np

import pogm
from pogm.cli import main


def write_patients(path: Path, hospitals: str = "ABCD", patients: int = 100, seed: int = 0) -> None:
    """Write a table with numbers, missing values and a category; every hospital measures on another scale."""
    numbers = np.random.default_rng(seed)
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["hospital", "patient", "age", "marker", "smoker", "ill"])
        for offset, hospital in enumerate(hospitals):
            for patient in range(patients):
                age, smoker = numbers.normal(55, 12), numbers.choice(["yes", "no"])
                risk = (age - 55) / 12 + (smoker == "yes") + numbers.normal(0, 0.3)
                marker = "" if numbers.random() < 0.2 else f"{risk + 0.3 * offset:.2f}"
                writer.writerow([hospital, f"{hospital}{patient}", f"{age:.0f}", marker, smoker, int(risk > 0.5)])


def run(folder: Path) -> dict[str, float]:
    """Train, and return the probability of the class 1 of two new patients."""
    folder.mkdir(parents=True, exist_ok=True)
    write_patients(folder / "patients.csv")
    table = f"{folder / 'patients.csv'}:label=ill,group=patient"  # the column hospital is the domain
    main(["data", "check", table])
    code = main(["train", table, "--algorithm", "POGM", "--steps", "100", "--out", str(folder / "model")])
    if code:
        sys.exit(code)

    model = pogm.load(folder / "model")
    patients = {"age": [35, 75], "marker": [-1.2, np.nan], "smoker": ["no", "yes"]}  # the second marker is missing
    ill = model.classes.index("1")
    found = {f"patient {n}": float(p) for n, p in enumerate(model.probabilities(patients)[:, ill])}
    print("Probability of illness:", {name: round(value, 3) for name, value in found.items()})
    return found


if __name__ == "__main__":
    run(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/table"))
