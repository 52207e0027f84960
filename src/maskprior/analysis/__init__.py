"""What a trained model learned, from records and tensors alone: nothing here trains."""
