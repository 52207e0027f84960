"""A mask prior in a Hugging Face GPT-2: a decay with distance that goes on beyond the training length.

    python examples/attach_hf_gpt2.py [FOLDER]         (about a minute, CPU, offline)

A tiny GPT-2 learns to go on repeating a word of four letters, from random weights, in rows of 24 letters. The
prior is made for 24 tokens; ``lengths="relative"`` lets it be used at any number, and generation with a cache
reads the right rows of it. The priors are then saved beside the model, as an adapter, and loaded again.
"""

import sys
import tempfile
from pathlib import Path

import torch
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel

import maskprior
from maskprior import structures
from maskprior.integrations import Attachment

ALPHABET = "abcdefghijklmnopqrstuvwxyz"
LENGTH, LONGEST, WORD = 24, 64, 4


def make_model() -> GPT2LMHeadModel:
    """GPT-2, small."""
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=len(ALPHABET),
        n_positions=LONGEST,
        n_embd=64,
        n_layer=2,
        n_head=4,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    return GPT2LMHeadModel(config)


def encode(text: str) -> Tensor:
    """Token ids ``[1, length]``."""
    return torch.tensor([[ALPHABET.index(character) for character in text]])


def decode(ids: Tensor) -> str:
    """Inverse of :func:`encode`."""
    return "".join(ALPHABET[index] for index in ids.flatten().tolist())


def batch(size: int, draw: torch.Generator) -> Tensor:
    """Random words, each repeated over a row of 24 letters."""
    words = torch.randint(len(ALPHABET), (size, WORD), generator=draw)
    return words.repeat(1, LENGTH // WORD)


def main(folder: Path, steps: int = 250) -> dict[str, object]:
    """Train, generate, save, load; print and return what came out."""
    model = make_model()
    attachment = maskprior.attach(
        model, structures.linear_distance(LENGTH, reach=12.0, causal=True), lengths="relative"
    )
    optimizer = torch.optim.AdamW(attachment.param_groups(lr=2e-3, weight_decay=0.01))
    draw = torch.Generator().manual_seed(0)
    losses = []
    for step in range(steps):
        ids = batch(32, draw)
        optimizer.zero_grad()
        # Rows start anywhere, so that all of GPT-2's own position embeddings learn.
        start = torch.randint(LONGEST - LENGTH + 1, (len(ids), 1), generator=draw)
        positions = start + torch.arange(LENGTH)
        loss = model(ids, position_ids=positions, labels=ids, use_cache=False).loss
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
        if step % 50 == 0 or step == steps - 1:
            print(f"step {step:4d}  loss {losses[-1]:.3f}")

    model.eval()  # type: ignore[no-untyped-call]
    prompt = encode("maskmask")
    options = {"attention_mask": torch.ones_like(prompt), "max_new_tokens": 32, "do_sample": False}
    text = decode(model.generate(prompt, **options))
    print("generated", text)

    model.save_pretrained(folder / "model")
    attachment.save_pretrained(folder / "prior")
    restored = GPT2LMHeadModel.from_pretrained(folder / "model")  # says that it does not know bias_priors
    Attachment.load(restored, folder / "prior")
    same = bool(torch.equal(restored(prompt).logits, model(prompt).logits))
    print("restored from disk, bit by bit:", same)
    return {"losses": losses, "text": text, "same": same}


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as temporary:
            main(Path(temporary))
