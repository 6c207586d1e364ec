"""Images and labels: where they come from, how they are changed and how they reach a model."""
