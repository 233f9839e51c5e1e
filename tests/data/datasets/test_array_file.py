"""Test tables and files of arrays as datasets: kinds, roles, encoding, tasks, and clear messages for bad input."""

import warnings
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.csv
import pyarrow.parquet
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sample_files import OPTIONS, write_table

from pogm._system.errors import DataError, PogmError, UsageError
from pogm.benchmark.plan.datasets import data_folder, find_dataset
from pogm.benchmark.plan.parsing import build_trial
from pogm.benchmark.plan.trial import Trial
from pogm.data.dataset_paths import split_options
from pogm.data.datasets.array_dataset import ArrayWarning, find_constant_columns
from pogm.data.datasets.array_file import ArrayFile
from pogm.data.datasets.base import split_domain
from pogm.data.tables.encoding import Encoding
from pogm.data.tables.samples import read_samples
from pogm.data.transforms.arrays import Columns, Counts, LogMel, Series, TokenCounts


def write_arrays(path: Path, **arrays: Any) -> Path:
    count = 12
    defaults = {
        "x": np.arange(2.0 * count).reshape(count, 2),
        "y": np.arange(count) % 3,
        "domain": np.repeat(["north", "south"], count // 2),
    }
    found = {name: array for name, array in (defaults | arrays).items() if array is not None}
    np.savez(path, **found)
    return path


def test_table_is_encoded(tmp_path):
    dataset = find_dataset(f"{write_table(tmp_path / 'trial.csv')}:{OPTIONS}")
    assert isinstance(dataset, ArrayFile)
    assert (dataset.title, dataset.task, dataset.kind) == ("trial", "classification", "table")
    assert (dataset.domains, dataset.classes) == (("a", "b", "c", "d"), ("ill", "well"))
    assert (dataset.numbers, dataset.encoding.pairs) == (
        ("age", "dose"),
        (("colour", "blue"), ("colour", "green"), ("colour", "red")),
    )
    assert dataset.transform(dataset.training) == Columns((7,), 2, 3)  # an indicator for each number
    domains = dataset.load(tmp_path, 0)
    assert [len(domain.labels) for domain in domains] == [30] * 4
    line = (tmp_path / "trial.csv").read_text().splitlines()[1].split(",")
    first = domains[0].inputs[0].tolist()
    assert first[0] == pytest.approx(float(line[1]))
    assert first[2:] == [float(line[3] == colour) for colour in ("blue", "green", "red")]


def test_group_stays_in_one_split(tmp_path):
    dataset = find_dataset(f"{write_table(tmp_path / 'trial.csv')}:{OPTIONS}")
    for number, domain in enumerate(dataset.load(tmp_path, 0)):
        inside, outside = split_domain(domain, number, trial_seed=0)
        assert not set(domain.groups[inside].tolist()) & set(domain.groups[outside].tolist())


def test_parquet_equals_csv(tmp_path):
    write_table(tmp_path / "trial.csv")
    read = pyarrow.csv.read_csv(tmp_path / "trial.csv")
    pyarrow.parquet.write_table(read, tmp_path / "trial.parquet")
    one, other = (find_dataset(f"{tmp_path / name}:{OPTIONS}") for name in ("trial.csv", "trial.parquet"))
    assert (one.encoding, one.domains, one.classes) == (other.encoding, other.domains, other.classes)
    for left, right in zip(one.load(tmp_path, 0), other.load(tmp_path, 0), strict=True):
        torch.testing.assert_close(left.inputs, right.inputs, equal_nan=True)
        assert left.labels.equal(right.labels)
        assert left.groups.equal(right.groups)


def test_missing_pyarrow_is_explained(tmp_path, monkeypatch):
    (tmp_path / "trial.parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(__import__("sys").modules, "pyarrow.parquet", None)
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(UsageError, match=r"pip install 'pogm\[parquet\]'"):
        find_dataset(str(tmp_path / "trial.parquet"))


def test_damaged_parquet_is_refused(tmp_path):
    (tmp_path / "trial.parquet").write_bytes(b"PAR1 is not enough")
    with pytest.raises(DataError, match="Expected a Parquet file at"):
        find_dataset(str(tmp_path / "trial.parquet"))


def test_texts_in_a_file_of_arrays_are_classes_even_if_they_are_digits(tmp_path):
    """pogm data features writes the names of class folders, which may be numbers."""
    y = np.arange(50) % 25
    arrays = {"x": np.ones((50, 2)), "domain": np.repeat(["a", "b"], 25)}
    np.savez(tmp_path / "texts.npz", y=y.astype(str), **arrays)
    np.savez(tmp_path / "numbers.npz", y=y, **arrays)
    dataset = find_dataset(str(tmp_path / "texts.npz"))
    assert (dataset.task, dataset.classes) == ("classification", tuple(map(str, range(25))))
    assert find_dataset(str(tmp_path / "numbers.npz")).task == "regression"


def test_numbers_with_many_values_are_a_regression(tmp_path):
    path = write_table(tmp_path / "trial.csv", regression=True)
    dataset = find_dataset(f"{path}:{OPTIONS}")
    assert (dataset.task, dataset.num_classes, dataset.classes) == ("regression", 1, ())
    labels = torch.cat([domain.labels for domain in dataset.load(tmp_path, 0)])
    assert labels.dtype == torch.float32
    assert 500 < labels.mean() < 1500


def test_task_can_be_given(tmp_path):
    path = write_arrays(tmp_path / "a.npz")
    assert find_dataset(str(path)).task == "classification"
    assert find_dataset(f"{path}:task=regression").task == "regression"
    with pytest.raises(UsageError, match="Expected a task"):
        find_dataset(f"{path}:task=ranking")


COUNTS = np.array([[0, 3], [1, 0], [0, 0], [2, 2]] * 3)


@pytest.mark.parametrize(
    ("arrays", "options", "kind", "transform", "dtype"),
    [
        ({}, "", "vectors", Columns((2,), 2), torch.float32),
        ({"x": np.zeros((12, 3, 20), np.int16)}, "", "series", Series((3, 20)), torch.float32),
        ({"x": COUNTS}, ":kind=counts", "counts", Counts((2,)), torch.float32),
        ({"x": COUNTS}, ":kind=tokens", "tokens", TokenCounts((3,)), torch.int16),
        (
            {"x": np.zeros((12, 400), np.int16), "rate": np.array(8000)},
            ":kind=audio",
            "audio",
            LogMel.build(400, 8000),
            torch.int16,
        ),
        (
            {
                "x": None,
                "data": np.array([3, 1, 2, 2], np.uint8),
                "indices": np.array([1, 0, 0, 1]),
                "indptr": np.array([0, 1, 2, 2, 4, *[4] * 8]),
                "shape": np.array([12, 2]),
            },
            "",
            "counts",
            Counts((2,)),
            torch.uint8,
        ),
    ],
    ids=["vectors", "series", "counts", "tokens", "audio", "sparse"],
)
def test_kind_of_arrays_chooses_the_transform(tmp_path, arrays, options, kind, transform, dtype):
    dataset = find_dataset(f"{write_arrays(tmp_path / 'a.npz', **arrays)}{options}")
    assert (dataset.kind, dataset.transform(dataset.training)) == (kind, transform)
    domains = dataset.load(tmp_path, 0)
    assert [len(domain.labels) for domain in domains] == [6, 6]
    assert domains[0].inputs.dtype == dtype
    if kind == "counts":
        assert domains[0].inputs[:4].tolist() == COUNTS[:4].tolist()
    network = "cnn1d" if kind in ("series", "audio") else "mlp"
    assert dataset.training.network == network


def test_trial_is_saved_and_does_not_depend_on_the_folder(tmp_path):
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        write_table(tmp_path / folder / "trial.csv")
    one, other = (build_trial(f"{tmp_path / f / 'trial.csv'}:{OPTIONS}", "ERM", ["c"]) for f in ("one", "two"))
    assert one.id == other.id
    assert Trial.from_json(one.to_json()) == one
    assert str(tmp_path) not in str(one.to_json())


def test_other_content_is_refused(tmp_path):
    dataset = find_dataset(f"{write_table(tmp_path / 'trial.csv')}:{OPTIONS}")
    write_table(tmp_path / "trial.csv", seed=1)
    with pytest.raises(DataError, match=r"Expected the file that this run began with at .* found another content"):
        dataset.load(tmp_path, 0)
    with pytest.raises(DataError, match=r"Expected trial.csv in the data folder; found none given"):
        dataset.load(None, 0)


def test_data_folder_is_that_of_the_file(tmp_path):
    path = write_table(tmp_path / "trial.csv")
    assert data_folder([f"{path}:{OPTIONS}"], None) == tmp_path.resolve()
    assert find_dataset(f"trial.csv:{OPTIONS}", tmp_path).title == "trial"


def test_csv_with_paths_is_still_a_metadata_file_of_images(tmp_path):
    (tmp_path / "m.csv").write_text("path,label,domain,age\na.png,x,one,3\n")
    with pytest.raises(DataError, match="Expected an existing image"):
        find_dataset(str(tmp_path / "m.csv"))
    (tmp_path / "t.csv").write_text("image,label,domain,age\n1,x,one,3\n2,y,two,4\n")
    assert isinstance(find_dataset(f"{tmp_path / 't.csv'}:kind=table"), ArrayFile)


def test_options_are_checked():
    assert split_options("a.npz:kind=audio,label=z") == ("a.npz", {"kind": "audio", "label": "z"})
    with pytest.raises(UsageError, match="Expected an option of a file of arrays"):
        split_options("a.npz:path=z")


ROWS = "domain,age,label\n" + "\n".join(f"{'ab'[n % 2]},{n},{n % 3}" for n in range(12))


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        (ROWS.replace("domain,", "where,"), ":label=label", r"Expected one column 'domain' in .*; found the columns"),
        (ROWS, ":label=sex,kind=table", r"Expected one column 'sex' in .*t.csv; found the columns domain, age, label"),
        (ROWS, ":drop=aeg", r"Expected a column of t.csv out of age, domain, label; found 'aeg'.*Did you mean 'age'"),
        (ROWS, ":drop=age", r"Expected columns of inputs in t.csv, besides label, domain; found none"),
        (ROWS.replace("a,4,", "a,inf,"), "", r"the column age of t.csv; found 'inf' in row 5"),
        (ROWS.replace("a,4,", "a,1e300,"), "", r"age of t.csv; found '1e300', too large for float32, in row 5"),
        (ROWS.replace("a,4,1", "a,4,"), "", r"Expected a value of label in every row of t.csv; found none in row 5"),
        (ROWS.replace("a,4,1", "a,4,None"), "", r"found 'None', which means a missing value, in row 5 .* another name"),
        (ROWS.replace("a,4,1", "a,4"), "", r"Expected 3 cells.* found 2 in line 6"),
        (ROWS.replace("b,", "a,"), "", r"Expected two or more domains in the column domain of t.csv; found a"),
        (ROWS.replace("domain,age,label", "domain,label,label"), "", r"Expected a different name for every column"),
        ("domain,age,label\n", ":kind=table", r"Expected a header and rows"),
        (ROWS, ":domain=age,label=age", r"Expected different columns for label, domain"),
        (ROWS, ":task=regression,label=domain,domain=label", r"Expected finite numbers in the column domain"),
    ],
)
def test_bad_table_gives_a_clear_message(tmp_path, content, options, message):
    (tmp_path / "t.csv").write_text(content)
    with pytest.raises((DataError, UsageError), match=message):
        find_dataset(f"{tmp_path / 't.csv'}{options}").load(tmp_path, 0)


