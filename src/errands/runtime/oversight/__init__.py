"""What an agent tells about its run, and what its policy says to that.

    oversight.py    `Oversight`: one turn: its records, what comes in, what goes out, and how a policy stops it
    judging.py      `Judge`: asks steps and limits, remembers while they wait, writes decisions down
    capability.py   `CapabilityCall`: one call of a capability
    output.py       what a turn wants to show, held back until it may

A turn has an `Oversight` when there is a policy or when the agent records something, and otherwise none.
"""
