"""Any network, opened by name and watched layer by layer: how invariant it is, and where it is not."""
