"""Records: exact round trips, and a clear refusal of everything that is not one."""

import hashlib
import json
import math
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maskprior.experiments.record import (
    RecordError,
    RunRecord,
    format_record,
    patterns_path,
    read_record,
    read_records,
    run_digest,
    run_path,
    weights_path,
    write_record,
)

FIELDS = [field.name for field in fields(RunRecord)]
IDENTITY: dict[str, Any] = {"task": "2parity", "prior": "mask", "preset": "cpu", "seed": 7}
CONFIG = {"variant": "mask-self-allowed", "model": {"depth": 6}, "training": {"betas": [0.9, 0.999]}}


def make_record(**changes: Any) -> RunRecord:
    values: dict[str, Any] = {
        **IDENTITY,
        "config": CONFIG,
        "versions": {"python": "3.11.7", "torch": "2.6.0"},
        "commit": "5c0ffee",
        "dirty": False,
        "hardware": {"cpu": "Zähler 3", "cores": 2, "accelerator": None},
        "seconds": 13.5,
        "metrics": {"accuracy": 0.75, "coefficients": {"x0*x1": 1e-17}, "profile": [0.5, 0.25]},
        "curves": {"step": [0, 5, 11], "loss_seen": [1.5, 0.1, 0.2]},
    }
    return RunRecord(**{**values, **changes})


def write_fields(path: Path, **changes: Any) -> Path:
    """A file whose fields are changed behind the record's back; the value ... removes one."""
    values = {**json.loads(format_record(make_record())), **changes}
    path.write_text(json.dumps({name: value for name, value in values.items() if value is not ...}))
    return path


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(codec="utf-8")),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=13,
)


@given(metrics=st.dictionaries(st.text(max_size=5), json_values, max_size=5), losses=st.lists(st.floats()))
def test_round_trip_is_exact(
    metrics: dict[str, Any], losses: list[float], tmp_path_factory: pytest.TempPathFactory
) -> None:
    record = make_record(metrics=metrics, curves={"step": list(range(len(losses))), "loss": losses})
    path = tmp_path_factory.getbasetemp() / "round.json"
    write_record(path, record)
    again = read_record(path)
    assert again == record
    assert format_record(again) == format_record(record) == path.read_text("utf-8")


def test_round_trip_of_an_ordinary_record(tmp_path: Path) -> None:
    write_record(tmp_path / "new" / "folder" / "run.json", make_record())
    assert read_record(tmp_path / "new" / "folder" / "run.json") == make_record()


def test_what_is_not_finite_is_null_in_the_file_and_nan_in_memory(tmp_path: Path) -> None:
    record = make_record(
        metrics={"loss": math.inf, "deep": {"distance": None, "list": [-math.inf, 2]}},
        curves={"step": [0.0, 1.0], "loss_seen": [None, math.nan]},
    )
    write_record(tmp_path / "run.json", record)
    loaded = json.loads((tmp_path / "run.json").read_text(), parse_constant=pytest.fail)
    assert loaded["metrics"] == {"loss": None, "deep": {"distance": None, "list": [None, 2]}}
    assert loaded["curves"]["loss_seen"] == [None, None]
    for seen in (record, read_record(tmp_path / "run.json")):
        assert math.isnan(seen.metrics["loss"])
        assert math.isnan(seen.metrics["deep"]["distance"])
        assert math.isnan(seen.metrics["deep"]["list"][0])
        assert all(map(math.isnan, seen.curves["loss_seen"]))
        assert seen.hardware["accelerator"] is None


def test_text_is_stable_sorted_and_ends_with_a_newline() -> None:
    shuffled = make_record(
        config=dict(reversed(CONFIG.items())), hardware={"accelerator": None, "cores": 2, "cpu": "Zähler 3"}
    )
    text = format_record(make_record())
    assert format_record(shuffled) == text
    assert text.endswith("}\n")
    assert list(json.loads(text)) == sorted(FIELDS)
    assert '    "loss_seen": [1.5, 0.1, 0.2],\n' in text  # a curve is one line of a diff
    assert '"Zähler 3"' in text


