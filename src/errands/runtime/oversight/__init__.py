"""What an agent tells about its run, and what its policy says to that.

    recorder.py     `Recorder`: the records of one turn, and how a policy stops it
    oversight.py    `Oversight`: the same, with what the agent is given and what it shows
    judging.py      `Judge`: asks steps and limits, remembers while they wait, writes decisions down
    capability.py   `CapabilityCall`: one call of a capability
    output.py       what a turn wants to show, held back until it may

A turn has an `Oversight` when there is a policy or when the agent records something, and otherwise none.
"""
