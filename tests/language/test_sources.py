"""Corpora from folders, files and docstrings, and what is refused."""

from pathlib import Path
from typing import Literal

import pytest

from maskprior.language.sources import (
    DOCSTRINGS,
    END,
    SourceConfig,
    TextError,
    join_articles,
    read_corpus,
    split_by_content,
    standard_library_docstrings,
    without_leaks,
)


def write_splits(folder: Path, **texts: str) -> Path:
    folder.mkdir(exist_ok=True)
    for name, text in texts.items():
        (folder / f"{name}.txt").write_text(text, "utf-8")
    return folder


def source(location: Path | str) -> SourceConfig:
    return SourceConfig("some", str(location))


def test_one_text_file_a_split(tmp_path: Path) -> None:
    folder = write_splits(tmp_path, train=f"a b{END}c", valid="d\n\ne", test="f")
    corpus = read_corpus(source(folder))
    assert corpus.splits() == {"train": ["a b", "c"], "validation": ["d", "e"], "test": ["f"]}
    assert corpus.left_out == 0


def test_one_file_is_divided_and_copies_stay_together(tmp_path: Path) -> None:
    texts = [f"number {i}" for i in range(300)]
    (tmp_path / "all.txt").write_text("\n\n".join([*texts, *texts]))
    corpus = read_corpus(source(tmp_path / "all.txt"))
    splits = [set(documents) for documents in corpus.splits().values()]
    assert set.union(*splits) == set(texts)
    assert not splits[0] & splits[1]
    assert not splits[0] & splits[2]
    assert not splits[1] & splits[2]
    assert corpus.left_out == 0


def test_the_division_depends_on_nothing_but_the_text() -> None:
    texts = [f"number {i}" for i in range(50)]
    there, back = split_by_content(texts), split_by_content(reversed(texts))
    assert {name: set(part) for name, part in there.items()} == {
        name: set(part) for name, part in back.items()
    }


def test_documents_of_later_splits_are_left_out_of_earlier_ones() -> None:
    corpus = without_leaks({"train": ["a", "b", "c", "b"], "validation": ["b", "d"], "test": ["d", "c"]})
    assert corpus.splits() == {"train": ["a"], "validation": ["b"], "test": ["d", "c"]}
    assert corpus.left_out == 4


def test_a_training_split_of_test_documents_alone_is_refused() -> None:
    with pytest.raises(TextError, match="split 'train' that no later split has"):
        without_leaks({"train": ["a"], "validation": ["b"], "test": ["a"]})


def test_articles_begin_at_titles_and_not_at_sections() -> None:
    first = [" \n", " = First = \n", " \n", " = = Part = = \n", " text \n", " = a formula = \n", ""]
    assert list(join_articles([*first, " = Second thing = \n", "", "more"])) == [
        "\n = First = \n\n = = Part = = \n text \n = a formula = \n\n",
        " = Second thing = \n\nmore\n",
    ]


