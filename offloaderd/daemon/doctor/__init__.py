"""The doctor: tries everything that the daemon needs, from where it runs, and says in one line each what to do.

A check is a coroutine that returns a Finding or raises; finding.py makes a result of either, so that no check can end
the examination. examination.py runs the groups of checks in order; a group is an async generator of results that
leaves nothing behind: every probe has a name of its own and is deleted, also when the check fails half-way.
"""