def test_tuples_become_lists_and_steps_floats() -> None:
    record = make_record(
        config={"variant": "v", "betas": (0.9, 0.999)}, curves={"step": (0, 2), "loss": [1, 2]}
    )
    assert record.config["betas"] == [0.9, 0.999]
    assert [type(step) for step in record.curves["step"]] == [float, float]
    assert record.variant == "v"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": True}, "expected `seed` as an integer ≥ 0, got True"),
        ({"metrics": {"loss": object()}}, "expected `metrics.loss` as a plain JSON value, got object"),
        ({"metrics": {"deep": [{3: 1}]}}, r"expected strings as keys of `metrics.deep\[0\]`, got 3"),
        (
            {"config": {"variant": "v", "rate": math.nan}},
            "expected `config.rate` as a finite number, got nan",
        ),
        ({"config": {}}, 'expected `config` as an object whose "variant" is a name of letters'),
        ({"task": "../up"}, "expected `task` as a name of letters"),
    ],
)
def test_a_wrong_record_cannot_be_made(change: dict[str, Any], message: str) -> None:
    with pytest.raises(RecordError, match=message):
        make_record(**change)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, None) for name in FIELDS if name not in ("metrics", "curves")),
        *((name, 5) for name in FIELDS if name not in ("seed", "seconds")),
        *((name, []) for name in FIELDS),
        ("seed", -1),
        ("seed", 1.0),
        ("seed", "1"),
        ("prior", ""),
        ("prior", "a/b"),
        ("preset", "-x"),
        ("config", {"variant": "with space"}),
        ("config", ["variant"]),
        ("commit", ""),
        ("dirty", 0),
        ("versions", {"torch": 2}),
        ("seconds", -0.5),
        ("seconds", "1"),
        ("seconds", False),
        ("curves", {}),
        ("curves", {"loss": [1.0]}),
        ("curves", {"step": [0, 1], "loss": [1.0]}),
        ("curves", {"step": [0, 1], "loss": [1.0, "2"]}),
        ("curves", {"step": [0, 1], "loss": [1.0, True]}),
        ("curves", {"step": [0, 1], "loss": 1.0}),
        ("curves", {"step": [1, 1]}),
        ("curves", {"step": [1, 0]}),
        ("curves", {"step": [0, None]}),
    ],
)
def test_a_wrong_type_is_refused_with_the_file_and_the_field(
    tmp_path: Path, name: str, value: object
) -> None:
    path = write_fields(tmp_path / "wrong.json", **{name: value})
    with pytest.raises(RecordError, match=rf"wrong\.json: expected `{name}` as .*, got "):
        read_record(path)


@pytest.mark.parametrize("name", FIELDS)
def test_a_missing_field_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(RecordError, match=rf"gap\.json: .*; missing: {name}; unknown: none$"):
        read_record(write_fields(tmp_path / "gap.json", **{name: ...}))


def test_an_unknown_field_is_named(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"more\.json: .*; missing: none; unknown: mood$"):
        read_record(write_fields(tmp_path / "more.json", mood="good"))


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    data, path = format_record(make_record()).encode(), tmp_path / "cut.json"
    assert len(data) > 500
    for length in range(len(data) - 1):  # without the last byte, the newline, the record is whole
        path.write_bytes(data[:length])
        with pytest.raises(RecordError, match=r"cut\.json: expected a run record, got truncated or corrupt"):
            read_record(path)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00" * 512,
        b"\xff\xfe{}",
        b"[" * 200_000,
        b"{}{}",
        b"{'task': 1}",
        b'{"seconds": NaN}',
        b"Infinity",
    ],
)
def test_what_is_not_json_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "noise.json").write_bytes(data)
    with pytest.raises(
        RecordError, match=r"noise\.json: .*truncated or corrupt JSON .*; delete it and run again"
    ):
        read_record(tmp_path / "noise.json")