@pytest.mark.parametrize("how", ["parquet", "disk"])
def test_folders_of_datasets(tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    texts = {"train": ["a", " ", "b "], "validation": ["c", "d", "e"]}
    sets = {name: datasets.Dataset.from_dict({"text": rows}) for name, rows in texts.items()}
    folder = tmp_path / "set"
    if how == "disk":
        datasets.DatasetDict(sets).save_to_disk(str(folder))
    else:
        for name, rows in sets.items():
            rows.to_parquet(str(folder / "data" / f"{name}-00000-of-00001.parquet"))
    corpus = read_corpus(SourceConfig("some", str(folder), test=""))
    assert corpus.splits() == {"train": ["a", "b"], "validation": ["c", "e"], "test": ["d"]}


def test_wrong_columns_and_splits(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_dict({"story": ["a"], "number": [1]})
    datasets.DatasetDict({"train": rows, "validation": rows}).save_to_disk(str(tmp_path / "set"))
    location = str(tmp_path / "set")
    with pytest.raises(TextError, match=r"expected a column 'text', got \['number', 'story'\]"):
        read_corpus(SourceConfig("some", location, test=""))
    with pytest.raises(TextError, match="expected text in column 'number', got int"):
        read_corpus(SourceConfig("some", location, column="number", test=""))
    with pytest.raises(
        TextError, match=r"expected the splits \['train', 'validation', 'test'\], got \['train', 'valid"
    ):
        read_corpus(SourceConfig("some", location, column="story"))


def test_bytes_that_are_not_utf8(tmp_path: Path) -> None:
    write_splits(tmp_path, train="a", valid="b")
    (tmp_path / "test.txt").write_bytes(b"caf\xe9")
    with pytest.raises(TextError, match=r"test\.txt: expected UTF-8 text, got byte 0xe9 at 3"):
        read_corpus(source(tmp_path))


def test_empty_files(tmp_path: Path) -> None:
    write_splits(tmp_path, train=" \n\n ", valid="b", test="c")
    with pytest.raises(TextError, match=r"train\.txt: expected text, got an empty file"):
        read_corpus(source(tmp_path))


def test_too_few_documents_to_divide(tmp_path: Path) -> None:
    (tmp_path / "one.txt").write_text("a\n\nb")
    with pytest.raises(TextError, match=r"or enough documents to divide .* got 2 in \['one\.txt'\]"):
        read_corpus(source(tmp_path))


@pytest.mark.parametrize("names", [("train", "test"), ("valid",), ("all", "test")])
def test_a_held_out_file_never_becomes_training_text(tmp_path: Path, names: tuple[str, ...]) -> None:
    text = "\n\n".join(f"number {i}" for i in range(300))
    write_splits(tmp_path, **dict.fromkeys(names, text))
    with pytest.raises(
        TextError, match=r"expected train\.txt, validation\.txt and test\.txt, or files without"
    ):
        read_corpus(source(tmp_path))


@pytest.mark.parametrize("documents", ["rows", "articles"])
@pytest.mark.parametrize(("rows", "message"), [(["a", None], "NoneType in row 1"), ([None, "a"], "in row 0")])
def test_rows_without_text_are_named(
    tmp_path: Path, documents: Literal["rows", "articles"], rows: list[str | None], message: str
) -> None:
    datasets = pytest.importorskip("datasets")
    data = datasets.Dataset.from_dict({"text": rows})
    datasets.DatasetDict({"train": data, "validation": data}).save_to_disk(str(tmp_path / "set"))
    with pytest.raises(TextError, match=f"expected text in column 'text', got .*{message}"):
        read_corpus(SourceConfig("some", str(tmp_path / "set"), documents=documents, test=""))


@pytest.mark.parametrize("name", ["train-0.parquet", "all.TXT", "state.json"])
def test_folders_that_datasets_cannot_load(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / name).write_text("PAR1, or not")
    with pytest.raises(TextError, match=rf"set: expected \*\.txt, or splits that .*got \['{name}'\] \("):
        read_corpus(source(tmp_path / "set"))


@pytest.mark.parametrize("location", ["{}/missing", "missing.txt", "./missing"])
def test_nothing_there(tmp_path: Path, location: str) -> None:
    with pytest.raises(TextError, match="expected a folder, a text file or a datasets hub id"):
        read_corpus(source(location.format(tmp_path)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"documents": "pages"}, "expected documents 'rows' or 'articles'"),
        ({"column": ""}, "expected a column"),
    ],
)
def test_other_values_are_refused(change: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SourceConfig(**{"name": "some", "location": "x", **change})  # type: ignore[arg-type]


def test_the_standard_library_is_a_corpus() -> None:
    found = standard_library_docstrings()
    assert len(found) == len(set(found)) > 1000
    assert any("CSV" in text for text in found)
    assert DOCSTRINGS not in found
