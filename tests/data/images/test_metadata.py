"""Test datasets that a metadata file describes."""

import os
from pathlib import Path

import pytest
from image_files import encode, picture, png, write_files, write_small_dataset

from pogm._system.errors import DataError, UsageError
from pogm.data.dataset_paths import add_options, split_options
from pogm.data.images.check import check
from pogm.data.images.class_folders import map_classes, read_tree
from pogm.data.images.image_listing import Listing, make_listing, read_mapping
from pogm.data.images.index import fingerprint, read_index
from pogm.data.images.metadata import read_table

ROWS = [
    ("b/1.png", "dog", "south", "p1", "train"),
    ("a/1.png", "cat", "south", "p2", "val"),
    ("a/2.png", "cat", "north", "p3", "train"),
    ("b/2.png", "dog", "north", "p4", "test"),
]


def write_table(
    root: Path, rows=ROWS, header=("path", "label", "domain", "group", "split"), name="metadata.csv"
) -> Path:
    """Write the images of the rows and the metadata file; return its path."""
    root.mkdir(exist_ok=True)
    paths = {row[0] for row in rows if row}
    write_files(root, {path: png(seed) for seed, path in enumerate(sorted(paths))})
    (root / name).write_text("\n".join(",".join(row[: len(header)]) for row in [header, *rows]) + "\n")
    return root / name


def test_rows_are_sorted_by_domain_class_and_path(tmp_path):
    tree = read_table(write_table(tmp_path))
    assert (tree.domains, tree.classes) == (("north", "south"), ("cat", "dog"))
    assert [tuple(file) for file in tree.files] == [
        ("a/2.png", 0, 0),
        ("b/2.png", 0, 1),
        ("a/1.png", 1, 0),
        ("b/1.png", 1, 1),
    ]
    assert tree.groups == ("p3", "p4", "p2", "p1")
    assert tree.splits == ("train", "test", "val", "train")


def test_group_and_split_are_optional(tmp_path):
    tree = read_table(write_table(tmp_path, header=("path", "label", "domain")))
    assert (tree.groups, tree.splits) == ((), ())


def test_same_images_as_folder_and_table_have_one_fingerprint(tmp_path):
    """Without groups and splits, the layout does not matter: the fingerprint is that of the content."""
    tree = read_tree(write_small_dataset(tmp_path / "data"))
    rows = [(f.path, tree.classes[f.label], tree.domains[f.domain]) for f in reversed(tree.files)]
    lines = "\n".join(",".join(row) for row in [("path", "label", "domain"), *rows])
    (tmp_path / "data" / "metadata.csv").write_text(lines)
    table = read_table(tmp_path / "data" / "metadata.csv")
    assert table.files == tree.files
    assert fingerprint(table, read_index(table, tmp_path)) == fingerprint(tree, read_index(tree, tmp_path))


def test_groups_and_splits_are_part_of_the_fingerprint(tmp_path):
    path = write_table(tmp_path / "data")
    found = set()
    for columns in (
        ("path", "label", "domain"),
        ("path", "label", "domain", "group"),
        ("path", "label", "domain", "x", "split"),
    ):
        (tmp_path / "data" / "metadata.csv").write_text(
            "\n".join(",".join(row[: len(columns)]) for row in [columns, *ROWS])
        )
        tree = read_table(path)
        found.add(fingerprint(tree, read_index(tree, tmp_path)))
    assert len(found) == 3


@pytest.mark.parametrize(
    "header",
    [("filename", "y", "hospital"), ("image_path", "label", "center"), ("img_filename", "y", "location")],
)
def test_usual_names_of_columns_are_found(tmp_path, header):
    """Waterbirds, iWildCam and other datasets of WILDS have such names."""
    assert len(read_table(write_table(tmp_path, header=header)).files) == 4


def test_columns_are_named_after_the_path(tmp_path):
    path = write_table(tmp_path, header=("id", "diagnosis", "scanner", "patient", "fold"))
    name, options = split_options(f"{path}:path=id,label=diagnosis,domain=scanner,group=patient,split=fold")
    listing = make_listing(Path(name), options)
    tree = listing.read()
    assert tree.classes == ("cat", "dog")
    assert set(tree.groups) == {"p1", "p2", "p3", "p4"}
    assert Listing(path, listing.columns).read() == tree, "a saved trial has the columns"


def test_numbers_of_wilds_are_splits(tmp_path):
    rows = [(*row[:4], str(("train", "val", "test").index(row[4]))) for row in ROWS]
    assert read_table(write_table(tmp_path, rows)).splits == ("train", "test", "val", "train")