@pytest.mark.parametrize("text", ["[]", "3", "null", '"text"'])
def test_json_that_is_no_object_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "other.json").write_text(text)
    with pytest.raises(RecordError, match=r"other\.json: expected the fields task, .*, curves; got "):
        read_record(tmp_path / "other.json")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"nothing\.json"):
        read_record(tmp_path / "nothing.json")


def test_a_folder_is_read_in_order_and_other_files_are_left_alone(tmp_path: Path) -> None:
    for seed, name in enumerate(("b.json", "c.json", "a.json")):
        write_record(tmp_path / name, make_record(seed=seed))
    for name in ("b.safetensors", "notes.md", ".d.json.0123.tmp"):
        (tmp_path / name).write_bytes(b"x")
    (tmp_path / "report").mkdir()
    (tmp_path / "report" / "z.json").write_text("{}")
    records = read_records(tmp_path)
    assert [path.name for path in records] == ["a.json", "b.json", "c.json"]
    assert [record.seed for record in records.values()] == [2, 0, 1]


def test_a_folder_without_records_is_named(tmp_path: Path) -> None:
    (tmp_path / "notes.md").write_text("x")
    with pytest.raises(RecordError, match=rf"^{tmp_path}: expected run records \(\*\.json\), got none"):
        read_records(tmp_path)
    with pytest.raises(RecordError, match=rf"^{tmp_path}/gone: expected a folder .* got no such folder"):
        read_records(tmp_path / "gone")


def test_one_corrupt_record_in_a_folder_is_named(tmp_path: Path) -> None:
    write_record(tmp_path / "a.json", make_record())
    (tmp_path / "b.json").write_text(format_record(make_record())[:100])
    with pytest.raises(RecordError, match=r"/b\.json: "):
        read_records(tmp_path)


def test_digest_is_sha256_of_canonical_json() -> None:
    canonical = (
        '{"config": {"model": {"depth": 6}, "training": {"betas": [0.9, 0.999]}, '
        '"variant": "mask-self-allowed"}, "preset": "cpu", "prior": "mask", "seed": 7, "task": "2parity"}'
    )
    expected = hashlib.sha256(canonical.encode()).hexdigest()[:8]
    assert run_digest(**IDENTITY, config=CONFIG) == expected
    shuffled = {**dict(reversed(CONFIG.items())), "training": {"betas": (0.9, 0.999)}}
    assert run_digest(**IDENTITY, config=shuffled) == expected


@pytest.mark.parametrize(
    "change",
    [
        {"task": "t"},
        {"prior": "p"},
        {"preset": "q"},
        {"seed": 8},
        {"config": {**CONFIG, "model": {"depth": 7}}},
    ],
)
def test_digest_depends_on_all_that_defines_a_run(change: dict[str, Any]) -> None:
    assert run_digest(**{**IDENTITY, "config": CONFIG, **change}) != run_digest(**IDENTITY, config=CONFIG)


def test_digest_refuses_what_json_cannot_hold() -> None:
    with pytest.raises(RecordError, match=r"expected `config\.x` as a plain JSON value, got set"):
        run_digest(**IDENTITY, config={"x": {1}})


def test_paths_of_a_run(tmp_path: Path) -> None:
    path = run_path(tmp_path, **IDENTITY, config=CONFIG)
    digest = run_digest(**IDENTITY, config=CONFIG)
    assert path == tmp_path / f"2parity-mask-self-allowed-seed7-{digest}.json"
    assert weights_path(path) == path.parent / f"{path.stem}.safetensors"
    assert patterns_path(path) == path.parent / f"{path.stem}.patterns.safetensors"
    dotted = run_path(tmp_path, **IDENTITY, config={"variant": "mask-lr0.002"})
    assert weights_path(dotted).name == f"{dotted.name.removesuffix('.json')}.safetensors"


@pytest.mark.parametrize("variant", [None, "", "a b", "a/b", ".hidden", 3])
def test_paths_refuse_what_is_no_name(tmp_path: Path, variant: object) -> None:
    with pytest.raises(RecordError, match=r"expected `config\[\"variant\"\]` as a name of letters"):
        run_path(tmp_path, **IDENTITY, config={"variant": variant})
