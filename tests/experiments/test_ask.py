"""Asking a trained model: the same answer as its own forward pass, and clear refusals."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from accelerate import Accelerator

from maskprior.cli import main
from maskprior.experiments.ask import Answer, ask, layout_of, parse, token_labels
from maskprior.experiments.config import RunConfig, TrainingConfig
from maskprior.experiments.files import RecordError
from maskprior.experiments.presets import make_configs
from maskprior.experiments.record import weights_path
from maskprior.experiments.restore import find_run, restore
from maskprior.experiments.run import execute, record_path
from maskprior.tasks.arithmetic_layout import Layout, Order
from maskprior.tasks.arithmetic_tasks import addition

PLUS = Layout("addition", (3, 3))


def trained(folder: Path, config: RunConfig) -> Path:
    execute(config, folder, Accelerator(cpu=True), lambda step, point: None)
    return record_path(folder, config)


def short(task: str = "addition", prior: str = "mask", steps: int = 3) -> RunConfig:
    config = make_configs("quick", task, [prior], [0])[0]
    task_of_it = replace(config.task, test_pairs=20)  # type: ignore[type-var]
    return replace(config, task=task_of_it, training=replace(config.training, steps=steps, probes=2))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("run"), short(steps=40))


@pytest.mark.parametrize("task", ["addition", "subtraction", "multiplication"])
def test_a_restored_model_is_the_trained_one(task: str, tmp_path: Path) -> None:
    path = trained(tmp_path, short(task))
    record, model = restore(path)
    layout = layout_of(record)
    assert list(layout.names) == record.config["task"]["tokens"]
    generator = torch.Generator().manual_seed(1)
    a = torch.randint(10 ** layout.digits[0], (7,), generator=generator)
    b = torch.randint(10 ** layout.digits[1], (7,), generator=generator)
    with torch.no_grad():
        best = model(layout.inputs(a, b))[:, list(layout.slots)].argmax(-1)
    answers = [ask(model, layout, (int(x), int(y))) for x, y in zip(a, b, strict=True)]
    assert [answer.result for answer in answers] == [layout.result(row) for row in best.tolist()]
    assert [answer.exact for answer in answers] == [
        {"addition": x + y, "subtraction": x - y, "multiplication": x * y}[task]
        for x, y in zip(a.tolist(), b.tolist(), strict=True)
    ]
    logits = model.mask_logits()
    assert logits is not None
    assert len(logits) == model.config.depth


@pytest.mark.parametrize("order", ["decoder", "decoder-reversed"])
def test_a_decoder_writes_what_its_own_digits_lead_to(order: Order, tmp_path: Path) -> None:
    base = short()
    task = replace(addition(3, 50, order), test_pairs=20)
    model_config = replace(base.model, causal=True, length=task.interface().length)
    record, model = restore(trained(tmp_path, replace(base, task=task, model=model_config)))
    layout = layout_of(record)
    answer = ask(model, layout, (123, 989))
    digits = answer.digits if order == "decoder" else answer.digits[::-1]
    tokens = torch.cat(
        [layout.prompts(torch.tensor([123]), torch.tensor([989]))[0], layout.to_tokens(digits[:-1])]
    )
    with torch.no_grad():
        said = model(tokens[None])[0, layout.prompt_length - 1 :].softmax(-1)
    assert "".join(layout.symbols[i] for i in said.argmax(-1).tolist()) == digits
    ordered = answer.confidences if order == "decoder" else answer.confidences[::-1]
    torch.testing.assert_close(said.amax(-1), torch.tensor(ordered))


def test_confidence_is_the_probability_of_the_whole_answer() -> None:
    answer = Answer((1, 2), 3, 3, "03", [0.5, 0.25], ["1"], torch.zeros(1))
    assert answer.confidence == 0.125


@pytest.mark.parametrize(
    ("expression", "operands"), [("123+456", (123, 456)), (" 7 + 0 ", (7, 0)), ("0007+12", (7, 12))]
)
def test_expressions_are_read(expression: str, operands: tuple[int, int]) -> None:
    assert parse(expression, PLUS) == operands


def test_signs_and_bases() -> None:
    assert parse("7 x 8", Layout("multiplication", (1, 1))) == (7, 8)
    assert parse("9−12", Layout("subtraction", (2, 2))) == (9, 12)
    assert parse("ff+10", Layout("addition", (2, 2), base=16)) == (255, 16)


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("12", r"an expression like 999\+999, got '12'"),
        ("1+2+3", "an expression like"),
        ("-1+2", "an expression like"),
        ("1*2", "addition, which this run has learned, got multiplication"),
        ("1234+1", "at most 3 digits at this place, got 1234"),
        ("1a+1", "digits of base 10"),
    ],
)
def test_what_is_no_question_for_this_model_is_refused(expression: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse(expression, PLUS)


def test_labels_say_where_and_what() -> None:
    assert token_labels(["a0", "+", "s0"], ["7", "+", "?"]) == ["a0:7", "+", "s0"]


def test_the_command_line_answers_and_draws(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ask", str(run.parent), "123+456", "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    _, model = restore(run)
    answer = ask(model, PLUS, (123, 456))
    verdict = "right" if answer.result == 579 else "wrong, it is 579"
    assert f"123+456 = {answer.result}  ({verdict})" in printed
    assert f"confidence {answer.confidence:.1%}" in printed
    assert (tmp_path / "ask-attention.png").stat().st_size > 1000
    assert main(["ask", str(run), "123*456", "--out", str(tmp_path)]) == 2
    assert "expected addition" in capsys.readouterr().err


def test_which_run_is_meant(run: Path, tmp_path: Path) -> None:
    assert find_run(run) == run
    assert find_run(run.parent) == run
    with pytest.raises(ValueError, match="which is not there"):
        find_run(tmp_path / "nothing")
    with pytest.raises(ValueError, match=r"got 0 .*published records come without weights"):
        find_run(tmp_path)
    for name in ("x", "y"):
        (tmp_path / f"{name}.json").write_bytes(run.read_bytes())
        weights_path(tmp_path / f"{name}.json").write_bytes(weights_path(run).read_bytes())
    with pytest.raises(ValueError, match=r"got 2 .*name one of them:\n.*x\.json\n.*y\.json"):
        find_run(tmp_path)


def test_broken_runs_are_refused(run: Path, tmp_path: Path) -> None:
    lonely = tmp_path / "lonely.json"
    lonely.write_bytes(run.read_bytes())
    with pytest.raises(ValueError, match=r"expected the weights of lonely\.json beside it"):
        restore(lonely)
    weights_path(lonely).write_bytes(b"nonsense")
    with pytest.raises((ValueError, OSError)):
        restore(lonely)
    other = trained(tmp_path, short(prior="vanilla"))
    weights_path(lonely).write_bytes(
        weights_path(trained(tmp_path / "m", short("multiplication"))).read_bytes()
    )
    with pytest.raises(ValueError, match="expected the weights of"):
        restore(lonely)
    foreign = tmp_path / "foreign.json"
    foreign.write_text(other.read_text().replace('"head_width"', '"head_size"'))
    with pytest.raises(RecordError, match="maskprior's own Transformer"):
        restore(foreign)


def test_a_boolean_run_is_no_calculator(tmp_path: Path) -> None:
    config = make_configs("quick", "majority3", ["vanilla"], [0], dimension=4)[0]
    training = TrainingConfig(steps=1, learning_rate=1e-3, probes=2)
    record, _ = restore(trained(tmp_path, replace(config, training=training)))
    with pytest.raises(ValueError, match="a run of an arithmetic task, got one of 'majority3'"):
        layout_of(record)
