"""The table of the contract in docs/attach.md is the one that the suite's hosts and checks give.

WRITE_DOCS=1 python -m pytest tests/integrations/test_contract_table.py      (writes it)
"""

import os
import re
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[2] / "docs" / "attach.md"
SUITE = Path(__file__).with_name("test_contract.py")
BLOCK = re.compile(r"(?<=<!-- begin contract -->\n).*?(?=<!-- end contract -->)", re.DOTALL)


def checks() -> list[str]:
    """First words of the names of the suite's tests, in its order."""
    names: list[str] = re.findall(r"^def test_([a-z0-9]+)_", SUITE.read_text(), re.MULTILINE)
    return names


def table(hosts: dict[str, Any]) -> str:
    reasons: list[str] = []
    lines = [f"| | {' | '.join(checks())} |", f"|---|{'---|' * len(checks())}"]
    for host in hosts.values():
        cells = []
        for check in checks():
            reason = host.without.get(check)
            if reason and reason not in reasons:
                reasons.append(reason)
            cells.append(f"–{'¹²³⁴⁵'[reasons.index(reason)]}" if reason else "yes")
        lines.append(f"| {host.name} | {' | '.join(cells)} |")
    notes = " · ".join(f"{'¹²³⁴⁵'[number]} {reason}" for number, reason in enumerate(reasons))
    return "\n".join([*lines, "", notes, ""])


def test_the_documented_table_is_that_of_the_suite(hosts: dict[str, Any]) -> None:
    text = DOCS.read_text()
    if os.environ.get("WRITE_DOCS"):
        text = BLOCK.sub(lambda _: table(hosts), text)
        DOCS.write_text(text)
    match = BLOCK.search(text)
    assert match is not None
    assert match.group() == table(hosts)


def test_what_is_left_out_is_a_check_of_the_suite(hosts: dict[str, Any]) -> None:
    assert len(checks()) == len(set(checks())) == 12
    for host in hosts.values():
        assert set(host.without) <= {"checkpointing", "padding"}