@pytest.mark.parametrize("delimiter", [";", "\t"])
def test_other_delimiters_quotes_and_byte_order_marks_are_read(tmp_path, delimiter):
    path = write_table(tmp_path)
    text = path.read_text().replace(",", delimiter).replace("north", '"no, rth"')
    path.write_text(text, encoding="utf-8-sig")
    assert read_table(path).domains == ("no, rth", "south")


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([("a/1.png", "", "north")], r"in line 6 an empty label"),
        ([("a/1.png", "cat", " ")], r"in line 6 an empty domain"),
        ([("a/1.png", "cat")], r"in line 6 2 cells instead of 3"),
        ([("a/1.png", "dog", "south")], r"in line 6 a/1.png with other values than in line 3"),
        ([("a/1.png", "cat", "north")], r"in line 6 a/1.png with other values than in line 3"),
        ([("../out.png", "cat", "north")], r"in line 6 the path ../out.png, which is outside of the folder data"),
        ([("/etc/hostname", "cat", "north")], r"in line 6 the path /etc/hostname, which is outside"),
        ([("a\0.png", "cat", "north")], r"in line 6 the path a.*\.png, which contains a NUL character"),
        ([("link.png", "cat", "north")], r"in line 6 the path link.png, which is outside"),
        ([("a/9.png", "cat", "north")], r"in line 6 the path a/9.png, which does not exist"),
        ([("a", "cat", "north")], r"in line 6 the path a, which does not exist"),
        ([("a/1.png", "", "north"), ("a/9.png", "cat", "north")], r"in line 6 .*; in line 7 .*Correct these lines"),
        ([("a/1.png", "", "north")] * 9, r"; and 4 more lines\."),
    ],
)
def test_wrong_rows_are_named_with_their_lines(tmp_path, rows, message):
    path = write_table(tmp_path / "data", header=("path", "label", "domain"))
    write_files(tmp_path, {"out.png": png(1)})
    (tmp_path / "data" / "link.png").symlink_to(tmp_path / "out.png")
    with open(path, "a") as file:
        file.writelines(",".join(row) + "\n" for row in rows)
    with pytest.raises(DataError, match=message):
        read_table(path)


def test_equal_rows_count_once(tmp_path):
    assert len(read_table(write_table(tmp_path, [*ROWS, ROWS[0], ("./b/1.png", *ROWS[0][1:])])).files) == 4


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (
            ("path", "label", "where"),
            r"one column 'domain' in line 1 .* found the columns path, label, where\. .*metadata.csv:domain=COLUMN",
        ),
        (("path", "y", "target"), r"one column 'label' .* found several: y, target"),
        (("path", "label", "site", "hospital"), r"one column 'domain' .* several: site, hospital"),
    ],
)
def test_missing_and_ambiguous_columns_are_named(tmp_path, header, message):
    with pytest.raises(DataError, match=message):
        read_table(write_table(tmp_path, header=header))
    with pytest.raises(DataError, match="one column 'diagnosis'"):
        read_table(tmp_path / "metadata.csv", {"label": "diagnosis"})


def test_unknown_split_and_divided_group_are_refused(tmp_path):
    with pytest.raises(DataError, match=r"in line 6 the split 'maybe', which is not train, val or test"):
        read_table(write_table(tmp_path / "one", [*ROWS, ("a/3.png", "cat", "north", "p3", "maybe")]))
    with pytest.raises(DataError, match=r"in line 6 group p3 in val, but in train in line 4"):
        read_table(write_table(tmp_path / "two", [*ROWS, ("a/3.png", "cat", "north", "p3", "val")]))


def test_table_needs_two_domains_and_rows(tmp_path):
    with pytest.raises(DataError, match=r"two or more domains .* found north"):
        read_table(write_table(tmp_path / "one", ROWS[2:]))
    assert read_table(tmp_path / "one" / "metadata.csv", least_domains=1).domains == ("north",)
    with pytest.raises(DataError, match=r"two or more domains .* found none"):
        read_table(write_table(tmp_path / "two", []))


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b'path,label,domain\n"a', b""])
def test_files_that_are_no_tables_are_refused(tmp_path, content):
    (tmp_path / "metadata.csv").write_bytes(content)
    with pytest.raises(DataError, match=r"Expected (a table|one column)"):
        read_table(tmp_path / "metadata.csv")


def test_options_are_split_from_the_path():
    assert split_options("sites") == ("sites", {})
    assert split_options("a:b/sites") == ("a:b/sites", {})
    assert split_options("sites/metadata.csv:label=y") == ("sites/metadata.csv", {"label": "y"})
    assert split_options("sites:classes=map.csv") == ("sites", {"classes": "map.csv"})
    odd = {"label": "chol, mg/dl", "domain": "Haus Nr.1", "drop": "thal:1+ST, mm"}
    text = "t.csv:" + ",".join(f"{name}={value}" for name, value in odd.items())
    assert split_options(text) == ("t.csv", odd), "names of columns have commas and colons"
    assert split_options(add_options(text, group="p")) == ("t.csv", odd | {"group": "p"})
    assert add_options("m.csv", group=None) == "m.csv"
    assert add_options("m.csv:label=y", group="p") == "m.csv:label=y,group=p"
    for text in ("m.csv:lable=y", "m.csv:label=y,gruop=p", "sites:label=y"):
        with pytest.raises(UsageError, match="Expected an option of"):
            split_options(text)
    for text in ("m.csv:label=", "m.csv:label=y,label=z"):
        with pytest.raises(UsageError, match=r"Expected label=VALUE once"):
            split_options(text)
    with pytest.raises(UsageError, match=r"Expected group=VALUE once"):
        split_options("m.csv:label=y,group")
    with pytest.raises(UsageError, match=r"Expected a metadata file for group=p; found PACS"):
        add_options("PACS", group="p")


