"""Where numbers come from, in sentences."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from maskprior.analysis.origins import describe_origins, describe_settings, format_time, run_command
from maskprior.analysis.tables import Panel, make_panels
from maskprior.experiments.record import RunRecord

MakeRecord = Callable[..., RunRecord]


def panels_of(*records: RunRecord) -> list[Panel]:
    return make_panels({Path(f"{index}.json"): record for index, record in enumerate(records)})


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(12.34, "12.3 s"), (59.9, "59.9 s"), (450, "7 min 30 s"), (3599.4, "59 min 59 s"), (7500, "2 h 05 min")],
)
def test_times(seconds: float, text: str) -> None:
    assert format_time(seconds) == text


def test_origins_name_every_commit_version_and_machine_with_its_runs(make_record: MakeRecord) -> None:
    first = make_record(seed=0, seconds=40.0)
    records = [
        first,
        replace(make_record(seed=1, seconds=30.0), dirty=True),
        replace(make_record(seed=2, seconds=20.0), hardware={"accelerator": "H200", "odd": 3, "cpu": "A"}),
    ]
    assert describe_origins(panels_of(*records)) == [
        "- runs: 3, seeds 0–2",
        "- time: 1 min 30 s of running, all runs together",
        "- commit: 5c0ffee (2 runs)",
        "- commit: 5c0ffee with uncommitted changes (1 run)",
        "- hardware: A, H200, odd 3 (1 run)",
        "- hardware: Zähler 3, 2 cores, 23.5 GiB memory (2 runs)",
        "- versions: python 3.11.7, torch 2.6.0",
        "- command: `maskprior run 2parity --preset cpu --priors mask --seeds 3 --out DIR`",
        "",
    ]


def test_odd_seeds_are_listed(make_record: MakeRecord) -> None:
    lines = describe_origins(panels_of(make_record(seed=1), make_record(seed=5)))
    assert lines[0] == "- runs: 2, seeds 1, 5"
    assert not any(line.startswith("- command") for line in lines)


def test_the_command_is_given_only_where_it_does_these_runs(make_record: MakeRecord) -> None:
    both = [make_record(prior=prior, seed=seed) for prior in ("mask", "vanilla") for seed in (0, 1)]
    expected = "maskprior run 2parity --preset cpu --priors vanilla,mask --seeds 2 --out DIR"
    assert run_command(panels_of(*both)[0]) == expected
    assert run_command(panels_of(*both[:3])[0]) is None  # vanilla has but one seed
    assert run_command(panels_of(make_record(variant="mask-frozen"))[0]) is None
    assert run_command(panels_of(make_record(seed=1))[0]) is None
    assert run_command(panels_of(make_record(preset="own"))[0]) is None
    assert run_command(panels_of(make_record(task="parity"))[0]) is None


def test_the_command_names_the_dimension(make_record: MakeRecord) -> None:
    record = make_record()
    config = {**record.config, "task": {"dimension": 7}}
    command = run_command(panels_of(replace(record, config=config))[0])
    assert command == "maskprior run 2parity --preset cpu --dimension 7 --priors mask --seeds 1 --out DIR"


def test_settings_are_shared_or_named(make_record: MakeRecord) -> None:
    records = [
        make_record(training={"steps": 20, "rate": 0.5}),
        make_record(prior="vanilla", training={"steps": 20, "rate": 0.25}),
    ]
    assert describe_settings(panels_of(*records)[0]) == [
        "All runs share the training: steps 20.",
        "Variants differ in training.rate.",
    ]