def test_codes_with_an_underscore_are_categories_and_not_numbers(tmp_path):
    rows = "\n".join(f"{'ab'[n % 2]},{n % 2 + 1}_{n % 3},{n % 3}" for n in range(60))  # Python reads 1_2 as 12
    (tmp_path / "t.csv").write_text(f"domain,stage,label\n{rows}")
    dataset = find_dataset(str(tmp_path / "t.csv"))
    assert (dataset.numbers, dataset.categories[::2]) == ((), ("stage",) * 6)
    with pytest.raises(DataError, match=r"Expected finite numbers in the column dose of new.csv; found '1_2' in row 2"):
        Encoding(("dose",)).encode({"dose": np.array(["3", "1_2"])}, "new.csv")


def test_text_among_many_numbers_is_named(tmp_path):
    rows = "\n".join(f"{'ab'[n % 2]},{'12 mg' if n == 30 else n},{n % 3}" for n in range(60))
    (tmp_path / "t.csv").write_text(f"domain,dose,label\n{rows}")
    with pytest.raises(DataError, match=r"numbers in the column dose of t.csv; found '12 mg' in row 31"):
        find_dataset(str(tmp_path / "t.csv"))


def test_column_of_names_is_refused(tmp_path):
    names = [f"patient {n}" for n in range(120)]
    rows = "\n".join(f"{'ab'[n % 2]},{name},{n % 3}" for n, name in enumerate(names))
    (tmp_path / "t.csv").write_text(f"domain,name,label\n{rows}")
    with pytest.raises(DataError, match=r"at most 100 different texts, in the column name of t.csv; found 120 texts"):
        find_dataset(str(tmp_path / "t.csv"))


