"""Language modelling: text, tokenizers, decoders, causal priors of the distance, perplexity, generation."""