# Class mapping.


def test_classes_are_merged_renamed_and_left_out(tmp_path):
    names = {
        f"{d}/{c}/1.png": png(i) for i, (d, c) in enumerate((d, c) for d in "ab" for c in ("cat", "dog", "fox", "owl"))
    }
    tree = map_classes(read_tree(write_files(tmp_path, names)), {"dog": "canine", "fox": "canine", "owl": ""})
    assert tree.classes == ("canine", "cat")
    assert [file.path for file in tree.files if file.domain == 0] == ["a/dog/1.png", "a/fox/1.png", "a/cat/1.png"]
    assert tree.counts == [[2, 2], [1, 1]]
    assert tree.problems == {}


def test_mapping_file_is_used_by_its_columns(tmp_path):
    root = write_small_dataset(tmp_path)
    assert make_listing(root, {}).mapping == ()
    (root / "classes.csv").write_text("number,name\n1,cat\n")
    assert make_listing(root, {}).mapping == (), "a file with other columns is something else"
    (root / "classes.csv").write_text("From,To\ncat,animal\ndog,animal\n")
    listing = make_listing(root, {})
    assert listing.mapping == ("cat", "animal", "dog", "animal")
    assert listing.read().classes == ("animal",)
    (root / "other.csv").write_text("from,to\ncat,\n")
    assert make_listing(root, {"classes": "other.csv"}).read().classes == ("dog",)


def test_groups_follow_their_images_through_a_mapping(tmp_path):
    path = write_table(tmp_path)
    tree = map_classes(read_table(path), {"dog": "ape"})
    assert dict(zip((file.path for file in tree.files), tree.groups, strict=True)) == {row[0]: row[3] for row in ROWS}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cat,animal\n", r"columns from,to .* found cat,animal"),
        ("from,to\n,x\n", r"found 'no name' in line 2"),
        ("from,to\ncat,x\ncat,y\n", r"found 'cat' in line 3"),
    ],
)
def test_wrong_mappings_are_refused(tmp_path, text, message):
    (tmp_path / "map.csv").write_text(text)
    with pytest.raises(DataError, match=message):
        read_mapping(tmp_path / "map.csv")


def test_mapping_of_unknown_or_all_classes_is_refused(tmp_path):
    tree = read_tree(write_small_dataset(tmp_path))
    with pytest.raises(DataError, match=r"Expected classes of .*: cat, dog; found cow"):
        map_classes(tree, {"cow": "x"})
    with pytest.raises(DataError, match="Expected a class that is not left out"):
        map_classes(tree, {"cat": "", "dog": ""})
    with pytest.raises(DataError, match=r"Expected a table in .*missing.csv"):
        make_listing(tree.root, {"classes": "missing.csv"})


# Check.


def test_check_of_a_table_counts_groups_and_splits(tmp_path):
    rows = [*ROWS, ("a/3.png", "cat", "south", "p3", "val")]
    found = check(make_listing(write_table(tmp_path, rows), {}))
    assert found.clean
    assert "5 groups" not in found.text()
    assert "4 groups; 1 of them have images in several domains: p3." in found.text()
    assert "Given splits: 2 train, 2 val, 1 test." in found.text()


@pytest.mark.parametrize(("group", "split", "expected"), [("p1", "train", 0), ("p9", "train", 0), ("p9", "val", 1)])
def test_copies_in_several_splits_are_found(tmp_path, group, split, expected):
    path = write_table(tmp_path, [*ROWS, ("b/copy.bmp", "dog", "south", group, split)])
    (tmp_path / "b" / "copy.bmp").write_bytes(encode(picture(2), "BMP"))
    assert (tmp_path / "b" / "1.png").read_bytes() == png(2)
    assert len(check(make_listing(path, {})).near_within_domains) == expected


def test_copies_in_several_groups_are_found(tmp_path):
    for group, expected in (("p1", 0), ("p9", 1)):
        root = tmp_path / group
        path = write_table(
            root, [*ROWS, ("b/copy.bmp", "dog", "south", group)], header=("path", "label", "domain", "group")
        )
        (root / "b" / "copy.bmp").write_bytes(encode(picture(2), "BMP"))
        assert len(check(make_listing(path, {})).near_within_domains) == expected


def test_listing_of_many_rows_is_fast(tmp_path, monkeypatch):
    """The folder of each path is resolved once."""
    rows = [(f"a/{number}.png", "cat", "north" if number % 2 else "south") for number in range(2000)]
    path = tmp_path / "metadata.csv"
    path.write_text("\n".join(",".join(row) for row in [("path", "label", "domain"), *rows]))
    (tmp_path / "a").mkdir()
    for row in rows:
        (tmp_path / row[0]).touch()
    calls = []
    real = os.path.realpath
    monkeypatch.setattr(os.path, "realpath", lambda *names, **how: calls.append(names) or real(*names, **how))
    assert len(read_table(path).files) == 2000
    assert len(calls) < 10
