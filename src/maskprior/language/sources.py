"""Where text comes from: ``datasets`` (hub or folder), text files, the standard library's docstrings."""

import ast
import hashlib
import inspect
import re
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

DOCSTRINGS = "docstrings"
END = "<|endoftext|>"
SHORTEST_DOCSTRING = 80
_ARTICLE = re.compile(r" ?= [^=\s](.*[^=\s])? = ?")
_NAMES = {"train": ("train",), "validation": ("validation", "valid", "val", "dev"), "test": ("test",)}
_NOT_TAUGHT = {"test", "tests", "idle_test", "site-packages", "dist-packages", "lib2to3"}


class TextError(ValueError):
    """Text that is not what it should be; the message names the file, split or column."""


@dataclass(frozen=True)
class SourceConfig:
    """Where a corpus is and how it is read.

    Attributes:
        name: of the corpus, for records.
        location: "docstrings" (those of the running Python's standard library), a folder (``save_to_disk``,
            parquet, arrow, …, or ``*.txt``), a text file, or a ``datasets`` hub id. Not part of a run's
            identity: the digest of the text is in the record.
        subset: configuration of a hub set, or folder inside a local one.
        column: of the text.
        documents: "rows" makes each row a document; "articles" joins rows up to the next line
            ``= Title =``, as WikiText is laid out.
        train, validation, test: names of the splits. With ``test=""``, documents of the validation split are
            test and validation by turns.
    """

    name: str
    location: str
    subset: str = ""
    column: str = "text"
    documents: Literal["rows", "articles"] = "rows"
    train: str = "train"
    validation: str = "validation"
    test: str = "test"

    def __post_init__(self) -> None:
        """Check the values (ValueError)."""
        if self.documents not in ("rows", "articles"):
            raise ValueError(f"expected documents 'rows' or 'articles', got {self.documents!r}")
        for field in ("name", "location", "column", "train", "validation"):
            if not getattr(self, field):
                raise ValueError(f"expected a {field} of the corpus, got an empty string")

    def describe(self) -> dict[str, Any]:
        """What is part of a run's identity."""
        return {name: value for name, value in asdict(self).items() if name != "location"}


@dataclass(frozen=True)
class Corpus:
    """Documents of three splits that share none.

    Attributes:
        train, validation, test: documents, none of them blank.
        left_out: documents of training or validation that were left out, as a later split has them too.
    """

    train: Sequence[str]
    validation: Sequence[str]
    test: Sequence[str]
    left_out: int = 0

    def splits(self) -> dict[str, Sequence[str]]:
        """By name."""
        return {"train": self.train, "validation": self.validation, "test": self.test}


def read_corpus(config: SourceConfig) -> Corpus:
    """Read the documents and keep the splits apart.

    Raises:
        TextError: a split, column or text is missing, empty or not UTF-8.
        OSError: a file can't be read, or the hub can't be reached.
    """
    if config.location == DOCSTRINGS:
        splits = split_by_content(standard_library_docstrings())
    else:
        path = Path(config.location).expanduser()
        texts = _text_files(path)
        splits = _read_texts(path, texts) if texts else _read_datasets(config)
    for name, documents in splits.items():
        if not documents:
            raise TextError(f"{config.location}: expected text in split {name!r}, got none")
    return without_leaks(splits)


def without_leaks(splits: dict[str, list[str]]) -> Corpus:
    """The corpus without those documents of training that validation or test have, and so for validation."""
    test = set(splits["test"])
    validation = [text for text in splits["validation"] if text not in test]
    held = test | set(validation)
    train = [text for text in splits["train"] if text not in held]
    left_out = len(splits["train"]) + len(splits["validation"]) - len(train) - len(validation)
    for name, kept in (("train", train), ("validation", validation)):
        if not kept:
            raise TextError(f"expected text in split {name!r} that no later split has, got none")
    return Corpus(train, validation, splits["test"], left_out)


def split_by_content(documents: Iterable[str]) -> dict[str, list[str]]:
    """90 % training, 5 % validation, 5 % test; a text goes where its hash says, so copies stay together."""
    splits: dict[str, list[str]] = {"train": [], "validation": [], "test": []}
    for text in documents:
        turn = hashlib.sha256(text.encode()).digest()[0] % 20
        splits["test" if turn == 0 else "validation" if turn == 1 else "train"].append(text)
    return splits


def join_articles(rows: Iterable[str]) -> Iterator[str]:
    """Rows joined to documents that start at a line ``= Title =``; a line feed ends each row.

    An empty row stands before a title: without one, such a line is a formula.
    """
    lines: list[str] = []
    for row in rows:
        line = row.rstrip("\n")
        follows_blank = bool(lines) and not lines[-1].strip()
        if _ARTICLE.fullmatch(line) and follows_blank and any(map(str.strip, lines)):
            yield "".join(lines)
            lines = []
        lines.append(f"{line}\n" if line.strip() else "\n")
    if any(map(str.strip, lines)):
        yield "".join(lines)


