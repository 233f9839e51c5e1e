"""POGM as a scikit-learn estimator: a table of patients of four hospitals, with missing values and a category.

The estimator is the last step of a pipeline. Each hospital is held out once, and the accuracy there is compared with
that of ERM and of gradient-boosted trees. Run it with: python examples/scikit_learn.py
"""

import numpy as np
import pandas as pd
import sklearn
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.model_selection import LeaveOneGroupOut, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from pogm import POGM, DomainGeneralizer


def make_patients(count: int = 150) -> pd.DataFrame:
    """Return patients of four hospitals. The marker is unreliable: its sign depends on the hospital."""
    rng = np.random.default_rng(0)
    tables = []
    for hospital, sign in {"Aarau": 1, "Basel": 1, "Bern": 0.5, "Chur": -1}.items():
        ill = rng.random(count) < 0.5
        table = pd.DataFrame(
            {
                "hospital": hospital,
                "age": rng.normal(50 + 12 * ill, 9),
                "weight": rng.normal(75, 10, count),
                "height": rng.normal(1.7, 0.1, count),
                "marker": rng.normal(1.5 * sign * (2 * ill - 1), 1),
                "smoker": np.where(rng.random(count) < 0.3 + 0.4 * ill, "yes", "no"),
                "ill": ill,
            }
        )
        table.loc[rng.random(count) < 0.2, "age"] = np.nan
        table.loc[rng.random(count) < 0.1, "smoker"] = None
        tables.append(table)
    return pd.concat(tables, ignore_index=True)


def add_body_mass_index(x: pd.DataFrame) -> pd.DataFrame:
    """Return the table with one more column."""
    return x.assign(bmi=x["weight"] / x["height"] ** 2)


def main() -> dict[str, np.ndarray]:
    """Print the accuracy at each hospital when it is held out, and return it for each method."""
    sklearn.set_config(enable_metadata_routing=True)
    patients = make_patients()
    x, y, hospitals = patients.drop(columns=["hospital", "ill"]), patients["ill"], patients["hospital"]
    methods = {
        # The request says that the pipeline must pass `domains` to fit.
        "POGM": DomainGeneralizer(POGM(kappa=0.2), steps=60, random_state=0).set_fit_request(domains=True),
        "ERM": DomainGeneralizer("ERM", steps=60, random_state=0).set_fit_request(domains=True),
        "boosted trees": HistGradientBoostingClassifier(max_iter=30, categorical_features=["smoker"], random_state=0),
    }
    accuracies = {}
    print(f"{'held out':<14}", *sorted(set(hospitals)), " mean", sep="  ")
    for name, method in methods.items():
        params = {"groups": hospitals} | ({"domains": hospitals} if isinstance(method, DomainGeneralizer) else {})
        pipeline = make_pipeline(FunctionTransformer(add_body_mass_index), method)
        found = cross_validate(pipeline, x.astype({"smoker": "category"}), y, cv=LeaveOneGroupOut(), params=params)
        accuracies[name] = scores = found["test_score"]
        print(f"{name:<14}", *(f"{score:5.1%}" for score in (*scores, scores.mean())), sep="  ")
    sklearn.set_config(enable_metadata_routing=False)
    return accuracies


if __name__ == "__main__":
    main()
