"""The builds of the kernel that this processor can run, the best last; tests choose from them and plain torch."""

from patchreorder.operator import native

RUNNABLE = native.runnable(native.builds())
