"""Why a measure has no value: parts of a sentence after "because", which pages translate."""

NO_STEPS = "no step has been measured so far"
NO_UNCOMPRESSED_STEPS = "there are too few uncompressed steps since this start to compare with"
TOO_FEW_STEPS = "too few steps have been measured so far"
ACROSS_LINE = "the difference is smaller than the steps vary"
ON_LINE = "the share lies on the line, and more steps will hardly tell"
ONE_RANK = "a single process sends nothing"
NO_TOTAL = "the total number of steps is not known"
NO_TRANSFER = "the agent reported no transfer times"
NO_SUGGESTION = "this training has no method that would send less"
NO_LINK = "the speed of the link is not known"
NO_BYTES = "no bytes were counted"
IS_COMPRESSED = "compression is on"
IS_UNCOMPRESSED = "compression is off"
IS_LOST = "nothing is heard of the training"
IS_OVER = "the training has ended"
ON_GPU = "methods work on the GPU"
ASSUMED = "assumed"
# Notes of the agent.
GUARD_REPORTS = "automatic rollback only reports"
GUARD_OFF = "automatic rollback is off"
# Why it knows no transfer.
NOT_COMPARED = "no step was compared across ranks"
NOT_TRACED = "no step was traced, so that measuring stays within its budget"

ALL = (
    NO_STEPS,
    NO_UNCOMPRESSED_STEPS,
    TOO_FEW_STEPS,
    ACROSS_LINE,
    ON_LINE,
    ONE_RANK,
    NO_TOTAL,
    NO_TRANSFER,
    NO_SUGGESTION,
    NO_LINK,
    ON_GPU,
    NO_BYTES,
    IS_COMPRESSED,
    IS_UNCOMPRESSED,
    IS_LOST,
    IS_OVER,
    ASSUMED,
    GUARD_REPORTS,
    GUARD_OFF,
    NOT_COMPARED,
    NOT_TRACED,
)