X = np.arange(24.0).reshape(12, 2)


@pytest.mark.parametrize(
    ("arrays", "options", "message"),
    [
        ({"x": None}, "", r"Expected the array x, or data, indices, indptr, shape of sparse counts, .*found y, domain"),
        ({"x": X[:, 0]}, "", r"Expected x of shape \[N, features\] for vectors in a.npz; found \[12\]"),
        ({"x": np.zeros((12, 3, 2, 2))}, "", r"found \[12, 3, 2, 2\]"),
        ({"x": X.astype(str)}, "", r"Expected numbers in x of a.npz; found <U"),
        ({"x": np.where(X == 5, np.inf, X)}, "", r"found inf in row 3 at \[1\] and 1 such values in all"),
        ({"x": np.where(X == 5, 1e300, X)}, "", r"numbers of float32 in x of .*; found 1e\+300 in row 3 at \[1\]"),
        ({"x": np.where(X == 5, np.nan, X)[:, :, None]}, "", r"found nan in row 3 at \[1, 0\]"),
        ({"y": np.arange(11)}, "", r"Expected one value of y for each of 12 samples in a.npz; found the shape \[11\]"),
        ({"x": X - 1}, ":kind=tokens", r"Expected whole numbers \(token ids\) in x of a.npz; found float64"),
        ({"x": (X - 1).astype(int)}, ":kind=tokens", r"Expected token ids of at least 0 in a.npz; found -1 in row 1"),
        ({"x": X}, ":kind=audio", r"Expected the array rate, one number of samples per second, in a.npz"),
        ({"x": X.astype(np.int32)}, ":kind=audio", r"Expected audio as int16, .* in x of a.npz; found int32"),
        ({"x": X}, ":kind=video", r"Expected a kind of arrays"),
        ({"y": np.full(12, 3)}, "", r"Expected two or more classes in the column y of a.npz; found 3"),
        ({"domain": None}, "", r"Expected one column 'domain' in .*a.npz"),
        (
            {"split": np.repeat("tset", 12)},
            "",
            r"Expected train, val or test in the column split .* found 'tset'",
        ),
        (
            {
                "x": None,
                "data": np.ones(2),
                "indices": np.array([0, 7]),
                "indptr": np.array([0, 1, 2, *[2] * 10]),
                "shape": np.array([12, 5]),
            },
            "",
            r"Expected a sparse matrix",
        ),
    ],
)
def test_bad_arrays_give_a_clear_message(tmp_path, arrays, options, message):
    write_arrays(tmp_path / "a.npz", **arrays)
    with pytest.raises((DataError, UsageError), match=message):
        find_dataset(f"{tmp_path / 'a.npz'}{options}").load(tmp_path, 0)


