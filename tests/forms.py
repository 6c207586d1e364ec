"""The forms of the operator that tests choose from: plain torch, and every build of the kernel this processor runs."""

from patchreorder.operator import native

BUILDS = native.builds()
ABLE = native._BY_PROCESSOR[: native._processor(BUILDS) + 1]
RUNNABLE = [name for name in ABLE if name in BUILDS] or list(BUILDS)  # the best last