def standard_library_docstrings() -> list[str]:
    """Docstrings of the running Python's standard library in a fixed order, each once.

    Raises:
        TextError: the library's sources are not installed.
    """
    root = Path(sysconfig.get_paths()["stdlib"])
    found: dict[str, None] = {}
    for path in sorted(root.rglob("*.py")):
        if not _NOT_TAUGHT & set(path.relative_to(root).parts):
            found.update(dict.fromkeys(_docstrings(path)))
    if not found:
        raise TextError(f"{root}: expected the sources of Python's standard library, got no docstrings")
    return list(found)


def _docstrings(path: Path) -> Iterator[str]:
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):  # templates and files of another Python
        return
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            text = inspect.cleandoc(ast.get_docstring(node, clean=False) or "").strip()
            if len(text) >= SHORTEST_DOCSTRING:
                yield text


def _text_files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    return sorted(path.glob("*.txt")) if path.is_dir() else []


def _read_texts(path: Path, files: Sequence[Path]) -> dict[str, list[str]]:
    """One file a split where they are named so; else all documents, divided by their content."""
    by_stem = {file.stem: file for file in files}
    named = {
        split: next((by_stem[name] for name in names if name in by_stem), None)
        for split, names in _NAMES.items()
    }
    found = {split: file for split, file in named.items() if file is not None}
    if len(found) == len(named):
        return {split: _documents_of(file) for split, file in found.items()}
    if found.keys() - {"train"}:
        raise TextError(
            f"{path}: expected train.txt, validation.txt and test.txt, or files without such names, whose "
            f"documents are divided, got {[file.name for file in files]}"
        )
    splits = split_by_content(text for file in files for text in _documents_of(file))
    if not all(splits.values()):
        count = sum(map(len, splits.values()))
        raise TextError(
            f"{path}: expected train.txt, validation.txt and test.txt, or enough documents to divide (about "
            f"100; blank lines or {END} between them), got {count} in {[file.name for file in files]}"
        )
    return splits


def _documents_of(file: Path) -> list[str]:
    try:
        text = file.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise TextError(
            f"{file}: expected UTF-8 text, got byte {error.object[error.start]:#04x} at {error.start}"
        ) from error
    parts = text.split(END) if END in text else re.split(r"\r?\n[ \t]*\r?\n", text)
    documents = [part.strip() for part in parts if part.strip()]
    if not documents:
        raise TextError(f"{file}: expected text, got an empty file")
    return documents


def _read_datasets(config: SourceConfig) -> dict[str, list[str]]:
    found = _load(config)
    names = [config.train, config.validation, *([config.test] if config.test else [])]
    missing = [name for name in names if name not in found]
    if missing:
        raise TextError(f"{config.location}: expected the splits {names}, got {sorted(found)}")
    rows = {name: list(_documents(config, found[name])) for name in names}
    validation = rows[config.validation]
    if config.test:
        return {"train": rows[config.train], "validation": validation, "test": rows[config.test]}
    return {"train": rows[config.train], "validation": validation[::2], "test": validation[1::2]}


def _load(config: SourceConfig) -> Any:
    """A ``DatasetDict``."""
    import datasets

    path = Path(config.location).expanduser()
    if not path.is_dir():
        meant_here = config.location.startswith((".", "~")) or path.suffix == ".txt"
        if path.is_absolute() or meant_here or config.location.count("/") > 1:
            raise TextError(
                f"{path}: expected a folder, a text file or a datasets hub id (owner/name), got none"
            )
        return datasets.load_dataset(config.location, config.subset or None)
    inside = path / config.subset
    try:
        if (inside / "dataset_dict.json").exists():
            return datasets.load_from_disk(str(inside))
        return datasets.load_dataset(str(path), data_dir=config.subset or None)
    except (ValueError, FileNotFoundError) as error:
        raise TextError(
            f"{inside}: expected *.txt, or splits that datasets can load (parquet, arrow, a saved "
            f"DatasetDict), got {sorted(each.name for each in path.iterdir())[:9]} ({error})"
        ) from error


def _documents(config: SourceConfig, split: Any) -> Iterator[str]:
    if config.column not in split.column_names:
        raise TextError(
            f"{config.location}: expected a column {config.column!r}, got {sorted(split.column_names)}"
        )
    texts = _checked_texts(config, split[config.column])
    if config.documents == "articles":
        yield from join_articles(texts)
    else:
        yield from (text for row in texts if (text := row.strip()))


def _checked_texts(config: SourceConfig, column: Iterable[Any]) -> Iterator[str]:
    for row, text in enumerate(column):
        if not isinstance(text, str):
            raise TextError(
                f"{config.location}: expected text in column {config.column!r}, got {type(text).__name__} in "
                f"row {row}"
            )
        yield text