def test_audio_of_another_rate_or_scale_than_that_of_the_training_is_noticed(tmp_path):
    audio = np.random.default_rng(0).integers(-999, 999, (12, 400)).astype(np.int16)
    dataset = find_dataset(f"{write_arrays(tmp_path / 'a.npz', x=audio, rate=np.array(8000))}:kind=audio")

    def read(**arrays):
        return dataset.read_inputs(read_samples(write_arrays(tmp_path / "new.npz", **arrays), {"kind": "audio"}))

    assert read(x=audio).dtype == torch.int16  # without a rate, it is that of the training
    assert read(x=audio / 2**15, rate=np.array(8000)).dtype == torch.float32
    with pytest.raises(DataError, match=r"Expected audio with 8000 samples per second in new.npz; found 16000"):
        read(x=audio, rate=np.array(16000))
    with pytest.warns(ArrayWarning, match="Expected audio from -1 to 1 in x of new.npz"):
        read(x=audio.astype(np.float32))


def test_missing_values_of_vectors_are_imputed(tmp_path):
    dataset = find_dataset(str(write_arrays(tmp_path / "a.npz", x=np.where(X == 5, np.nan, X))))
    assert dataset.indicators
    assert dataset.transform(dataset.training).shape == (4,)


def test_columns_without_information_are_named(tmp_path):
    dataset = find_dataset(f"{write_table(tmp_path / 'trial.csv')}:label=outcome,group=patient")
    with pytest.warns(ArrayWarning, match="found version constant or missing there"):
        dataset.check(dataset.load(tmp_path, 0), (0,))


