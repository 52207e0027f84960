"""``maskprior generate``: text from a finished run, as it is written."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console


@dataclass(frozen=True)
class Generate:
    """Continue a text with a trained language model, printing as it writes.

    Example:
        maskprior generate runs/docstrings-toeplitz-seed0-0123abcd.json "Return the"

    Attributes:
        run: a record (X.json) of a language run, its weights and tokenizer beside it; or a folder with one.
        prompt: the text to continue.
        tokens: how many tokens to write at most.
        temperature: 0 always takes the most probable token.
        top_k: choose among the k most probable tokens; 0: among all.
        seed: of the draws.
    """

    run: Annotated[Path, tyro.conf.Positional]
    prompt: Annotated[str, tyro.conf.Positional]
    tokens: int = 64
    temperature: float = 0.0
    top_k: int = 40
    seed: int = 0

    def __call__(self, console: Console) -> None:
        """Write."""
        from maskprior.experiments.seeding import named_generator
        from maskprior.language.runs import load_run
        from maskprior.language.writing import Sampling, stream_text

        sampling = Sampling(self.temperature, self.top_k)
        pieces = stream_text(
            load_run(self.run), self.prompt, self.tokens, sampling, named_generator(self.seed, "generate")
        )
        first = next(pieces, "")
        console.file.write(self.prompt + first)
        for piece in pieces:
            console.file.write(piece)
            console.file.flush()
        console.file.write("\n")
