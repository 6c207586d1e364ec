"""One file per command of the command line, with a function of its name; they join the parts."""
