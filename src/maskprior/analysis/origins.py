"""Where a folder's numbers come from, in lines of Markdown: commands, time, code, versions, hardware."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from maskprior.analysis.tables import Panel, flatten
from maskprior.experiments.presets import PRESETS
from maskprior.experiments.record import RunRecord

SETTINGS = ("model.", "training.")
_HARDWARE = {
    "cpu": "{}",
    "cores": "{} cores",
    "threads": "{} threads",
    "memory_gib": "{} GiB memory",
    "accelerator": "{}",
    "accelerator_memory_gib": "{} GiB on it",
}


def describe_origins(panels: Sequence[Panel]) -> list[str]:
    """A list: number of runs and seeds, time, commands, commits, versions, hardware, each with its count."""
    records = [record for panel in panels for record in panel.records()]
    seeds = sorted({record.seed for record in records})
    seconds = sum(record.seconds for record in records)
    return [
        f"- runs: {len(records)}, seeds {_span(seeds)}",
        f"- time: {format_time(seconds)} of running, all runs together",
        *_counted("commit", records, _commit),
        *_counted("hardware", records, _hardware),
        *_counted("versions", records, _versions),
        *(f"- command: `{command}`" for command in filter(None, map(run_command, panels))),
        "",
    ]


def describe_settings(panel: Panel) -> list[str]:
    """Sentences: settings of model and training that all runs of a panel share, and names of the others."""
    configs = [flatten(record.config) for record in panel.records()]
    names = [
        name
        for name in dict.fromkeys(name for config in configs for name in config)
        if name.startswith(SETTINGS)
    ]
    shared = [name for name in names if all(config.get(name) == configs[0].get(name) for config in configs)]
    sentences = []
    for part in SETTINGS:
        values = [f"{name.removeprefix(part)} {configs[0][name]}" for name in shared if name.startswith(part)]
        if values:
            sentences.append(f"All runs share the {part.rstrip('.')}: {', '.join(values)}.")
    different = [name for name in names if name not in shared]
    return sentences + ([f"Variants differ in {', '.join(different)}."] if different else [])


def format_time(seconds: float) -> str:
    """``4 h 05 min``, ``7 min 30 s`` or ``12.3 s``."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def run_command(panel: Panel) -> str | None:
    """The command line that does a panel's runs; None where it would not do exactly these."""
    if panel.task not in PRESETS.get(panel.preset, {}):
        return None
    seeds = {record.seed for record in panel.records()}
    plain = all(record.variant == record.prior for record in panel.records())
    even = all({run.seed for run in runs.values()} == seeds for runs in panel.variants.values())
    if not (plain and even and seeds == set(range(len(seeds)))):
        return None
    words = [f"maskprior run {panel.task} --preset {panel.preset}"]
    dimension = flatten(panel.records()[0].config).get("task.dimension")
    words += [] if dimension is None else [f"--dimension {dimension}"]
    return " ".join([*words, f"--priors {','.join(panel.variants)} --seeds {len(seeds)} --out DIR"])


def _span(numbers: Sequence[int]) -> str:
    """``0–9`` for a run of numbers, else all of them."""
    if len(numbers) > 2 and numbers[-1] - numbers[0] == len(numbers) - 1:
        return f"{numbers[0]}–{numbers[-1]}"
    return ", ".join(map(str, numbers))


def _counted(label: str, records: Iterable[RunRecord], describe: Callable[[RunRecord], str]) -> list[str]:
    """A line for each different answer; with its number of runs where there are several."""
    counts = Counter(map(describe, records))
    many = len(counts) > 1
    return [
        f"- {label}: {text}" + (f" ({count} run{'s' * (count > 1)})" if many else "")
        for text, count in sorted(counts.items())
    ]


def _commit(record: RunRecord) -> str:
    return record.commit + (" with uncommitted changes" if record.dirty else "")


def _versions(record: RunRecord) -> str:
    return ", ".join(f"{package} {version}" for package, version in sorted(record.versions.items()))


def _hardware(record: RunRecord) -> str:
    facts = {name: value for name, value in record.hardware.items() if value is not None}
    known = [_HARDWARE[name].format(facts[name]) for name in _HARDWARE if name in facts]
    return ", ".join(known + [f"{name} {facts[name]}" for name in sorted(facts.keys() - _HARDWARE.keys())])
