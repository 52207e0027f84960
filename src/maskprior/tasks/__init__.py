"""Tasks: data, structure, loss and metrics in one frozen dataclass each."""
