"""MMD-OPT: the kernel, the statistic, its null, its fit, its thresholds, and the detector made of them."""