def test_columns_that_are_named_as_constant_are_those_that_the_transform_sets_to_0():
    noise = torch.randn(2000, 1, generator=torch.Generator().manual_seed(0))
    columns = [noise, 3e4 + noise, 1.7e9 + 300 * noise, 1.7e9 + 3e5 * noise, 5 + 0 * noise, noise / 0 * 0, 1e30 * noise]
    x = torch.cat(columns, 1)
    x[::3, 0] = torch.nan
    scale = Columns.build(x.shape[1]).fit([x])["scale"]
    found = find_constant_columns([x[:500], x[500:]])
    assert found.tolist() == [False, False, True, False, True, True, False]
    assert (scale == 0).tolist() == found.tolist()


def test_network_for_images_is_refused_for_vectors(tmp_path):
    trial = build_trial(f"{write_table(tmp_path / 't.csv')}:{OPTIONS}", "ERM", ["c"], settings=["network=small_cnn"])
    with pytest.raises(UsageError, match=r"network for inputs of shape \[7\]; found small_cnn.*--set network=mlp"):
        trial.task(tmp_path).build_network()


def read_or_refuse(path: Path, content: bytes) -> None:
    """Load a file as a dataset, which must succeed or raise an error for users."""
    path.write_bytes(content)
    with suppress(PogmError), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        find_dataset(str(path)).load(path.parent, 0)


SPARSE = {"data": np.ones(3), "indices": np.arange(3), "indptr": np.arange(4), "shape": np.array([3, 5])}
ODD = {
    "number": np.array(3.0),
    "empty": np.zeros((0, 2)),
    "structure": np.zeros(12, [("a", int)]),
    "bytes": np.array([b"\xff"] * 12),
    "nan": np.full(12, np.nan),
    "inf": np.full((12, 2), np.inf),
    "complex": np.zeros((12, 2), complex),
    "largest": np.full((12, 2), 2**64 - 1, np.uint64),
    "surrogates": np.array(["\ud800"] * 12),
    "digits": np.array(["9" * 5000] * 12),
    "dates": np.array(["NaT"] * 12, dtype="datetime64[D]"),
}


@pytest.mark.parametrize("name", ["x", "y", "domain", "group", "split", *SPARSE])
def test_unusual_arrays_are_read_or_refused(tmp_path, name):
    for odd in ODD.values():
        more = dict.fromkeys(("x",)) | SPARSE if name in SPARSE else {}
        path = write_arrays(tmp_path / "odd.npz", **more | {name: odd})
        read_or_refuse(path, path.read_bytes())


def test_arrays_larger_than_their_file_are_refused_before_memory_is_allocated(tmp_path):
    path = write_arrays(tmp_path / "large.npz")
    with zipfile.ZipFile(path, "a") as archive:
        header = b"{'descr': '<f8', 'fortran_order': False, 'shape': (10**9, 10**9), }".replace(b"10**9", b"1000000000")
        archive.writestr("huge.npy", b"\x93NUMPY\1\0" + (len(header) + 1).to_bytes(2, "little") + header + b"\n")
    with pytest.raises(DataError, match=r"huge\.npy of shape \[1000000000, 1000000000\] in \d+ bytes"):
        find_dataset(str(path))


def test_long_text_in_a_long_table_is_refused_before_memory_is_allocated(tmp_path):
    rows = [f"x,{'ab'[row % 2]},{'pq'[row % 2]}" for row in range(20_000)]
    path = tmp_path / "long.csv"
    path.write_text("\n".join(["note,label,domain", *rows, f"{'x' * 131_000},a,p"]))
    with pytest.raises(DataError, match=r"column note .* 131000 characters"):
        find_dataset(str(path))


TOKENS = [b"", b"nan", b"-inf", b"1e400", b"9" * 5000, b"\0", b"\xff", b'"', b",", b"\n", b"\xef\xbb\xbf", b"-1", b"x"]


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_changed_files_are_read_or_refused(tmp_path_factory, data):
    root = tmp_path_factory.mktemp("changed")
    kind = data.draw(st.sampled_from(("csv", "npz", "parquet")))
    path = root / f"samples.{kind}"
    if kind == "npz":
        write_arrays(path)
    else:
        path.write_text("".join(["a,b,label,domain\n", *(f"{i},{'xy'[i % 2]},{i % 3},{i % 2}\n" for i in range(9))]))
    if kind == "parquet":
        pyarrow.parquet.write_table(pyarrow.csv.read_csv(path), path)
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(content)))
        removed = data.draw(st.integers(0, 3))
        content[start : start + removed] = data.draw(st.sampled_from(TOKENS) | st.binary(max_size=3))
    read_or_refuse(path, bytes(content))
