"""A mask prior from graphs: batches of graphs of different size, one learnable logit for each distance.

    python examples/graph_prior.py         (about a minute, CPU)

Every node of a random graph carries a number; a Transformer over the nodes learns, for each node, the mean
over its neighbours. Without a prior, nothing tells it which nodes are neighbours. With one, the relation of
two nodes is their number of hops, and one hop is what interacts.
"""

import networkx as nx
import torch
from torch import Tensor, nn

from maskprior import structures
from maskprior.integrations import attach_relations

LARGEST, WIDTH = 12, 32
VALUES = torch.tensor([0.0, 1.0, 0.2, 0.0])  # of 0, 1 and 2 hops, and "further, or padding"


def random_graph(seed: int) -> nx.Graph:
    """A connected graph of 6 to 12 nodes."""
    nodes = 6 + seed % (LARGEST - 5)
    return nx.connected_watts_strogatz_graph(nodes, 3, 0.4, seed=seed)


class NodeModel(nn.Module):
    """Numbers on nodes ``[batch, nodes]`` → a number for each node."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(1, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, 1)

    def forward(self, numbers: Tensor, padding: Tensor) -> Tensor:
        """``padding``: True where there is no node."""
        x = self.embed(numbers.unsqueeze(-1))
        predicted: Tensor = self.head(self.encoder(x, src_key_padding_mask=padding))
        return predicted.squeeze(-1)


def make_batch(seeds: range) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Numbers, targets, padding and relations of a batch of graphs."""
    graphs = [random_graph(seed) for seed in seeds]
    relations = structures.hop_relations(map(structures.from_networkx, graphs), farthest=2, n=LARGEST)
    padding = torch.arange(LARGEST) >= torch.tensor([len(graph) for graph in graphs])[:, None]
    numbers = torch.randn(padding.shape, generator=torch.Generator().manual_seed(seeds.start))
    numbers = numbers.masked_fill(padding, 0.0)
    neighbours = (relations == 1).float()
    targets = (neighbours @ numbers.unsqueeze(-1)).squeeze(-1) / neighbours.sum(-1).clamp(min=1)
    return numbers, targets, padding, relations


def fit(steps: int, *, prior: bool) -> float:
    """Train on graphs and return the error on others, as a share of the targets' variance."""
    torch.manual_seed(0)
    model = NodeModel()
    attachment = attach_relations(model, VALUES if prior else torch.ones_like(VALUES))
    if not prior:
        attachment.freeze()  # the same logit for every distance: no prior
    optimizer = torch.optim.AdamW(attachment.param_groups(lr=3e-3))

    def error(seeds: range) -> Tensor:
        numbers, targets, padding, relations = make_batch(seeds)
        with attachment.relations(relations):
            predicted = model(numbers, padding)
        real = ~padding
        share: Tensor = (predicted - targets)[real].square().mean() / targets[real].var()
        return share

    for step in range(steps):
        optimizer.zero_grad()
        error(range(64 * (step % 16), 64 * (step % 16) + 64)).backward()
        optimizer.step()
    with torch.no_grad():
        return float(error(range(10_000, 10_200)))


def main(steps: int = 150) -> dict[str, float]:
    """Print and return both errors."""
    results = {name: fit(steps, prior=name == "hops") for name in ("no prior", "hops")}
    for name, error in results.items():
        print(f"{name:>9}: unexplained variance on unseen graphs {error:.1%}")
    return results


if __name__ == "__main__":
    main()
