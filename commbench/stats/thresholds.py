"""From which difference on something is called slower, slow or not normal. docs/method.md has them
in one table."""

from __future__ import annotations

SMALLEST_CHANGE = 0.02  # compare, ab, watch: a larger difference can be SLOWER or FASTER
SUSPECT_SPREADS = 4.0  # of launches, from their median: compare, ab, accept
CHANGED_SPREADS = 3.0  # watch, where fresh launches decide
LASTING_SHARE = 0.01  # watch: of turns without a change in which many together look like one
FALSE_CHANGES = 1e-4  # watch: of turns without a change, by days that differ alone
SLOWDOWN = 0.10  # of a node or rank over the others: locate, acceptance, slow ranks
SURE_SHARE = 0.6  # of SLOWDOWN: what a slow node exceeds for sure
MISSED = 0.002  # locate: of the slow nodes that the first rounds clear
SLOW_SWITCH_SHARE = 0.75  # of the nodes of a switch: from which on it is the switch
EQUAL_MEMORY = 0.02  # by which the memory of equal nodes may differ
FEW_LAUNCHES = 3  # per side: with fewer, a difference is stated for this run only
DECIDING_LAUNCHES = 5  # accept: of these one is slow where half are; watch: before a verdict
TOLERATED_LOSS = 0.05  # accept: a loss that does not FAIL
LARGEST_UNSEEN = 0.30  # accept: no PASS where a larger loss could not be seen
GUIDELINE_MARGIN = 0.05  # smaller ones are real, as of other addresses, but nothing to mend
WAITED_SHARE = 0.05  # of the measured time in which a rank was ready but had no core
SLOW_FACTOR = 1.2  # of a pair's median over that of the others of its class
UNCERTAIN_SLOW_FACTOR = 2.0  # of a pair whose median is in doubt
SLOW_SPREADS = 3.0  # and by how many spreads of its class
FULL_SPEED_SHARE = 0.95  # of the rate that a ramp ends with
LARGEST_UNSTEADY = 0.05  # of the usual speed of a soak: less is no dip
FAR_FROM_NORMAL = 1.5  # a factor beyond a published range
FALSE_ALARMS = 0.01  # of healthy suites that fail, and of healthy clusters with a node named
USUAL_LEVELS = 0.03  # standard deviation of days and of hosts, where few show how they differ
