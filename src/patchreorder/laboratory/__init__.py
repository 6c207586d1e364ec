"""What a recipe is, how its cells are run and kept, and the tasks that cells are measured by."""
