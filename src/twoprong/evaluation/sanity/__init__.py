"""Is an evaluation to be trusted? Checks that fail when an attack is broken, gradients are masked, or numbers leak."""
