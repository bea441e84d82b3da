"""A drill on the operator's own stores: a scratch topic, faults in front of them, and a report on each promise."""
