import pytest
import torch

from leapfactual.data import open_data, open_table
from leapfactual.errors import InputError, MissingData


def write(path, text):
    path.write_text(text)
    return path


def test_a_table_has_columns_labels_and_names(tmp_path):
    path = write(tmp_path / "t.csv", "a,b,class\n1,2,10\n3,4.5,9\n5,6,10\n")
    table = open_table(path)
    assert table.columns == ("a", "b")
    assert table.classes == ("9", "10")
    assert table.labels.tolist() == [1, 0, 1]
    assert table[[1]].tolist() == [[3.0, 4.5]]
    assert table.names[2] == f"{path}:4"
    assert [len(part) for part in table.batches(2)] == [2, 1]
    assert repr(table) == "Table(3 rows of 2 columns, 2 classes)"
    assert torch.equal(open_data(path)[:], table.rows)


def test_lines_that_are_not_numbers_are_named_and_left_out(tmp_path):
    path = write(tmp_path / "t.csv", "a,b\n1,2\n1,red\n1\n\nnan,2\n3,4\n1e39,2\n")
    table = open_table(path)
    assert len(table) == 2
    assert table.labels is None
    reasons = {b.name.rsplit(":", 1)[1]: b.reason for b in table.broken}
    assert "`b` is 'red', not a finite number" in reasons["3"]
    assert "it has 1 entries, the header 2" in reasons["4"]
    assert "`a` is 'nan'" in reasons["6"]
    assert "`a` is 1e39, beyond single precision" in reasons["8"]
    assert table.rows.isfinite().all()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must name its columns"),
        ("1,2\n3,4\n", "must name its columns"),
        ("a,a\n1,2\n", "each once"),
        ("a,b\nx,y\n", "there is no line of numbers .* `a` is 'x'"),
    ],
)
def test_what_is_no_table_is_refused(tmp_path, text, message):
    with pytest.raises(InputError, match=message):
        open_table(write(tmp_path / "t.csv", text))


def test_a_missing_table_is_named(tmp_path):
    with pytest.raises(MissingData, match="there is no table at .*no.csv"):
        open_data(tmp_path / "no.csv")


def test_any_column_can_name_the_classes_in_words_or_numbers(tmp_path):
    path = write(tmp_path / "t.csv", "species, petal ,leaf\nwolf,1,2\ncat,2,3\nwolf,3,4\n")
    table = open_table(path, label="species")
    assert table.columns == ("petal", "leaf")
    assert table.label == "species"
    assert table.classes == ("cat", "wolf")
    assert table.labels.tolist() == [1, 0, 1]
    with pytest.raises(
        InputError, match="no column `spices`; it has species, petal, leaf. Did you"
    ):
        open_table(path, label="spices")
    with pytest.raises(InputError, match="first: `species` is 'wolf', .* say --label species"):
        open_table(path)
    numbers = write(tmp_path / "numbers.csv", "a,b,label\n10,2,1\n9,4,2\n")
    assert open_data(numbers, label="a").classes == ("9", "10")
    with pytest.raises(InputError, match="`label` is the column of a table, got 'y' for images"):
        open_data(tmp_path, label="y")
