"""The denoiser's loss and training (Algorithm 2)."""
