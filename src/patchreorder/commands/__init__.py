"""One file per command, with a function of the same name. It checks its options, calls the rooms below, and prints."""
